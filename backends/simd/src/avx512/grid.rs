//! Dot products of the formats whose codes are table entries (IQ1, IQ2 and IQ3).

use std::arch::x86_64::*;

use hal::format::{Format, grid as tables, grid_codes};

use super::super::grid as plain;
use super::super::rows::Row;
use super::super::tile::{Q8Tile, Tokens, for_tiles_near};
use super::vector::{load_bytes, load_half, load_quarter, mul, one_scale, splat, store_ps};
use super::{SubBlockProducts, totals};

/// An unpacked block of 256 values.
struct Codes {
    /// The magnitudes of the codes.
    sizes: [__m512i; 4],
    /// For each 64 codes, which are negative.
    negative: [u64; 4],
    /// The scale of each 16 values.
    scales: __m512,
}

#[repr(align(64))]
struct Table<const N: usize>([u16; N]);

static IQ2_XXS: Table<256> = Table(grid_codes::IQ2_XXS);
static IQ2_XS: Table<512> = Table(grid_codes::IQ2_XS);
static IQ2_S: Table<1024> = Table(grid_codes::IQ2_S);
static IQ3_XXS: Table<256> = Table(grid_codes::IQ3_XXS);
static IQ3_S: Table<512> = Table(grid_codes::IQ3_S);

/// The entries of `table` for 32 indices.
///
/// A permutation of two registers looks up 64 entries by the lower six bits of the indices; the
/// other bits then choose among the results. That is faster than 32 loads.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn look_up<const N: usize>(table: &Table<N>, index: __m512i) -> __m512i {
    let mut found = [_mm512_setzero_si512(); 16];
    let n = N / 64;
    for (i, found) in found[..n].iter_mut().enumerate() {
        let half = |h: usize| load_bytes(bytemuck::cast_slice(&table.0), 128 * i + 64 * h);
        *found = _mm512_permutex2var_epi16(half(0), index, half(1));
    }
    let mut n = n;
    let mut bit = 64;
    while n > 1 {
        let upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(bit));
        (n, bit) = (n / 2, 2 * bit);
        for i in 0..n {
            found[i] = _mm512_mask_blend_epi16(upper, found[2 * i], found[2 * i + 1]);
        }
    }
    found[0]
}

/// 32 entries with eight 2-bit codes each, as bytes. `level` has the values of the codes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn eight_codes<const N: usize>(table: &Table<N>, index: __m512i) -> [__m512i; 4] {
    // The shuffles below stay within 128 bits, so pair i of the entries that belong to output k has
    // to be in 128-bit part i.
    let places = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    let entries = look_up(table, _mm512_permutexvar_epi32(places, index));
    let nibble = _mm512_set1_epi8(15);
    let low = _mm512_and_si512(entries, nibble);
    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(entries), nibble);
    // The values of the first and of the second code of a nibble.
    let values = |shift: usize| {
        let mut values = [0; 16];
        for (i, value) in values.iter_mut().enumerate() {
            *value = tables::IQ2_LEVELS[i >> shift & 3];
        }
        _mm512_broadcast_i32x4(load_quarter(&values, 0))
    };
    let (first, second) = (values(0), values(2));
    let pairs = |nibbles: __m512i| {
        let (a, b) = (_mm512_shuffle_epi8(first, nibbles), _mm512_shuffle_epi8(second, nibbles));
        [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)]
    };
    let ([low_0, low_1], [high_0, high_1]) = (pairs(low), pairs(high));
    [
        _mm512_unpacklo_epi16(low_0, high_0),
        _mm512_unpackhi_epi16(low_0, high_0),
        _mm512_unpacklo_epi16(low_1, high_1),
        _mm512_unpackhi_epi16(low_1, high_1),
    ]
}

/// 64 entries with four 4-bit codes each, as bytes. `levels` has the values of the codes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn four_codes<const N: usize>(
    table: &Table<N>,
    levels: &[u8; 8],
    index: [__m512i; 2],
) -> [__m512i; 4] {
    let mut out = [_mm512_setzero_si512(); 4];
    let levels = _mm512_set1_epi64(i64::from_le_bytes(*levels));
    let nibble = _mm512_set1_epi8(15);
    // See `eight_codes`.
    let places = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    for (half, index) in index.into_iter().enumerate() {
        let entries = look_up(table, _mm512_permutexvar_epi64(places, index));
        let low = _mm512_and_si512(entries, nibble);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(entries), nibble);
        let low = _mm512_shuffle_epi8(levels, low);
        let high = _mm512_shuffle_epi8(levels, high);
        out[2 * half] = _mm512_unpacklo_epi8(low, high);
        out[2 * half + 1] = _mm512_unpackhi_epi8(low, high);
    }
    out
}

/// 32 entries of the IQ1 table, whose indices are the 16-bit words of `quads`. An eighth is
/// subtracted from each 8 codes whose bit in `less` is set, and added to the others.
///
/// The table fills 64 registers, so loads are faster than permutations. The indices do not come
/// from a vector register, because that would delay the loads by the latency of a store.
#[inline]
#[target_feature(enable = "bmi2,avx512bw,avx512vl,avx512vnni")]
fn iq1_codes(quads: [u64; 8], less: u32) -> [__m512i; 4] {
    let offset = |eighth: i8| _mm512_set1_epi8((tables::IQ1_OFFSET as i8).wrapping_add(eighth));
    let (adds, subtracts) = (offset(-1), offset(1));
    let mut out = [_mm512_setzero_si512(); 4];
    for ((i, out), [a, b]) in out.iter_mut().enumerate().zip(quads.as_chunks::<2>().0) {
        let entries = _mm512_castsi256_si512(four_entries(*a));
        let entries = _mm512_inserti64x4::<1>(entries, four_entries(*b));
        let offset = _mm512_mask_blend_epi64((less >> (8 * i)) as u8, adds, subtracts);
        *out = _mm512_sub_epi8(entries, offset);
    }
    out
}

#[inline]
#[target_feature(enable = "bmi2,avx512bw,avx512vl,avx512vnni")]
fn four_entries(quad: u64) -> __m256i {
    let entry = |i: usize| &raw const tables::IQ1[(quad >> (16 * i) & 2047) as usize];
    // SAFETY: each pointer is to 8 bytes.
    let pair = |i: usize| unsafe {
        _mm_castpd_si128(_mm_loadh_pd(_mm_load_sd(entry(i).cast()), entry(i + 1).cast()))
    };
    _mm256_set_m128i(pair(2), pair(0))
}

/// Indices of IQ1: the bytes of `lows`, and above each of them three bits of `uppers`.
#[inline]
#[target_feature(enable = "bmi2,avx512bw,avx512vl,avx512vnni")]
fn iq1_index(lows: &[u8; 4], uppers: u64) -> u64 {
    let lows = u64::from(u32::from_le_bytes(*lows));
    _pdep_u64(lows, 0x00ff_00ff_00ff_00ff) | _pdep_u64(uppers, 0x0700_0700_0700_0700)
}

/// Adds an eighth sign to each byte of seven signs; it makes the number of set bits even.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn even_signs(seven: __m256i) -> [u64; 4] {
    // 128 for each nibble with an odd number of set bits.
    let odd = _mm256_broadcastsi128_si256(_mm_set_epi64x(
        0x0080_8000_8000_0080u64 as i64,
        0x8000_0080_0080_8000u64 as i64,
    ));
    let nibbles = _mm256_xor_si256(seven, _mm256_srli_epi16::<4>(seven));
    let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
    masks(_mm256_or_si256(seven, _mm256_shuffle_epi8(odd, nibbles)))
}

#[inline(always)]
fn bytes_of(v: __m512i) -> [u8; 64] {
    // SAFETY: both types have 64 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(v) }
}

#[inline(always)]
fn masks(signs: __m256i) -> [u64; 4] {
    // SAFETY: both types have 32 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(signs) }
}

/// The signs in the lower 28 bits of 8 words, seven for each 8 values.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn signs_of_words(words: __m256i) -> [u64; 4] {
    let part = |word: __m256i, at: u32| _mm256_and_si256(word, _mm256_set1_epi32(127 << at));
    let low = _mm256_or_si256(part(words, 0), part(_mm256_slli_epi32::<1>(words), 8));
    let high = _mm256_or_si256(
        part(_mm256_slli_epi32::<2>(words), 16),
        part(_mm256_slli_epi32::<3>(words), 24),
    );
    even_signs(_mm256_or_si256(low, high))
}

/// The scales of 16 values each; `steps` has `2 * step` in some bits, selected by `bits`.
/// Each scale is the product of an f16, a power of two and an odd number of at most five bits, so
/// it is exact in any order of the multiplications.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scales(steps: __m512i, bits: i32, d: &[u8], unit: f32) -> __m512 {
    let odd =
        _mm512_or_si512(_mm512_and_si512(steps, _mm512_set1_epi32(bits)), _mm512_set1_epi32(1));
    mul(_mm512_cvtepi32_ps(odd), mul(one_scale(d), splat(unit)))
}

/// The steps in the upper four bits of 8 words, for 32 values each.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn steps_of_words(words: __m256i) -> __m512i {
    let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    _mm512_srli_epi32::<27>(_mm512_permutexvar_epi32(twice, _mm512_castsi256_si512(words)))
}

/// The nibbles of 8 bytes, times two.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn steps_of_nibbles(bytes: &[u8; 8]) -> __m512i {
    let bytes = _mm512_cvtepu8_epi64(_mm_set1_epi64x(i64::from_le_bytes(*bytes)));
    _mm512_or_si512(_mm512_slli_epi64::<1>(bytes), _mm512_slli_epi64::<29>(bytes))
}

#[inline(always)]
fn last_eight(block: &[u8]) -> &[u8; 8] {
    block.last_chunk().expect("the block has more bytes")
}

/// Repeats the lowest word of each 64 bits.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn repeat_words(words: __m512i) -> __m512i {
    let low = _mm512_set_epi64(
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
    );
    _mm512_shuffle_epi8(words, low)
}

impl Codes {
    /// Stores the signed codes, XORed with `flip`, and a scale for each group.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn store<const GROUPS: usize>(
        &self,
        flip: i8,
        codes: &mut [u8; 256],
        scales: &mut [f32; GROUPS],
    ) {
        let (none, flip) = (_mm512_setzero_si512(), _mm512_set1_epi8(flip));
        for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let size = self.sizes[i];
            let signed = _mm512_mask_sub_epi8(size, self.negative[i], none, size);
            *codes = bytes_of(_mm512_xor_si512(signed, flip));
        }
        let mut all = [0.0; 16];
        let per_group = if GROUPS == 16 {
            self.scales
        } else {
            // Both halves of each group have the same scale.
            let even = _mm512_set_epi32(14, 12, 10, 8, 6, 4, 2, 0, 14, 12, 10, 8, 6, 4, 2, 0);
            _mm512_permutexvar_ps(even, self.scales)
        };
        store_ps(&mut all, 0, per_group);
        scales.copy_from_slice(&all[..GROUPS]);
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn iq1(codes: [__m512i; 4], scales: __m512) -> Self {
        let (mut sizes, mut negative) = (codes, [0; 4]);
        for i in 0..4 {
            negative[i] = _mm512_movepi8_mask(codes[i]);
            sizes[i] = _mm512_abs_epi8(codes[i]);
        }
        Self { sizes, negative, scales }
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn iq2_xxs_codes(block: &[u8; 66]) -> Codes {
    let groups = load_bytes(block, 2);
    let index = _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(groups));
    let words = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(groups));
    Codes {
        sizes: eight_codes(&IQ2_XXS, index),
        negative: signs_of_words(words),
        scales: scales(steps_of_words(words), 30, block, 0.125),
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn iq2_xs_codes(block: &[u8; 74]) -> Codes {
    let words = load_bytes(block, 2);
    let index = _mm512_and_si512(words, _mm512_set1_epi16(511));
    Codes {
        sizes: eight_codes(&IQ2_XS, index),
        negative: even_signs(_mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(words))),
        scales: scales(steps_of_nibbles(last_eight(block)), 30, block, 0.125),
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn iq2_s_codes(block: &[u8; 82]) -> Codes {
    // Two upper bits for each index, four indices per byte.
    let uppers = i64::from_le_bytes(*block[66..].first_chunk().expect("8 bytes"));
    let uppers = repeat_words(_mm512_cvtepu8_epi64(_mm_set1_epi64x(uppers)));
    let uppers = _mm512_sllv_epi16(uppers, _mm512_set1_epi64(0x0002_0004_0006_0008));
    let uppers = _mm512_and_si512(uppers, _mm512_set1_epi16(0x300));
    let index = _mm512_or_si512(_mm512_cvtepu8_epi16(load_half(block, 2)), uppers);
    Codes {
        sizes: eight_codes(&IQ2_S, index),
        negative: masks(load_half(block, 34)),
        scales: scales(steps_of_nibbles(last_eight(block)), 30, block, 0.125),
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn iq3_xxs_codes(block: &[u8; 98]) -> Codes {
    let index = [2, 34].map(|at| _mm512_cvtepu8_epi16(load_half(block, at)));
    let words = load_half(block, 66);
    Codes {
        sizes: four_codes(&IQ3_XXS, &tables::IQ3_XXS_LEVELS, index),
        negative: signs_of_words(words),
        scales: scales(steps_of_words(words), 30, block, 0.25),
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn iq3_s_codes(block: &[u8; 110]) -> Codes {
    let uppers: [[u8; 4]; 2] = bytemuck::cast(*block[66..].first_chunk::<8>().expect("8 bytes"));
    let index = [0, 1].map(|half| {
        let low = _mm512_cvtepu8_epi16(load_half(block, 2 + 32 * half));
        let upper = u32::from_le_bytes(uppers[half]);
        _mm512_mask_add_epi16(low, upper, low, _mm512_set1_epi16(256))
    });
    // A nibble for each 32 values.
    let nibbles = _mm512_set1_epi32(i32::from_le_bytes(*block.last_chunk().expect("4 bytes")));
    let places = _mm512_set_epi32(28, 28, 24, 24, 20, 20, 16, 16, 12, 12, 8, 8, 4, 4, 0, 0);
    let steps = _mm512_slli_epi32::<1>(_mm512_srlv_epi32(nibbles, places));
    Codes {
        sizes: four_codes(&IQ3_S, &tables::IQ3_S_LEVELS, index),
        negative: masks(load_half(block, 74)),
        scales: scales(steps, 30, block, 1.0),
    }
}

#[inline]
#[target_feature(enable = "bmi2,avx512bw,avx512vl,avx512vnni")]
fn iq1_s_codes(block: &[u8; 50]) -> Codes {
    let mut quads = [0; 8];
    let lows = block[2..34].as_chunks::<4>().0.iter().zip(block[34..].as_chunks::<2>().0);
    for (quad, (lows, word)) in quads.iter_mut().zip(lows) {
        *quad = iq1_index(lows, u64::from(u16::from_le_bytes(*word)));
    }
    let words = _mm512_cvtepu16_epi64(load_quarter(block, 34));
    let less = _mm512_movepi16_mask(repeat_words(words));
    let steps = _mm512_srli_epi32::<11>(_mm512_shuffle_epi32::<0b10_10_00_00>(words));
    Codes::iq1(iq1_codes(quads, less), scales(steps, 14, block, 0.125))
}

#[inline]
#[target_feature(enable = "bmi2,avx512bw,avx512vl,avx512vnni")]
fn iq1_m_codes(block: &[u8; 56]) -> Codes {
    let mut quads = [0; 8];
    let lows = block[..32].as_chunks::<4>().0.iter().zip(block[32..48].as_chunks::<2>().0);
    for (quad, (lows, nibbles)) in quads.iter_mut().zip(lows) {
        let nibbles = u64::from(u16::from_le_bytes(*nibbles));
        *quad = iq1_index(lows, _pext_u64(nibbles, 0x7777));
    }
    // The highest bit of each nibble.
    let both = _mm512_cvtepu8_epi32(load_quarter(block, 32));
    let nibbles = _mm512_or_si512(both, _mm512_slli_epi32::<12>(both));
    let less = _mm512_test_epi16_mask(nibbles, _mm512_set1_epi16(8));
    let words: [u8; 8] = *last_eight(block);
    let uppers = _pext_u64(u64::from_le_bytes(words), 0xf000_f000_f000_f000) as u16;
    // Four times three bits in each word.
    let words = _mm512_cvtepu16_epi64(_mm_set1_epi64x(i64::from_le_bytes(words)));
    let places = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
    let words = _mm512_slli_epi32::<1>(_mm512_permutexvar_epi32(places, words));
    let shifts = _mm512_set_epi32(9, 6, 3, 0, 9, 6, 3, 0, 9, 6, 3, 0, 9, 6, 3, 0);
    let steps = _mm512_srlv_epi32(words, shifts);
    Codes::iq1(iq1_codes(quads, less), scales(steps, 14, &uppers.to_le_bytes(), 0.125))
}

macro_rules! formats {
    ($($name:ident, $codes:ident, $bytes:literal;)+) => {
        $(
            #[inline]
            #[target_feature(enable = "bmi2,avx512bw,avx512vl,avx512vnni")]
            pub(super) fn $name<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
                let mut acc = [_mm512_setzero_ps(); N];
                for_tiles_near::<{ 2 * $bytes }, N>(row, x, |tile, x| {
                    for (half, block) in tile.as_chunks::<$bytes>().0.iter().enumerate() {
                        multiply(half, &$codes(block), x, &mut acc);
                    }
                });
                totals(acc)
            }
        )+
    };
}

formats! {
    iq2_xxs, iq2_xxs_codes, 66;
    iq2_xs, iq2_xs_codes, 74;
    iq2_s, iq2_s_codes, 82;
    iq3_xxs, iq3_xxs_codes, 98;
    iq3_s, iq3_s_codes, 110;
    iq1_s, iq1_s_codes, 50;
    iq1_m, iq1_m_codes, 56;
}

/// Adds the products of a block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn multiply<const N: usize>(
    half: usize,
    codes: &Codes,
    x: &[Q8Tile<'_>; N],
    acc: &mut [__m512; N],
) {
    let mut products = SubBlockProducts::with_scales(half, codes.scales, x);
    for i in 0..4 {
        products.add_sizes(i, codes.sizes[i], codes.negative[i], x);
    }
    products.add_to(acc);
}

/// Unpacks blocks to signed bytes, XORed with `flip`, and the scale of each group. A separate
/// function, so that the compiler inlines what it calls.
#[inline(never)]
#[target_feature(enable = "bmi2,avx512bw,avx512vl,avx512vnni")]
pub(super) fn unpack(
    format: Format,
    blocks: &[u8],
    flip: i8,
    codes: &mut [u8],
    scales: &mut [f32],
) {
    macro_rules! each {
        ($codes:ident, $bytes:literal, $groups:literal) => {{
            let out = codes.as_chunks_mut::<256>().0.iter_mut();
            let out = out.zip(scales.as_chunks_mut::<$groups>().0);
            for (block, (codes, scales)) in blocks.as_chunks::<$bytes>().0.iter().zip(out) {
                $codes(block).store(flip, codes, scales);
            }
        }};
    }
    match format {
        Format::IQ2_XXS => each!(iq2_xxs_codes, 66, 8),
        Format::IQ2_XS => each!(iq2_xs_codes, 74, 16),
        Format::IQ2_S => each!(iq2_s_codes, 82, 16),
        Format::IQ3_XXS => each!(iq3_xxs_codes, 98, 8),
        Format::IQ3_S => each!(iq3_s_codes, 110, 8),
        Format::IQ1_S => each!(iq1_s_codes, 50, 8),
        Format::IQ1_M => each!(iq1_m_codes, 56, 16),
        Format::F32
        | Format::F16
        | Format::BF16
        | Format::Q4_0
        | Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q8_0
        | Format::Q2_K
        | Format::Q3_K
        | Format::Q4_K
        | Format::Q5_K
        | Format::Q6_K
        | Format::IQ4_NL
        | Format::IQ4_XS
        | Format::MXFP4
        | Format::Q1_0
        | Format::U32 => plain::unpack(format, blocks, flip, codes, scales),
    }
}

//! Products and unpacking of the formats whose codes are table entries (IQ1, IQ2 and IQ3).

use std::arch::x86_64::*;

use hal::format::{Format, grid as tables};

use super::super::grid as plain;
use super::super::rows::Row;
use super::super::tile::{Q8Tile, Tokens, for_tiles_near};
use super::vector::{load_bytes, load_half, one_scale, store_ps};
use super::{sum_pairs, totals};

/// Eight codes for each of four table entries.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_entries<const N: usize>(table: &[u64; N], index: [usize; 4]) -> __m256i {
    let [a, b, c, d] = index.map(|i| (&raw const table[i & (N - 1)]).cast::<f64>());
    // SAFETY: each pointer is to 8 bytes.
    let pair = |low, high| unsafe { _mm_castpd_si128(_mm_loadh_pd(_mm_load_sd(low), high)) };
    _mm256_set_m128i(pair(c, d), pair(a, b))
}

/// Four codes for each of eight table entries.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight_entries<const N: usize>(table: &[u32; N], index: [usize; 8]) -> __m256i {
    let [a, b, c, d, e, f, g, h] = index.map(|i| table[i & (N - 1)] as i32);
    _mm256_set_epi32(h, g, f, e, d, c, b, a)
}

#[inline(always)]
fn bytes<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    *block[at..].first_chunk().expect("the block has these bytes")
}

#[inline(always)]
fn words<const N: usize>(block: &[u8], at: usize) -> [u16; N] {
    let mut out = [0; N];
    for (word, bytes) in out.iter_mut().zip(block[at..].as_chunks::<2>().0) {
        *word = u16::from_le_bytes(*bytes);
    }
    out
}

/// Adds an eighth sign to each byte of seven signs; it makes the number of set bits even.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn even_signs(seven: __m256i) -> __m256i {
    // 128 for each nibble with an odd number of set bits.
    let odd = _mm256_broadcastsi128_si256(_mm_set_epi64x(
        0x0080_8000_8000_0080_u64 as i64,
        0x8000_0080_0080_8000_u64 as i64,
    ));
    let nibbles = _mm256_xor_si256(seven, _mm256_srli_epi16::<4>(seven));
    let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
    _mm256_or_si256(seven, _mm256_shuffle_epi8(odd, nibbles))
}

/// The signs in the lower 28 bits of 8 words, seven for each 8 values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signs_of_words(words: __m256i) -> __m256i {
    let part = |word: __m256i, at: u32| _mm256_and_si256(word, _mm256_set1_epi32(127 << at));
    let low = _mm256_or_si256(part(words, 0), part(_mm256_slli_epi32::<1>(words), 8));
    let high = _mm256_or_si256(
        part(_mm256_slli_epi32::<2>(words), 16),
        part(_mm256_slli_epi32::<3>(words), 24),
    );
    even_signs(_mm256_or_si256(low, high))
}

/// For 32 values: which of 16 bytes has the sign of each.
static SIGN_BYTES: [[u8; 32]; 4] = {
    let (mut out, mut i) = ([[0; 32]; 4], 0);
    while i < 128 {
        out[i / 32][i % 32] = (i / 8) as u8;
        i += 1;
    }
    out
};

/// For 32 values: which of 8 scales multiplies the sums of each four.
static SCALE_LANES: [[u32; 8]; 4] = {
    let (mut out, mut i) = ([[0; 8]; 4], 0);
    while i < 32 {
        out[i / 8][i % 8] = (i / 4) as u32;
        i += 1;
    }
    out
};

/// The signs of a block of 256 values, those of each half in both halves of a register.
struct Signs([__m256i; 2]);

impl Signs {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(signs: __m256i) -> Self {
        Self([
            _mm256_permute2x128_si256::<0x00>(signs, signs),
            _mm256_permute2x128_si256::<0x11>(signs, signs),
        ])
    }

    /// -1 for each negative value of the 32 from `32 * i` on, otherwise 1.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn ones(&self, i: usize) -> __m256i {
        let places = load_bytes(&SIGN_BYTES[i % 4], 0);
        let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm256_and_si256(_mm256_shuffle_epi8(self.0[i / 4], places), bits);
        _mm256_or_si256(_mm256_cmpeq_epi8(set, bits), _mm256_set1_epi8(1))
    }
}

/// The scales of 16 values each: the f16 `d`, times `unit`, times `2 * step + 1`. They are exact in
/// any order of the multiplications, because a step has at most four bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales(steps: [__m256i; 2], d: &[u8], unit: f32) -> Scales {
    let d = _mm256_mul_ps(one_scale(d), _mm256_set1_ps(unit));
    Scales(steps.map(|steps| {
        let odd = _mm256_or_si256(_mm256_add_epi32(steps, steps), _mm256_set1_epi32(1));
        _mm256_mul_ps(_mm256_cvtepi32_ps(odd), d)
    }))
}

/// The scales of a block of 256 values, one for each 16.
#[derive(Clone, Copy)]
struct Scales([__m256; 2]);

impl Scales {
    /// Scales `2 * i` and `2 * i + 1` in four lanes each. They stay in registers: a load right
    /// after a wider store is slow.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn pair(self, i: usize) -> __m256 {
        let lanes = load_bytes(bytemuck::cast_slice(&SCALE_LANES[i % 4]), 0);
        _mm256_permutevar8x32_ps(self.0[i / 4], lanes)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn to_array(self) -> [f32; 16] {
        let mut all = [0.0; 16];
        store_ps(&mut all, 0, self.0[0]);
        store_ps(&mut all, 8, self.0[1]);
        all
    }
}

/// Repeats each of 8 steps.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(steps: __m256i) -> [__m256i; 2] {
    let low = _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0);
    let high = _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4);
    [low, high].map(|places| _mm256_permutevar8x32_epi32(steps, places))
}

/// 16 nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn steps_of_nibbles(block: &[u8], at: usize) -> [__m256i; 2] {
    let nibbles: [i32; 2] = bytemuck::cast(bytes::<8>(block, at));
    let places = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    nibbles.map(|eight| {
        let eight = _mm256_srlv_epi32(_mm256_set1_epi32(eight), places);
        _mm256_and_si256(eight, _mm256_set1_epi32(15))
    })
}

/// The u32 at `at` of each 8 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn every_second_word(block: &[u8], at: usize) -> __m256i {
    let (a, b) = (load_bytes(block, at - 4), load_bytes(block, at + 28));
    let both = _mm256_shuffle_ps::<0b11_01_11_01>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(both))
}

/// What IQ1 stores for a block.
struct Unsigned {
    scales: Scales,
}

/// What the other formats store for a block.
struct Signed {
    signs: Signs,
    scales: Scales,
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_words(words: __m256i, d: &[u8], unit: f32) -> Signed {
    let steps = twice(_mm256_srli_epi32::<28>(words));
    Signed { signs: Signs::new(signs_of_words(words)), scales: scales(steps, d, unit) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq2_xxs_signed(block: &[u8; 66]) -> Signed {
    with_words(every_second_word(block, 6), block, 0.125)
}

#[inline(always)]
fn iq2_xxs_index(block: &[u8; 66], i: usize) -> [usize; 4] {
    bytes(block, 2 + 8 * i).map(usize::from)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq2_xs_signed(block: &[u8; 74]) -> Signed {
    let seven = [2, 34].map(|at| _mm256_srli_epi16::<9>(load_bytes(block, at)));
    let seven = _mm256_packus_epi16(seven[0], seven[1]);
    let signs = Signs::new(even_signs(_mm256_permute4x64_epi64::<0b11_01_10_00>(seven)));
    Signed { signs, scales: scales(steps_of_nibbles(block, 66), block, 0.125) }
}

#[inline(always)]
fn iq2_xs_index(block: &[u8; 74], i: usize) -> [usize; 4] {
    let words = u64::from_le_bytes(bytes(block, 2 + 8 * i)) as usize;
    [words, words >> 16, words >> 32, words >> 48]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq2_s_signed(block: &[u8; 82]) -> Signed {
    let scales = scales(steps_of_nibbles(block, 74), block, 0.125);
    Signed { signs: Signs::new(load_bytes(block, 34)), scales }
}

#[inline(always)]
fn iq2_s_index(block: &[u8; 82], i: usize) -> [usize; 4] {
    let [a, b, c, d] = bytes(block, 2 + 4 * i).map(usize::from);
    let upper = usize::from(block[66 + i]);
    [a | (upper & 3) << 8, b | (upper & 12) << 6, c | (upper & 48) << 4, d | (upper & 192) << 2]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq3_xxs_signed(block: &[u8; 98]) -> Signed {
    with_words(load_bytes(block, 66), block, 0.25)
}

#[inline(always)]
fn iq3_xxs_index(block: &[u8; 98], i: usize) -> [usize; 8] {
    bytes(block, 2 + 8 * i).map(usize::from)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq3_s_signed(block: &[u8; 110]) -> Signed {
    let nibbles = _mm256_set1_epi32(i32::from_le_bytes(bytes(block, 106)));
    let steps = _mm256_srlv_epi32(nibbles, _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
    let steps = twice(_mm256_and_si256(steps, _mm256_set1_epi32(15)));
    Signed { signs: Signs::new(load_bytes(block, 74)), scales: scales(steps, block, 1.0) }
}

#[inline(always)]
fn iq3_s_index(block: &[u8; 110], i: usize) -> [usize; 8] {
    // The volatile reads keep the compiler from computing the indices in a vector register, from
    // which they would have to be extracted.
    let lows: &[u8; 8] = block[2 + 8 * i..].first_chunk().expect("the block has these bytes");
    // SAFETY: the pointer comes from a reference.
    let low = |l: usize| usize::from(unsafe { (&raw const lows[l]).read_volatile() });
    let upper = usize::from(block[66 + i]) << 8;
    [
        low(0) | upper & 256,
        low(1) | upper >> 1 & 256,
        low(2) | upper >> 2 & 256,
        low(3) | upper >> 3 & 256,
        low(4) | upper >> 4 & 256,
        low(5) | upper >> 5 & 256,
        low(6) | upper >> 6 & 256,
        low(7) | upper >> 7 & 256,
    ]
}

/// 32 codes of IQ1. `uppers` has the three upper bits of each index. An eighth is subtracted from
/// each 8 codes whose bit of `bits` is set in `word`, and added to the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq1_codes(lows: [u8; 4], uppers: [usize; 4], word: u16, bits: [i64; 4]) -> __m256i {
    let mut index = lows.map(usize::from);
    for (index, upper) in index.iter_mut().zip(uppers) {
        *index |= (upper & 7) << 8;
    }
    let bits = _mm256_set_epi64x(bits[3], bits[2], bits[1], bits[0]);
    let set = _mm256_and_si256(_mm256_set1_epi64x(i64::from(word)), bits);
    let set = _mm256_cmpeq_epi64(set, bits);
    let less = _mm256_set1_epi8((tables::IQ1_OFFSET as i8).wrapping_sub(1));
    // `set` has -1 in the bytes whose offset is two larger.
    let offset = _mm256_sub_epi8(less, _mm256_add_epi8(set, set));
    _mm256_sub_epi8(four_entries(&tables::IQ1, index), offset)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq1_s_codes(block: &[u8; 50], i: usize) -> __m256i {
    let [word] = words(block, 34 + 2 * i);
    let wide = usize::from(word);
    iq1_codes(bytes(block, 2 + 4 * i), [wide, wide >> 3, wide >> 6, wide >> 9], word, [0x8000; 4])
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq1_s_scales(block: &[u8; 50]) -> Unsigned {
    let words = _mm256_cvtepu16_epi32(load_half(block, 34));
    let steps = _mm256_and_si256(_mm256_srli_epi32::<12>(words), _mm256_set1_epi32(7));
    Unsigned { scales: scales(twice(steps), block, 0.125) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq1_m_codes(block: &[u8; 56], i: usize) -> __m256i {
    let [word] = words(block, 32 + 2 * i);
    let wide = usize::from(word);
    let uppers = [wide, wide >> 4, wide >> 8, wide >> 12];
    iq1_codes(bytes(block, 4 * i), uppers, word, [8, 0x80, 0x800, 0x8000])
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq1_m_scales(block: &[u8; 56]) -> Unsigned {
    let words: [u16; 4] = words(block, 48);
    let [a, b, c, d] = words.map(|word| word >> 12);
    let d = (a | b << 4 | c << 8 | d << 12).to_le_bytes();
    let shifts = _mm256_set_epi32(9, 6, 3, 0, 9, 6, 3, 0);
    let steps = [[words[0], words[1]], [words[2], words[3]]].map(|[first, second]| {
        let four = |word: u16| _mm_set1_epi32(i32::from(word));
        let eight = _mm256_srlv_epi32(_mm256_set_m128i(four(second), four(first)), shifts);
        _mm256_and_si256(eight, _mm256_set1_epi32(7))
    });
    Unsigned { scales: scales(steps, &d, 0.125) }
}

/// The products of a block of 256 values, half `half` of a tile. `part` returns the magnitudes and
/// the signs of 32 codes, and the activations take the signs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<const N: usize>(
    half: usize,
    scales: Scales,
    x: &[Q8Tile<'_>; N],
    acc: &mut [__m256; N],
    part: impl Fn(usize) -> (__m256i, __m256i),
) {
    let mut sums = [_mm256_setzero_ps(); N];
    // The compiler unrolls loops of four steps, which is faster if the registers suffice.
    let at_once = const { if N == 1 { 4 } else { 8 } };
    for first in (0..8).step_by(at_once) {
        for i in first..first + at_once {
            let ((sizes, signs), scale) = (part(i), scales.pair(i));
            for (sum, x) in sums.iter_mut().zip(x) {
                let q = load_bytes(bytemuck::cast_slice(x.q), 256 * half + 32 * i);
                let factor = _mm256_mul_ps(scale, _mm256_set1_ps(x.d[8 * half + i]));
                let dot = sum_pairs(_mm256_maddubs_epi16(sizes, _mm256_sign_epi8(q, signs)));
                *sum = _mm256_fmadd_ps(dot, factor, *sum);
            }
        }
    }
    for (acc, sum) in acc.iter_mut().zip(sums) {
        *acc = _mm256_add_ps(*acc, sum);
    }
}

/// The products of a format; `$parts` has the scales of a block.
macro_rules! dots {
    ($name:ident, $bytes:literal, $parts:ident, |$block:ident, $p:ident, $i:ident| $part:expr) => {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $name<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
            let mut acc = [_mm256_setzero_ps(); N];
            for_tiles_near::<{ 2 * $bytes }, N>(row, x, |tile, x| {
                for (half, $block) in tile.as_chunks::<$bytes>().0.iter().enumerate() {
                    let $p = $parts($block);
                    multiply(half, $p.scales, x, &mut acc, |$i| $part);
                }
            });
            totals(acc)
        }
    };
}

/// The products of a format with signs.
macro_rules! signed {
    ($name:ident, $signed:ident, $entries:ident($table:ident, $index:ident), $bytes:literal) => {
        dots!($name, $bytes, $signed, |block, parts, i| {
            ($entries(&tables::$table, $index(block, i)), parts.signs.ones(i))
        });
    };
}

/// The products of IQ1.
macro_rules! iq1 {
    ($name:ident, $scales:ident, $codes:ident, $bytes:literal) => {
        dots!($name, $bytes, $scales, |block, _parts, i| {
            let codes = $codes(block, i);
            (_mm256_abs_epi8(codes), codes)
        });
    };
}

signed!(iq2_xxs, iq2_xxs_signed, four_entries(IQ2_XXS, iq2_xxs_index), 66);
signed!(iq2_xs, iq2_xs_signed, four_entries(IQ2_XS, iq2_xs_index), 74);
signed!(iq2_s, iq2_s_signed, four_entries(IQ2_S, iq2_s_index), 82);
signed!(iq3_xxs, iq3_xxs_signed, eight_entries(IQ3_XXS, iq3_xxs_index), 98);
signed!(iq3_s, iq3_s_signed, eight_entries(IQ3_S, iq3_s_index), 110);
iq1!(iq1_s, iq1_s_scales, iq1_s_codes, 50);
iq1!(iq1_m, iq1_m_scales, iq1_m_codes, 56);

/// Unpacks blocks to signed bytes, XORed with `flip`, and the scale of each group. A separate
/// function, so that the compiler inlines what it calls.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(
    format: Format,
    blocks: &[u8],
    flip: i8,
    codes: &mut [u8],
    scales: &mut [f32],
) {
    macro_rules! each {
        ($bytes:literal, $groups:literal, |$block:ident, $i:ident| $parts:ident, $code:expr, $scales:expr) => {{
            let out = codes.as_chunks_mut::<256>().0.iter_mut();
            let out = out.zip(scales.as_chunks_mut::<$groups>().0);
            for ($block, (codes, scales)) in blocks.as_chunks::<$bytes>().0.iter().zip(out) {
                let $parts = $scales;
                for ($i, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    *codes = bytes_of(_mm256_xor_si256($code, _mm256_set1_epi8(flip)));
                }
                let all = $parts.scales.to_array();
                *scales = std::array::from_fn(|g| all[16 / $groups * g]);
            }
        }};
    }
    macro_rules! signed {
        ($signed:ident, $entries:ident($table:ident, $index:ident), $bytes:literal, $groups:literal) => {
            each!(
                $bytes,
                $groups,
                |block, i| parts,
                _mm256_sign_epi8($entries(&tables::$table, $index(block, i)), parts.signs.ones(i)),
                $signed(block)
            )
        };
    }
    macro_rules! iq1 {
        ($scales:ident, $codes:ident, $bytes:literal, $groups:literal) => {
            each!($bytes, $groups, |block, i| parts, $codes(block, i), $scales(block))
        };
    }
    match format {
        Format::IQ2_XXS => signed!(iq2_xxs_signed, four_entries(IQ2_XXS, iq2_xxs_index), 66, 8),
        Format::IQ2_XS => signed!(iq2_xs_signed, four_entries(IQ2_XS, iq2_xs_index), 74, 16),
        Format::IQ2_S => signed!(iq2_s_signed, four_entries(IQ2_S, iq2_s_index), 82, 16),
        Format::IQ3_XXS => signed!(iq3_xxs_signed, eight_entries(IQ3_XXS, iq3_xxs_index), 98, 8),
        Format::IQ3_S => signed!(iq3_s_signed, eight_entries(IQ3_S, iq3_s_index), 110, 8),
        Format::IQ1_S => iq1!(iq1_s_scales, iq1_s_codes, 50, 8),
        Format::IQ1_M => iq1!(iq1_m_scales, iq1_m_codes, 56, 16),
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

#[inline(always)]
fn bytes_of(v: __m256i) -> [u8; 32] {
    // SAFETY: both types have 32 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(v) }
}

//! Vector operations for the kernels that are written once for all SIMD levels; a register has 16
//! floats.

use std::arch::x86_64::*;

pub(super) type V = __m512;
pub(super) const LANES: usize = 16;

macro_rules! vector_ops {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block)+) => {
        $(
            $(#[$doc])*
            #[inline]
            #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
            pub(super) fn $name($($arg: $type),*) -> $result $body
        )+
    };
}

vector_ops! {
    fn zero() -> V { _mm512_setzero_ps() }
    fn splat(v: f32) -> V { _mm512_set1_ps(v) }
    fn add(a: V, b: V) -> V { _mm512_add_ps(a, b) }
    fn mul(a: V, b: V) -> V { _mm512_mul_ps(a, b) }
    /// `a * b + c`
    fn fmadd(a: V, b: V, c: V) -> V { _mm512_fmadd_ps(a, b, c) }
    /// `c - a * b`
    fn fnmadd(a: V, b: V, c: V) -> V { _mm512_fnmadd_ps(a, b, c) }
    /// The larger of a and b; b if either is NaN.
    fn max(a: V, b: V) -> V { _mm512_max_ps(a, b) }
    fn div(a: V, b: V) -> V { _mm512_div_ps(a, b) }
    /// The smaller of a and b; b if either is NaN.
    fn min(a: V, b: V) -> V { _mm512_min_ps(a, b) }
    /// In each lane: a if x is below 0, else b.
    fn where_negative(x: V, a: V, b: V) -> V {
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, zero()), b, a)
    }
    /// `2^n` for the integer n in the low bits of each lane, from -127 (which gives zero) to 127.
    fn power_of_two(n: V) -> V {
        let exponent = _mm512_add_epi32(_mm512_castps_si512(n), _mm512_set1_epi32(127));
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
    }
    /// The sums of the lanes of four vectors, within each quarter.
    fn quarters(a: V, b: V, c: V, d: V) -> V {
        let ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        add(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    }
    /// Pairwise sums of the quarters of `a`, then of `b`.
    fn halves(a: V, b: V) -> V {
        let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        add(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
    }
    fn lane_sums(v: [V; LANES]) -> V {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = v;
        let first = halves(quarters(a, b, c, d), quarters(e, f, g, h));
        halves(first, halves(quarters(i, j, k, l), quarters(m, n, o, p)))
    }
    /// The sum of the lanes, in a fixed order.
    fn total(v: V) -> f32 { _mm512_reduce_add_ps(v) }
    /// [`total`] of four vectors, with the same bits.
    fn four_totals(a: V, b: V, c: V, d: V) -> [f32; 4] {
        let fold = |a: V, b: V| {
            let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
            add(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
        };
        let v = halves(fold(a, b), fold(c, d));
        let v = add(v, _mm512_permute_ps::<0b01_00_11_10>(v));
        let v = add(v, _mm512_permute_ps::<0b10_11_00_01>(v));
        let firsts = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, v));
        // SAFETY: both types have 16 bytes, and every bit pattern is valid.
        unsafe { std::mem::transmute(firsts) }
    }

    /// 64 bytes at `at`.
    fn load_bytes(from: &[u8], at: usize) -> __m512i {
        let part = &from[at..][..64];
        // SAFETY: `part` has 64 bytes.
        unsafe { _mm512_loadu_si512(part.as_ptr().cast()) }
    }
    /// 32 bytes at `at`.
    fn load_half(from: &[u8], at: usize) -> __m256i {
        let part = &from[at..][..32];
        // SAFETY: `part` has 32 bytes.
        unsafe { _mm256_loadu_si256(part.as_ptr().cast()) }
    }
    /// 16 bytes at `at`.
    fn load_quarter(from: &[u8], at: usize) -> __m128i {
        let part = &from[at..][..16];
        // SAFETY: `part` has 16 bytes.
        unsafe { _mm_loadu_si128(part.as_ptr().cast()) }
    }
    fn load_ps(from: &[f32], at: usize) -> V {
        let part = &from[at..][..LANES];
        // SAFETY: `part` has 16 floats.
        unsafe { _mm512_loadu_ps(part.as_ptr()) }
    }
    fn store_ps(to: &mut [f32], at: usize, v: V) -> () {
        let part = &mut to[at..][..LANES];
        // SAFETY: `part` has 16 floats.
        unsafe { _mm512_storeu_ps(part.as_mut_ptr(), v) }
    }

    /// The 16 values at byte `at`, as floats.
    fn widen_f32(from: &[u8], at: usize) -> V { _mm512_castsi512_ps(load_bytes(from, at)) }
    fn widen_f16(from: &[u8], at: usize) -> V { _mm512_cvtph_ps(load_half(from, at)) }
    fn widen_bf16(from: &[u8], at: usize) -> V {
        let wide = _mm512_cvtepu16_epi32(load_half(from, at));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
    fn widen_i8(from: &[u8], at: usize) -> V {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_quarter(from, at)))
    }
    /// The f16 at the beginning of `bytes`, in every lane.
    fn one_scale(bytes: &[u8]) -> V {
        _mm512_cvtph_ps(_mm256_set1_epi16(i16::from_le_bytes([bytes[0], bytes[1]])))
    }
    /// Rounds to the nearest f16, ties to even.
    fn narrow_f16(v: V) -> [half::f16; LANES] {
        let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        // SAFETY: both types have 32 bytes, and every bit pattern is valid.
        unsafe { std::mem::transmute(halves) }
    }
}

/// The entries of `table` for 64 nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn look_up(table: &[i8; 16], nibbles: __m512i) -> __m512i {
    let table = _mm512_broadcast_i32x4(load_quarter(bytemuck::cast_slice(table), 0));
    _mm512_shuffle_epi8(table, nibbles)
}

/// The entries of `table` for the low nibbles of 16 bytes, then for the high nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn look_up_pairs(table: &[i8; 16], pairs: &[u8], codes: &mut [u8]) {
    let pairs = load_quarter(pairs, 0);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(pairs), pairs);
    let table = load_quarter(bytemuck::cast_slice(table), 0);
    let nibbles = _mm256_and_si256(both, _mm256_set1_epi8(15));
    let found = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
    let codes = &mut codes[..32];
    // SAFETY: `codes` has 32 bytes.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), found) }
}

/// Adds `h * (nibble - offset)` to the sums. Each 16 bytes of the row have the low nibbles for one
/// sum and the high nibbles for the next sum.
///
/// One register has the products of all 16 codes. A nibble selects its product from this register,
/// so nibbles are neither masked nor converted.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn add_nibbles<const R: usize>(h: V, row: &[u8], offset: i8, sums: &mut [V; R]) {
    let codes = _mm512_set_ps(
        15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0,
    );
    let products = mul(h, _mm512_sub_ps(codes, splat(f32::from(offset))));
    for u in 0..R / 2 {
        let low = _mm512_cvtepu8_epi32(load_quarter(row, 16 * u));
        let high = _mm512_srli_epi32::<4>(low);
        sums[2 * u] = add(sums[2 * u], _mm512_permutexvar_ps(low, products));
        sums[2 * u + 1] = add(sums[2 * u + 1], _mm512_permutexvar_ps(high, products));
    }
}

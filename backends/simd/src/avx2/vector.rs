//! Vector operations for the kernels that are written once for all SIMD levels; a register has 8
//! floats.

use std::arch::x86_64::*;

pub(super) type V = __m256;
pub(super) const LANES: usize = 8;

macro_rules! vector_ops {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block)+) => {
        $(
            $(#[$doc])*
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            pub(super) fn $name($($arg: $type),*) -> $result $body
        )+
    };
}

vector_ops! {
    fn zero() -> V { _mm256_setzero_ps() }
    fn splat(v: f32) -> V { _mm256_set1_ps(v) }
    fn add(a: V, b: V) -> V { _mm256_add_ps(a, b) }
    fn mul(a: V, b: V) -> V { _mm256_mul_ps(a, b) }
    /// `a * b + c`
    fn fmadd(a: V, b: V, c: V) -> V { _mm256_fmadd_ps(a, b, c) }
    /// `c - a * b`
    fn fnmadd(a: V, b: V, c: V) -> V { _mm256_fnmadd_ps(a, b, c) }
    /// The larger of a and b; b if either is NaN.
    fn max(a: V, b: V) -> V { _mm256_max_ps(a, b) }
    fn div(a: V, b: V) -> V { _mm256_div_ps(a, b) }
    /// The smaller of a and b; b if either is NaN.
    fn min(a: V, b: V) -> V { _mm256_min_ps(a, b) }
    /// In each lane: a if x is below 0, else b.
    fn where_negative(x: V, a: V, b: V) -> V {
        _mm256_blendv_ps(b, a, _mm256_cmp_ps::<_CMP_LT_OQ>(x, zero()))
    }
    /// `2^n` for the integer n in the low bits of each lane, from -127 (which gives zero) to 127.
    fn power_of_two(n: V) -> V {
        let exponent = _mm256_add_epi32(_mm256_castps_si256(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
    }
    /// The sums of the lanes of four vectors, within each half.
    fn halves(a: V, b: V, c: V, d: V) -> V {
        let ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        let (low, high) = (_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
        add(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
    }
    fn lane_sums(v: [V; LANES]) -> V {
        let [a, b, c, d, e, f, g, h] = v;
        let (low, high) = (halves(a, b, c, d), halves(e, f, g, h));
        let first = _mm256_permute2f128_ps::<0x20>(low, high);
        add(first, _mm256_permute2f128_ps::<0x31>(low, high))
    }
    /// The sum of the lanes, in a fixed order: halves, then quarters, then pairs.
    fn total(v: V) -> f32 {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }

    /// 32 bytes at `at`.
    fn load_bytes(from: &[u8], at: usize) -> __m256i {
        let part = &from[at..][..32];
        // SAFETY: `part` has 32 bytes.
        unsafe { _mm256_loadu_si256(part.as_ptr().cast()) }
    }
    /// 16 bytes at `at`.
    fn load_half(from: &[u8], at: usize) -> __m128i {
        let part = &from[at..][..16];
        // SAFETY: `part` has 16 bytes.
        unsafe { _mm_loadu_si128(part.as_ptr().cast()) }
    }
    /// 8 bytes at `at`.
    fn load_quarter(from: &[u8], at: usize) -> __m128i {
        let part = &from[at..][..8];
        // SAFETY: `part` has 8 bytes.
        unsafe { _mm_loadl_epi64(part.as_ptr().cast()) }
    }
    fn load_ps(from: &[f32], at: usize) -> V {
        let part = &from[at..][..LANES];
        // SAFETY: `part` has 8 floats.
        unsafe { _mm256_loadu_ps(part.as_ptr()) }
    }
    fn store_ps(to: &mut [f32], at: usize, v: V) -> () {
        let part = &mut to[at..][..LANES];
        // SAFETY: `part` has 8 floats.
        unsafe { _mm256_storeu_ps(part.as_mut_ptr(), v) }
    }

    /// The 8 values at byte `at`, as floats.
    fn widen_f32(from: &[u8], at: usize) -> V { _mm256_castsi256_ps(load_bytes(from, at)) }
    fn widen_f16(from: &[u8], at: usize) -> V { _mm256_cvtph_ps(load_half(from, at)) }
    fn widen_bf16(from: &[u8], at: usize) -> V {
        let wide = _mm256_cvtepu16_epi32(load_half(from, at));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
    fn widen_i8(from: &[u8], at: usize) -> V {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_quarter(from, at)))
    }
    /// The f16 at the beginning of `bytes`, in every lane.
    fn one_scale(bytes: &[u8]) -> V {
        _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([bytes[0], bytes[1]])))
    }
    /// Rounds to the nearest f16, ties to even.
    fn narrow_f16(v: V) -> [half::f16; LANES] {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
        // SAFETY: both types have 16 bytes, and every bit pattern is valid.
        unsafe { std::mem::transmute(halves) }
    }
}

/// The low nibbles of 16 bytes, then the high nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles(bytes: &[u8], at: usize) -> __m256i {
    let both = _mm256_broadcastsi128_si256(load_half(bytes, at));
    let both = _mm256_srlv_epi64(both, _mm256_set_epi64x(4, 4, 0, 0));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// The entries of `table` for 32 nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn look_up(table: &[i8; 16], nibbles: __m256i) -> __m256i {
    let table = load_half(bytemuck::cast_slice(table), 0);
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles)
}

/// The entries of `table` for the low nibbles of 16 bytes, then for the high nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn look_up_pairs(table: &[i8; 16], pairs: &[u8], codes: &mut [u8]) {
    let (found, codes) = (look_up(table, nibbles(pairs, 0)), &mut codes[..32]);
    // SAFETY: `codes` has 32 bytes.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), found) }
}

/// Adds `h * (nibble - offset)` to the sums. Each 16 bytes of the row have the low nibbles for two
/// sums and the high nibbles for the next two sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_nibbles<const R: usize>(h: V, row: &[u8], offset: i8, sums: &mut [V; R]) {
    let offset = _mm256_set1_epi32(i32::from(offset));
    let values = |nibbles| _mm256_cvtepi32_ps(_mm256_sub_epi32(nibbles, offset));
    for u in 0..R / 4 {
        for part in 0..2 {
            let pairs = _mm256_cvtepu8_epi32(load_quarter(row, 16 * u + 8 * part));
            let low = values(_mm256_and_si256(pairs, _mm256_set1_epi32(15)));
            let high = values(_mm256_srli_epi32::<4>(pairs));
            let (low_sum, high_sum) = (4 * u + part, 4 * u + 2 + part);
            sums[low_sum] = fmadd(h, low, sums[low_sum]);
            sums[high_sum] = fmadd(h, high, sums[high_sum]);
        }
    }
}

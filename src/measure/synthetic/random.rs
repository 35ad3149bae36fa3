//! Random numbers that depend on seed and position, not on the order of requests.
//!
//! Source: the mixing function of SplitMix64 (Steele, Lea, Flood 2014) over a counter.

/// The golden ratio in 64 bits: successive counters differ in about half of their bits.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Mean and deviation of the sum of four numbers of 16 bits.
const MEAN: f32 = 131_070.0;
const DEVIATION: f32 = 37_837.2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stream(u64);

impl Stream {
    pub(super) fn new(seed: u64, part: u64, layer: u64) -> Stream {
        Stream(mix(mix(mix(seed ^ STEP) ^ part) ^ layer))
    }

    #[inline]
    pub(super) fn bits(self, at: u64) -> u64 {
        mix(self.0.wrapping_add(at.wrapping_mul(STEP)))
    }

    /// A number with mean 0, deviation 1 and magnitude up to 3.5: the sum of four uniform numbers,
    /// which is close enough to normal.
    #[inline]
    pub(super) fn normal(self, at: u64) -> f32 {
        const LANES: u64 = 0x0000_ffff_0000_ffff;
        let bits = self.bits(at);
        let pairs = (bits & LANES) + ((bits >> 16) & LANES);
        let sum = (pairs as u32 + (pairs >> 32) as u32) as i32;
        (sum as f32 - MEAN) * (1.0 / DEVIATION)
    }

    /// `out[i] = deviation * normal(first + i)`.
    pub(super) fn fill(self, first: u64, deviation: f32, out: &mut [f32]) {
        for (at, out) in (first..).zip(out) {
            *out = deviation * self.normal(at);
        }
    }

    /// The numbers below `n`, shuffled.
    pub(super) fn shuffled(self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        for last in (1..n).rev() {
            let other = below(self.bits(last as u64), last + 1);
            order.swap(last, other);
        }
        order
    }
}

/// A number below `n`, which is less than 2^32, from the upper half of `bits`.
#[inline]
pub(super) fn below(bits: u64, n: usize) -> usize {
    (((bits >> 32) * n as u64) >> 32) as usize
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_match_a_sum_of_four_uniforms() {
        let stream = Stream::new(1, 2, 3);
        let n = 1 << 16;
        let values: Vec<f64> = (0..n).map(|i| f64::from(stream.normal(i))).collect();
        let moment = |k| values.iter().map(|v| v.powi(k)).sum::<f64>() / n as f64;
        assert!(moment(1).abs() < 0.02 && (moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
        assert!((moment(4) - 2.7).abs() < 0.1, "{}", moment(4));
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        let mut order = Stream::new(1, 1, 1).shuffled(1000);
        assert_ne!(order[..4], [0, 1, 2, 3]);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }
}

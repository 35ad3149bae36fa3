//! Orders neurons so that those that fire together are adjacent.
//!
//! Neurons are sorted by heat (how often they fire) and divided into bands, so that hot neurons
//! stay together. A band starts with its hottest neuron. The next neuron is always the one with the
//! set of sampled tokens most similar to the set of the previous neuron (intersection over union).
//! Neurons that fired for no sampled token come last, by heat.

use std::cmp::Reverse;

use super::LayerProfile;

/// Neurons per band. The work is proportional to this number times the number of neurons.
const BAND_LEN: usize = 512;

/// The neurons of a layer in order. Each run of `width` neurons (an expert's, or all) stays
/// together.
pub(super) fn order(layer: &LayerProfile, width: usize) -> Vec<u32> {
    let sets = FiringSets::new(layer);
    let mut order = Vec::with_capacity(layer.fires.len());
    for first in (0..layer.fires.len()).step_by(width.max(1)) {
        let end = (first + width).min(layer.fires.len());
        let mut by_heat: Vec<u32> = (first as u32..end as u32).collect();
        by_heat.sort_by_key(|&n| (sets.len(n) == 0, Reverse(layer.fires[n as usize]), n));
        for band in by_heat.chunks(BAND_LEN) {
            sets.append_similar(band, &mut order);
        }
    }
    order
}

/// For each neuron, the sampled tokens for which it fired.
struct FiringSets {
    n_words: usize,
    bits: Vec<u64>,
}

impl FiringSets {
    fn new(layer: &LayerProfile) -> FiringSets {
        let n_words = layer.samples.len().div_ceil(64).max(1);
        let mut bits = vec![0; layer.fires.len() * n_words];
        for (number, sample) in layer.samples.iter().enumerate() {
            for (word, &fired) in sample.iter().enumerate() {
                let mut left = fired;
                while left != 0 {
                    let neuron = word * 64 + left.trailing_zeros() as usize;
                    if let Some(to) = bits.get_mut(neuron * n_words + number / 64) {
                        *to |= 1 << (number % 64);
                    }
                    left &= left - 1;
                }
            }
        }
        FiringSets { n_words, bits }
    }

    fn set(&self, neuron: u32) -> &[u64] {
        &self.bits[neuron as usize * self.n_words..][..self.n_words]
    }

    fn len(&self, neuron: u32) -> u32 {
        self.set(neuron).iter().map(|word| word.count_ones()).sum()
    }

    fn shared(&self, a: u32, b: u32) -> u32 {
        self.set(a).iter().zip(self.set(b)).map(|(a, b)| (a & b).count_ones()).sum()
    }

    /// Appends the neurons of `band`, which is sorted by heat, so that similar neurons are
    /// adjacent.
    fn append_similar(&self, band: &[u32], order: &mut Vec<u32>) {
        let mut left: Vec<(u32, u32)> = band.iter().map(|&n| (n, self.len(n))).collect();
        let mut at = 0;
        while !left.is_empty() {
            let (neuron, len) = left.remove(at);
            order.push(neuron);
            at = 0;
            if len == 0 {
                continue;
            }
            let mut best = (0u64, 1u64);
            for (i, &(other, n)) in left.iter().enumerate() {
                let shared = self.shared(neuron, other);
                let union = u64::from(len + n - shared);
                // Of equally similar neurons, the hottest one, which comes first, is next.
                if u64::from(shared) * best.1 > best.0 * union {
                    (at, best) = (i, (u64::from(shared), union));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neurons_that_fire_together_are_adjacent() {
        // Neurons 0, 3, 6.. fire for the first tokens, 1, 4, 7.. for the last ones, 2, 5, 8..
        // never.
        let samples = (0..100).map(|t| {
            (0..2).fold(vec![0u64; 2], |mut bits, word| {
                for bit in 0..64 {
                    let kind = (word * 64 + bit) % 3;
                    let fires = kind == if t < 60 { 0 } else { 1 };
                    bits[word] |= u64::from(fires && word * 64 + bit < 90) << bit;
                }
                bits
            })
        });
        let samples: Vec<Vec<u64>> = samples.collect();
        let fires = (0..90).map(|i| [60, 40, 0][i % 3]).collect();
        let layer = LayerProfile { fires, samples, ..LayerProfile::default() };
        let found = order(&layer, 90);
        let kinds: Vec<u32> = found.iter().map(|n| n % 3).collect();
        assert_eq!(kinds, [vec![0; 30], vec![1; 30], vec![2; 30]].concat());
        let in_groups = order(&layer, 30);
        assert!(in_groups[..30].iter().all(|&n| n < 30));
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..90).collect::<Vec<u32>>());
    }
}

//! What a token needs of each tier, by the probabilities of the units.

use hal::Bytes;
use store::UnitId;

use super::Tiers;
use super::plan::{NeuronUnits, Parts, Plan};
use super::units::Units;

impl Plan {
    /// Sizes of the tiers, and what a token needs, from the probability of each unit.
    pub(super) fn estimate(
        &self,
        store: &impl Units,
        pinned: &[UnitId],
        parts: &Parts<'_>,
    ) -> Tiers {
        let sum =
            |units: &[UnitId]| units.iter().map(|&unit| store.unit_bytes(unit)).sum::<Bytes>();
        let pinned = sum(pinned);
        let cache = store.capacity() - pinned;
        let (mut chunks, mut chosen, mut total) = (Bytes(0), Vec::new(), pinned);
        // Bytes of single neurons, and the pages that they take one by one.
        let (mut rows, mut by_profile) = ([Bytes(0); 2], false);
        for (layer, units) in self.layers.iter().enumerate() {
            chunks += sum(&units.chunks);
            let here = self.chosen_here(layer, parts);
            let is_row = matches!(units.neurons, NeuronUnits::Rows(_));
            let bytes = sum(&here);
            total += sum(&units.chunks);
            if is_row {
                let own = parts.neurons(layer);
                rows[0] += own.iter().map(|matrix| matrix.piece.memory()).sum();
                rows[1] += bytes;
            } else {
                total += bytes;
            }
            let experts = parts.model.layers[layer].experts();
            let usual = experts.map_or(1.0, |by| by.n_used as f64 / by.n as f64);
            let probability: Vec<f64> = here.iter().map(|&unit| store.probability(unit)).collect();
            let known = probability.iter().any(|share| *share > 0.0);
            by_profile |= known;
            for (number, (&unit, share)) in here.iter().zip(probability).enumerate() {
                let share = match (known, is_row) {
                    (true, _) => share,
                    (false, true) => usual_use(number, here.len(), parts.density),
                    (false, false) => usual,
                };
                chosen.push(Chosen { share, bytes: store.unit_bytes(unit), is_row });
            }
        }
        // The cache holds the most used units.
        chosen.sort_by(|a, b| b.share.total_cmp(&a.share));
        let (mut room, mut read, mut needed) = (cache.0, chunks.0 as f64, 0.0);
        let (mut read_by_prompt, mut read_rows, mut row_reads) = (read, 0.0, 0.0);
        let of_prompt = |share: f64| 1.0 - (1.0 - share.min(1.0)).powf(parts.n_prompt as f64);
        for Chosen { share, bytes, is_row } in chosen {
            needed += share * bytes.0 as f64;
            match room.checked_sub(bytes.0) {
                Some(rest) => room = rest,
                None => {
                    read += share * bytes.0 as f64;
                    read_by_prompt += of_prompt(share) * bytes.0 as f64;
                    if is_row {
                        read_rows += share * bytes.0 as f64;
                        row_reads += share;
                    }
                }
            }
        }
        let needed = Bytes(needed as u64) + chunks + pinned;
        total += rows[0];
        let held = match rows {
            [_, Bytes(0)] => cache,
            [bytes, pages] => Bytes((cache.0 as f64 * bytes.0 as f64 / pages.0 as f64) as u64),
        };
        Tiers {
            weights: total,
            pinned,
            cache: held.min(total - pinned),
            read_per_token: Bytes(read as u64),
            read_ahead: chunks,
            rows_per_token: Bytes(read_rows as u64),
            row_reads_per_token: row_reads,
            read_per_prompt: Bytes(read_by_prompt as u64),
            needed_per_token: needed,
            by_profile,
            ..Tiers::default()
        }
    }
}

/// A unit that some tokens choose, for the estimate.
struct Chosen {
    /// The share of tokens that use it.
    share: f64,
    bytes: Bytes,
    is_row: bool,
}

/// The share of tokens that use the neuron with rank `i` of `n`, if it is not known: a quarter of
/// the neurons accounts for four fifths of the uses, as published for models with ReLU (PowerInfer,
/// Song et al. 2024: 26 % and 80 % for ReluLLaMA-70B). `density` is the mean.
fn usual_use(i: usize, n: usize, density: f64) -> f64 {
    const EXPONENT: f64 = 0.166;
    let below = |rank: usize| (rank as f64 / n.max(1) as f64).powf(EXPONENT);
    (density * n as f64 * (below(i + 1) - below(i))).min(1.0)
}

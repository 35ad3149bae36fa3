//! Weights of the CPU that are partly on disk: before a layer's neurons run, the units that its
//! tokens need are made resident, and those of the next layer are read ahead.
//!
//! What all tokens need is pinned first; if it does not fit, the same share of each layer is pinned,
//! and the rest is read in turn, layer after layer, in chunks. The experts of a MoE block are units
//! of their own, kept by how often they are used. A program is cut at a *stop* where units must be
//! in memory: before a layer, and after a router. Kernels know nothing of this: a unit that is not
//! resident is never read.
//!
//! Single neurons that a predictor chooses are not units: their rows are 2 KiB in three places of
//! the file, and a disk that reads 1 GB/s in large blocks reads a tenth of that in such blocks
//! (docs/measurements/tiers.md).

mod plan;
mod weights;

use std::sync::atomic::AtomicBool;

use hal::{Bytes, Reservation};
use store::{Store, StoreStats, UnitId};

use crate::error::Result;
pub use plan::least_paged;
pub(crate) use plan::{LayerUnits, NeuronUnits, Parts, Plan};
pub(crate) use weights::{Owner, PagedWeights};

/// A guessed expert is read ahead if its weight is at least this part of the token's highest one.
const SURE: f32 = 0.75;

/// Sizes of the tiers below the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tiers {
    /// Bytes of all weights that the CPU uses.
    pub weights: Bytes,
    /// Bytes of weights that are always in memory.
    pub pinned: Bytes,
    /// Bytes of memory for the other weights.
    pub cache: Bytes,
    /// Bytes that a token reads from disk by the estimate: of a dense model, everything that is not
    /// pinned; of experts, the share that is not resident, by the profile, or as if all experts
    /// were used equally often.
    pub read_per_token: Bytes,
    /// Bytes of weights that a token needs.
    pub needed_per_token: Bytes,
}

impl Tiers {
    /// Bytes of weights that stay on disk at any time.
    #[must_use]
    pub fn on_disk(&self) -> Bytes {
        self.weights - self.pinned - self.cache
    }
}

/// A place where a layer's programs are cut, because weights must be in memory from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Before the layer.
    Layer,
    /// After the router, before the experts.
    Router,
}

/// The stops of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stops {
    /// Whether the layer has a [`Stop::Layer`].
    pub(crate) layer: bool,
    /// The stop inside the layer; `None` without one.
    pub(crate) inside: Option<Stop>,
}

impl Stops {
    pub(crate) fn any(self) -> bool {
        self.layer || self.inside.is_some()
    }
}

/// The neurons that the tokens of a step need of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needed<'a> {
    /// Nothing but what all tokens need.
    Layer,
    /// The experts with a weight other than 0, `[n_tokens, n_expert]`.
    Experts(&'a [f32]),
}

/// The weights of a loaded model that are partly on disk.
#[derive(Debug)]
pub(crate) struct Paging {
    store: Store,
    layers: Vec<LayerUnits>,
    /// The layers with a stop before them, in order.
    stops: Vec<usize>,
    needed: Vec<UnitId>,
    ahead: Vec<UnitId>,
    counts: Vec<usize>,
    /// The value of the store's statistics at the last [`Paging::take_stats`].
    taken: StoreStats,
    tiers: Tiers,
    /// The memory of the resident weights in the CPU's ledger.
    _memory: Reservation,
}

impl Paging {
    pub(crate) fn new(store: Store, plan: Plan, memory: Reservation) -> Paging {
        let Plan { layers, tiers } = plan;
        let stops = (0..layers.len()).filter(|&at| layers[at].stops().layer).collect();
        let (needed, ahead, counts) = Default::default();
        let taken = store.stats();
        Paging { store, layers, stops, needed, ahead, counts, taken, tiers, _memory: memory }
    }

    /// Where the programs of all layers are cut.
    pub(crate) fn all_stops(&self) -> Vec<Stops> {
        self.layers.iter().map(LayerUnits::stops).collect()
    }

    /// What the store has done since the last call.
    pub(crate) fn take_stats(&mut self) -> StoreStats {
        let now = self.store.stats();
        now - std::mem::replace(&mut self.taken, now)
    }

    /// Sizes of the tiers, and what a token needs of them.
    pub(crate) fn tiers(&self) -> Tiers {
        self.tiers
    }

    /// Counts the tokens of a step.
    pub(crate) fn count_tokens(&mut self, n_tokens: usize) {
        self.store.advance(n_tokens);
    }

    /// Makes resident what the tokens of a step need of `layer` up to its next stop, and reads
    /// ahead what all tokens need of the next layers.
    ///
    /// # Errors
    /// Errors of reading, and of an interrupt.
    pub(crate) fn prepare(
        &mut self,
        layer: usize,
        by_tokens: Needed<'_>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let Paging { store, layers, needed, counts, .. } = self;
        needed.clear();
        let at = &layers[layer];
        // Chunks have no score: the chunk used last is needed latest.
        needed.extend_from_slice(&at.chunks);
        needed.iter().for_each(|&unit| store.touch(unit, 0));
        if let (Needed::Experts(weights), NeuronUnits::Experts(experts)) = (by_tokens, &at.neurons)
        {
            counts.clear();
            counts.resize(experts.len(), 0);
            for token in weights.chunks_exact(experts.len().max(1)) {
                let used = counts.iter_mut().zip(token).filter(|(_, weight)| **weight != 0.0);
                used.for_each(|(count, _)| *count += 1);
            }
            for (&unit, &n) in experts.iter().zip(&*counts).filter(|(_, n)| **n > 0) {
                store.touch(unit, n);
                needed.push(unit);
            }
        }
        store.ensure(needed, interrupt)?;
        self.read_ahead(layer);
        Ok(())
    }

    /// Makes all weights of `layer` resident, for programs that compute all experts.
    pub(crate) fn prepare_all(&mut self, layer: usize, interrupt: &AtomicBool) -> Result<()> {
        let Paging { store, layers, needed, .. } = self;
        let Some(at) = layers.get(layer).filter(|at| at.stops().any()) else { return Ok(()) };
        needed.clear();
        needed.extend_from_slice(&at.chunks);
        needed.extend_from_slice(at.neurons.units());
        Ok(store.ensure(needed, interrupt)?)
    }

    /// Orders what all tokens need of the layers after `layer`, as far as there is room.
    fn read_ahead(&mut self, layer: usize) {
        let Paging { store, layers, stops, .. } = self;
        let at = stops.partition_point(|&stop| stop <= layer);
        let next = stops[at..].iter().chain(&stops[..at.saturating_sub(1)]);
        // More than the next two layers cannot be read while this one computes.
        for &next in next.take(2) {
            store.look_ahead(&layers[next].chunks);
        }
    }

    /// Orders the experts of the layer after `layer` that are most likely needed, if it has experts
    /// on disk. `guess` are the weights of its router for the present residual, `[n_tokens,
    /// n_expert]`.
    ///
    /// Only the highest weights are certain enough: a wrong guess takes bandwidth from reads that
    /// are needed.
    pub(crate) fn read_experts_ahead(&mut self, layer: usize, guess: &[f32]) {
        let Paging { store, layers, ahead, .. } = self;
        let Some(NeuronUnits::Experts(experts)) = layers.get(layer + 1).map(|next| &next.neurons)
        else {
            return;
        };
        ahead.clear();
        for token in guess.chunks_exact(experts.len().max(1)) {
            let highest = token.iter().copied().fold(0.0, f32::max);
            let likely = token.iter().zip(experts);
            let likely = likely.filter(|(weight, _)| **weight > 0.0 && **weight >= SURE * highest);
            ahead.extend(likely.map(|(_, &unit)| unit));
        }
        ahead.sort_unstable();
        ahead.dedup();
        store.look_ahead(ahead);
    }
}

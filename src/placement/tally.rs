//! Sums over a run of layers, kept up to date while layers cease to be whole one by one: whether a
//! candidate fits, and a time that it takes at least, without a pass over the layers.
//!
//! Bytes are exact. Times are summed in another order than those of a candidate ([`RunFiller`]), so
//! they are only used with a bound on their rounding.

use std::ops::Range;

use hal::Bytes;

use super::fill::{OtherLayers, PlacedLayer, RunFiller};
use super::front::Cost;

/// The layers of a run, and which of them are whole.
#[derive(Clone, Debug)]
pub(super) struct WholeLayers {
    range: Range<usize>,
    is_whole: Vec<bool>,
    /// For each layer 0 if it is whole, and otherwise all bits.
    others: Vec<u64>,
}

impl WholeLayers {
    pub(super) fn new(range: &Range<usize>, wholes: &[usize]) -> WholeLayers {
        let (is_whole, others) = (vec![false; range.len()], vec![u64::MAX; range.len()]);
        let mut layers = WholeLayers { range: range.clone(), is_whole, others };
        wholes.iter().for_each(|&layer| layers.set(layer, true));
        layers
    }

    pub(super) fn set(&mut self, layer: usize, is_whole: bool) {
        let at = layer - self.range.start;
        self.is_whole[at] = is_whole;
        self.others[at] = if is_whole { 0 } else { u64::MAX };
    }

    pub(super) fn contains(&self, layer: usize) -> bool {
        self.is_whole[layer - self.range.start]
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// The sum of the values of the layers that are not whole; `values` has one for each layer of
    /// the model.
    pub(super) fn sum_of_others(&self, values: &[u64]) -> u64 {
        let values = values[self.range.clone()].iter().zip(&self.others);
        values.map(|(value, mask)| value & mask).sum()
    }
}

/// The sums of one way to place the layers that are not whole.
#[derive(Clone, Debug)]
pub(super) struct Tally<'a> {
    filler: &'a RunFiller<'a>,
    pub(super) others: OtherLayers,
    /// Each layer of the model if it is not whole.
    places: &'a [PlacedLayer],
    /// Bytes of all layers on the device. The type has room for wrong sizes.
    used: u128,
    n_split: usize,
    /// Moves of the residual between neighbours.
    n_moves: usize,
    /// Neighbours that must have one home but have two.
    n_parted: usize,
    least: Cost,
    /// The sum of all terms of `least` without their signs, and their number.
    gross: Cost,
    n_terms: usize,
}

impl<'a> Tally<'a> {
    pub(super) fn new(
        filler: &'a RunFiller<'a>,
        others: OtherLayers,
        layers: &WholeLayers,
    ) -> Tally<'a> {
        let (least, gross) = (Cost::default(), Cost::default());
        let (n_split, n_moves, n_parted, n_terms, used) = (0, 0, 0, 0, 0);
        let found = filler.others.iter().find(|(way, _)| *way == others);
        let places = found.map_or(&[][..], |(_, places)| places.as_slice());
        let mut tally = Tally {
            filler,
            others,
            places,
            used,
            n_split,
            n_moves,
            n_parted,
            least,
            gross,
            n_terms,
        };
        let mut before = None;
        for layer in layers.range().clone() {
            let placed = *tally.placed(layer, layers);
            tally.add(&placed);
            if before.is_some_and(|before| before != placed.is_home) {
                tally.part(layer);
            }
            before = Some(placed.is_home);
        }
        tally
    }

    /// A layer of the candidate.
    pub(super) fn placed(&self, layer: usize, layers: &WholeLayers) -> &PlacedLayer {
        if layers.contains(layer) { &self.filler.whole[layer] } else { &self.places[layer] }
    }

    /// Counts that `layer`, one of the whole layers, ceases to be whole; `layers` still has it.
    pub(super) fn release(&mut self, layer: usize, layers: &WholeLayers) {
        let (old, new) = (self.filler.whole[layer], self.places[layer]);
        self.used -= u128::from(old.bytes);
        self.least.token -= old.least.token;
        self.least.prompt -= old.least.prompt;
        self.gross = self.gross + old.least;
        self.n_terms += 1;
        self.add(&new);
        if new.is_home {
            return;
        }
        let range = layers.range();
        for (neighbour, second) in [(layer.wrapping_sub(1), layer), (layer + 1, layer + 1)] {
            if !range.contains(&neighbour) {
                continue;
            }
            if self.placed(neighbour, layers).is_home {
                self.part(second);
            } else {
                self.n_moves -= 1;
                self.n_parted -= usize::from(self.filler.shares_home(second));
            }
        }
    }

    /// The bytes that the candidate leaves of `room`, before groups are added to split layers;
    /// `None` if it does not fit, parts layers that must have one home, or does not begin on the
    /// device.
    pub(super) fn left(&self, room: Bytes, layers: &WholeLayers) -> Option<u64> {
        let begins = self.placed(layers.range().start, layers).is_home;
        let shared = if self.n_split > 0 { self.filler.facts().hand_offs } else { Bytes(0) };
        let left = u128::from(room.0).checked_sub(self.used + u128::from(shared.0))?;
        // The difference is at most `room`.
        (begins && self.n_parted == 0).then_some(left as u64)
    }

    /// Whether the last layer is on the device.
    pub(super) fn ends_on_device(&self, layers: &WholeLayers) -> bool {
        self.placed(layers.range().end - 1, layers).is_home
    }

    /// A cost that the candidate has at least, however the sum of its layers is rounded.
    pub(super) fn least(&self) -> Cost {
        let moves = self.filler.move_time();
        let bound = |least: f64, gross: f64, each: f64| {
            let moves = self.n_moves as f64 * each;
            let n = (self.n_terms + self.n_moves + 8) as f64;
            least + moves - 4.0 * n * f64::EPSILON * (gross + moves)
        };
        Cost {
            token: bound(self.least.token, self.gross.token, moves.token),
            prompt: bound(self.least.prompt, self.gross.prompt, moves.prompt),
        }
    }

    fn add(&mut self, placed: &PlacedLayer) {
        self.used += u128::from(placed.bytes);
        self.n_split += usize::from(placed.is_split);
        self.least = self.least + placed.least;
        self.gross = self.gross + placed.least;
        self.n_terms += 1;
    }

    /// Counts two neighbours with different homes, of which `second` is the second.
    fn part(&mut self, second: usize) {
        self.n_moves += 1;
        self.n_parted += usize::from(self.filler.shares_home(second));
    }
}

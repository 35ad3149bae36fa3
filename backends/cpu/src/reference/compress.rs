//! Compressed keys of blocks, and lists of them.

use hal::op::{BlockList, CACHE_ROW, CompressKeys, ListBlocks, NO_POSITION, Pairing, block_row};
use hal::{BatchView, Operand, Tensor};

use super::Memory;
use super::operands::{Step, floats, row, write_cache_row, write_row, write_words};

pub(super) fn compress_keys(op: &CompressKeys<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    let [ape, norm, freqs] = [&op.ape, &op.norm, &op.freqs].map(|tensor| floats(memory, tensor));
    let (width, n, d) = (op.ape.desc().n_cols, op.n_positions(), norm.len());
    for t in 0..step.n_tokens(op.values.desc().n_rows) {
        let view = step.view();
        let (seq, pos) = (view.seqs()[t] as usize, view.positions()[t] as usize);
        // The tokens of a sequence are in ascending order, so the state has all positions before.
        let mut state = row(memory, &op.state, seq);
        let slot = pos % n * 2 * width;
        state[slot..][..width].copy_from_slice(&row(memory, &op.values, t));
        state[slot + width..][..width].copy_from_slice(&row(memory, &op.gates, t));
        write_row(memory, &op.state, seq, &state);
        if !(pos + 1).is_multiple_of(op.ratio) {
            continue;
        }
        let value = |i: usize| {
            // Position in the block and first column of each position that takes part.
            let positions = (pos + 1).saturating_sub(n)..pos + 1;
            let column = |p: usize| if p / op.ratio == pos / op.ratio { width - d + i } else { i };
            let at = |p: usize| (p % n * 2 * width + column(p), p % op.ratio * width + column(p));
            let gate = |(at, ape_at): (usize, usize)| {
                f64::from(state[at + width]) + f64::from(ape[ape_at])
            };
            let places: Vec<(usize, usize)> = positions.map(at).collect();
            let max = places.iter().map(|&at| gate(at)).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = places.iter().map(|&at| (gate(at) - max).exp()).collect();
            let sum: f64 =
                weights.iter().zip(&places).map(|(w, at)| w * f64::from(state[at.0])).sum();
            sum / weights.iter().sum::<f64>()
        };
        let mut key: Vec<f64> = (0..d).map(value).collect();
        let mean = key.iter().map(|x| x * x).sum::<f64>() / d as f64;
        let factor = (mean + f64::from(op.eps)).sqrt().recip();
        key.iter_mut().zip(&norm).for_each(|(x, &w)| *x *= factor * f64::from(w));
        rotate(&mut key, &freqs, op.pairing, (pos + 1 - op.ratio) as f32);
        let key: Vec<f32> = key.into_iter().map(|x| x as f32).collect();
        let at = block_row(view.kv_rows()[t] as usize, op.ratio);
        write_cache_row(memory, &op.cache.k, at, &key);
    }
}

/// Rotates the last values of a key.
fn rotate(key: &mut [f64], freqs: &[f32], pairing: Pairing, pos: f32) {
    let n_rot = 2 * freqs.len();
    let first = key.len() - n_rot;
    let key = &mut key[first..];
    for (j, freq) in freqs.iter().enumerate() {
        let (first, second) = match pairing {
            Pairing::Adjacent => (2 * j, 2 * j + 1),
            Pairing::Halves => (j, j + n_rot / 2),
        };
        let (sin, cos) = f64::from(pos * freq).sin_cos();
        let (a, b) = (key[first], key[second]);
        (key[first], key[second]) = (a * cos - b * sin, a * sin + b * cos);
    }
}

pub(super) fn list_blocks(op: &ListBlocks<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    for t in 0..step.n_tokens(op.selected.desc().n_rows) {
        let n_blocks = (step.view().positions()[t] as usize + 1) / op.ratio;
        let mut words = list(&step.view(), t, op.list, op.ratio, &mut (0..n_blocks));
        words.resize(op.selected.desc().n_cols, NO_POSITION);
        write_words(memory, &op.selected.rows(t..t + 1), &words);
    }
}

/// The window of token `t` and the rows of `blocks`.
pub(super) fn list(
    view: &BatchView<'_>,
    t: usize,
    list: BlockList,
    ratio: usize,
    blocks: &mut dyn Iterator<Item = usize>,
) -> Vec<u32> {
    let (seq, end) = (view.seqs()[t] as usize, view.positions()[t] as usize + 1);
    let window = end.saturating_sub(list.window)..end;
    let row = |block: usize| {
        let last = view.kv_row(seq, (block + 1) * ratio - 1);
        (list.first_row + block_row(last, ratio)) as u32 | CACHE_ROW
    };
    window.map(|p| p as u32).chain(blocks.map(row)).collect()
}

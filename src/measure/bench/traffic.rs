//! Bytes read per generated token.
//!
//! The count assumes that nothing is cached (a model that fits in a cache seems to read more than
//! the memory bandwidth allows) and includes each of these once:
//! - one row of the token embedding, of the learned positions and of the per-layer embeddings, and
//!   the projection of the per-layer embeddings; the norms; q, k, v and output of every layer with
//!   their biases;
//! - keys and values of the positions that the token attends to, once per layer that reads them;
//!   the recurrent state of its sequence;
//! - the output norm and matrix;
//! - all matrices of a dense feed-forward block, or the experts that a token uses; the shared
//!   expert and the router;
//! - in a block that skips neurons, with a fraction `d` of active neurons: its biases; the whole
//!   gate (in a block without gate, the whole up matrix), whose products decide which neurons are
//!   active, or, with a predictor, the predictor's two matrices, the slot table and only the listed
//!   fraction of that matrix; and the fraction `d` of the rows of the other matrices. If down was
//!   transposed at load, its scales are in tables with one row for each group of `g` neurons. A row
//!   of a table is read if any neuron of its group is active, which is estimated as the fraction
//!   `1 - (1 - d)^g`: correct for neurons that fire independently, too high for neurons that fire
//!   together.
//!
//! `d` is the mean over layers and tokens. Activations, partial sums and writes are not counted.

use hal::format::{Format, TransposedLayout};
use hal::op::Window;
use hal::{HostRows, KvRows, TensorDesc};

use engine::{Engine, index_format, state_bytes};
use model::{Attention, Ffn, Sparse};

use super::Test;

/// The traffic of one model with one set of options.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Bytes read for every token.
    always: f64,
    /// The feed-forward blocks that skip neurons; empty if no block does.
    blocks: Vec<SkippingFfn>,
    /// Bytes of gate, or of up without gate, in layers that skip neurons.
    gates: f64,
    /// Per cache of a layer: bytes of keys and values per position, and the sliding window or the
    /// most selected positions, if any.
    positions: Vec<(f64, Option<usize>)>,
}

/// The matrices of a feed-forward block whose traffic depends on the density: all except gate.
#[derive(Clone, Copy, Debug)]
pub struct SkippingFfn {
    /// Bytes of the rows read in proportion to the density.
    rows: f64,
    /// Bytes of the tables, and the number of neurons that share a row of them.
    tables: f64,
    group: i32,
    /// Fraction of the neurons that belong to the experts of a token; other experts are not read.
    used: f64,
}

impl Traffic {
    /// The traffic of a model as `engine` runs it.
    #[must_use]
    pub fn new(engine: &Engine) -> Traffic {
        let (model, kv_formats) = (engine.model(), engine.options().kv_formats);
        let embedding = size(&model.token_embd) / model.n_vocab().max(1) as f64;
        let position = model.positions.as_ref();
        let position = position.map_or(0.0, |p| size(&p.rows) / p.rows.desc().n_rows.max(1) as f64);
        let per_layer = model.per_layer.as_ref().map_or(0.0, |by| {
            size(&by.table) / model.n_vocab().max(1) as f64 + size(&by.proj.w) + size(&by.norm)
        });
        let mut always = embedding + position + per_layer + model.output.as_ref().map_or(0.0, size);
        let norm = model.output_norm.iter();
        let norm = norm.flat_map(|norm| [&norm.w].into_iter().chain(&norm.bias));
        always += norm.chain(&model.output_bias).map(size).sum::<f64>();
        always += model.ngrams.as_ref().map_or(0.0, |by| by.bytes_per_token() as f64);
        let (mut blocks, mut gates) = (Vec::new(), 0.0);
        for (i, layer) in model.layers.iter().enumerate() {
            layer.frame.for_each(&mut |_, part| always += size(part));
            always += state_bytes(layer).0 as f64;
            let Some(ffn) = &layer.ffn else { continue };
            let used = ffn.share_used();
            always += used * ffn.biases().map(size).sum::<f64>();
            always += engine.predictor_bytes(i).0 as f64;
            let Ffn { gate, up, down, down_by_neuron, .. } = ffn;
            if engine.is_sparse() {
                let (tested, sparse_up) = match gate {
                    Some(gate) => (gate, Some(up.w.desc())),
                    None => (up, None),
                };
                gates += size(&tested.w);
                let mut down = down.w.desc();
                if let Some(n) = ffn.n_expert() {
                    (down.n_rows, down.n_cols) = (down.n_rows / n, down.n_cols * n);
                }
                let block = SkippingFfn::new(sparse_up, down, *down_by_neuron);
                blocks.push(SkippingFfn { used, ..block });
            } else {
                let matrices = ffn.matrices().map(|(_, rows)| size(rows));
                always += used * matrices.sum::<f64>();
            }
        }
        let value = |format: Format| format.block_bytes() as f64 / format.block_values() as f64;
        let position = |by: &Attention| {
            let KvRows { k, v } = by.sizes.cached();
            let keys = k as f64 * value(kv_formats.k);
            let values = v.map_or(0.0, |v| v as f64 * value(kv_formats.v));
            let selected = by.sparse.as_ref().map(Sparse::n_selected);
            (keys + values, by.sizes.window.map(Window::size).or(selected))
        };
        // An indexer reads its keys of all positions, or of all blocks.
        let index = |by: &Attention| {
            let pool = by.sparse.as_ref().map_or(1, |sparse| sparse.pool);
            let width = by.indexer().map(|indexer| indexer.d_head as f64 / pool as f64);
            width.map(|width| (width * value(index_format(kv_formats.k)), None))
        };
        let compressed = |by: &Attention| {
            let blocks = by.blocks()?;
            let keys = by.sizes.cached().k as f64 * value(kv_formats.k);
            let most = blocks.indexer.as_ref().map(|by| by.top_k * blocks.ratio);
            Some((keys / blocks.ratio as f64, most))
        };
        // The keys of an indexer of blocks.
        let scored = |by: &Attention| {
            let blocks = by.blocks()?;
            let width = blocks.indexer.as_ref()?.d_head as f64 / blocks.ratio as f64;
            Some((width * value(index_format(kv_formats.k)), None))
        };
        let attention = model.layers.iter().filter_map(|layer| layer.attention());
        let positions = attention
            .flat_map(|by| [Some(position(by)), index(by), compressed(by), scored(by)])
            .flatten()
            .collect();
        Traffic { always, blocks, gates, positions }
    }

    /// Bytes per generated token of `test`, if the fraction `gates` of the gate is read and the
    /// fraction `density` of the neurons is active.
    #[must_use]
    pub fn bytes_per_token(&self, density: f64, gates: f64, test: Test) -> f64 {
        let skipping: f64 = self.blocks.iter().map(|block| block.bytes(density)).sum();
        let positions =
            self.positions.iter().map(|(bytes, window)| bytes * mean_context(test, *window));
        self.always + gates * self.gates + skipping + positions.sum::<f64>()
    }
}

impl SkippingFfn {
    /// A block with the matrices `up` (`None` if it is read whole, in a block without gate) and
    /// `down` as in the file: `[n_embd, n_ff]`, or one row per neuron if `by_neuron` is set.
    #[must_use]
    pub fn new(up: Option<TensorDesc>, down: TensorDesc, by_neuron: bool) -> SkippingFfn {
        let up = up.map_or(0.0, bytes);
        let whole = SkippingFfn { rows: up + bytes(down), tables: 0.0, group: 1, used: 1.0 };
        if by_neuron {
            return whole;
        }
        let (n_ff, n_out) = (down.n_cols, down.n_rows);
        // This cannot fail: the engine refuses to load a matrix that it cannot transpose.
        TransposedLayout::new(down.format, n_ff, n_ff, n_out).map_or(whole, |layout| {
            let number = if layout.group == 0 { 0 } else { size_of::<u32>() };
            SkippingFfn {
                rows: up + (n_ff * (layout.row_bytes + number)) as f64,
                tables: (layout.n_bytes - layout.scales_at) as f64,
                group: i32::try_from(layout.group).unwrap_or(i32::MAX),
                used: 1.0,
            }
        })
    }

    /// Bytes read for a token that activates the fraction `density` of the neurons.
    #[must_use]
    pub fn bytes(&self, density: f64) -> f64 {
        let untouched = (1.0 - (density / self.used).min(1.0)).powi(self.group);
        density * self.rows + self.used * (1.0 - untouched) * self.tables
    }
}

fn size(rows: &HostRows) -> f64 {
    bytes(rows.desc())
}

fn bytes(desc: TensorDesc) -> f64 {
    desc.bytes().map_or(0.0, |bytes| bytes.0 as f64)
}

/// Mean number of positions that a generated token of `test` attends to, itself included.
#[must_use]
fn mean_context(test: Test, window: Option<usize>) -> f64 {
    let first = test.n_depth + test.n_prompt + 1;
    let attended = |i: usize| (first + i).min(window.unwrap_or(usize::MAX)) as f64;
    (0..test.n_gen).map(attended).sum::<f64>() / test.n_gen.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_grows_up_to_the_window() {
        let test = Test { n_prompt: 0, n_gen: 3, n_depth: 10, n_seq: 1 };
        assert_eq!(mean_context(test, None), 12.0);
        assert_eq!(mean_context(test, Some(12)), (11.0 + 12.0 + 12.0) / 3.0);
    }

    #[test]
    fn bytes_grow_with_the_density() {
        let block = SkippingFfn { rows: 1000.0, tables: 320.0, group: 32, used: 1.0 };
        assert_eq!(block.bytes(0.0), 0.0);
        assert_eq!(block.bytes(1.0), 1320.0);
        let tenth = block.bytes(0.1);
        assert!(tenth > 100.0 + 0.9 * 320.0 && tenth < 100.0 + 320.0, "{tenth}");
        let of_a_fifth = SkippingFfn { used: 0.2, ..block }.bytes(0.1);
        assert!(of_a_fifth > 100.0 + 0.9 * 64.0 && of_a_fifth < 100.0 + 64.0, "{of_a_fifth}");
    }
}

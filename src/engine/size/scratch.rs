//! Shapes of the scratch, counters and lists of a device, and their bytes.

use hal::format::Format;
use hal::op::{MAX_COUNTED_TOKENS, UnionCounts};
use hal::{BatchShape, Bytes, Device, KV_BLOCK, TensorDesc};

use model::{Model, Ngrams};

use super::lists::ListShape;
use crate::ops::scratch::Scratch;
use crate::options::{EngineOptions, NeuronReads};

/// Shapes of the scratch, counters and lists of a device in use, the same on every device.
#[derive(Clone, Debug)]
pub(crate) struct ScratchShape {
    pub(crate) max_out: usize,
    pub(crate) n_layer: usize,
    pub(crate) n_embd: usize,
    /// Number of columns of the per-layer embeddings for all layers; 0 in models without them.
    pub(crate) n_inputs: usize,
    /// Number of values of the n-grams of a token; 0 in models without them.
    pub(crate) n_ngram: usize,
    pub(crate) n_logits: usize,
    /// Number of experts; 0 in dense models.
    pub(crate) n_expert: usize,
    /// Scratch of the layers, `[n_ubatch, ...]` each.
    pub(crate) body: Scratch<TensorDesc>,
    pub(crate) batch: BatchShape,
    /// Lists of active rows; present if predictors choose neurons.
    pub(crate) lists: Option<ListShape>,
    /// Counters of active rows, one row per layer, as wide as the largest block; present if
    /// neurons are exchanged.
    pub(crate) hits: Option<TensorDesc>,
    /// Counts of [`UnionCounts`], one row per layer; present with several sequences.
    pub(crate) union: Option<TensorDesc>,
    /// Whether blocks have per-neuron vectors.
    vectors: bool,
}

impl ScratchShape {
    /// The shapes for an engine with `n_devices` devices, used or not. `counts` says whether active
    /// rows are counted.
    pub(crate) fn new(
        model: &Model,
        options: &EngineOptions,
        n_devices: usize,
        counts: bool,
    ) -> ScratchShape {
        #[cfg(test)]
        tests::N_MADE.with(|n| n.set(n.get() + 1));
        let hyper = &model.hyper;
        let (n_ff, n_layer) = (model.max_n_ff(), hyper.n_layer);
        let guesses = options.paging.is_some_and(|by| by.neurons != NeuronReads::Layer);
        let lists = ListShape { n_ff, n_layer, shared: n_devices > 1, guesses };
        ScratchShape {
            max_out: options.max_out(),
            n_layer: hyper.n_layer,
            n_embd: hyper.n_embd,
            n_inputs: hyper.n_per_layer * hyper.n_layer,
            n_ngram: model.ngrams.as_ref().map_or(0, Ngrams::width),
            // Tensors have columns, even those of encoders' logits, which are not computed.
            n_logits: model.n_logits().max(1),
            n_expert: model.max_experts(),
            body: Scratch::shapes(model, options.n_ubatch, options.n_blocks() * KV_BLOCK),
            batch: BatchShape {
                max_tokens: options.n_ubatch,
                max_seqs: options.n_seq,
                max_blocks: options.n_blocks(),
            },
            lists: options.predicts(model).then_some(lists),
            union: (options.n_seq > 1)
                .then(|| TensorDesc::new(n_layer, UnionCounts::N, Format::F32)),
            hits: counts.then(|| TensorDesc::new(n_layer, n_ff, Format::F32)),
            vectors: options.has_thresholds()
                || model.blocks().any(|(_, ffn)| ffn.biases().next().is_some()),
        }
    }

    pub(crate) fn head(&self) -> [(&'static str, TensorDesc); 3] {
        let f32 = |cols| TensorDesc::new(self.max_out, cols, Format::F32);
        [("chosen", f32(self.n_embd)), ("normed", f32(self.n_embd)), ("logits", f32(self.n_logits))]
    }

    fn words(&self) -> TensorDesc {
        TensorDesc::new(1, self.batch.n_words(), Format::U32)
    }

    /// The shape of the counters of active neurons for programs of `n_tokens`.
    pub(crate) fn active(&self, n_tokens: usize) -> TensorDesc {
        TensorDesc::new(n_counters(self.n_layer), n_tokens, Format::F32)
    }

    /// Bytes of scratch, counters and lists on `device`, staging included, for programs of the
    /// token counts `buckets`.
    pub(crate) fn size(&self, device: &Device, buckets: &[usize]) -> Bytes {
        let size = |desc: &TensorDesc| device.alloc_size(desc);
        let mut body = Bytes(0);
        self.body.map(&mut |desc| body += size(desc));
        let staging = Bytes(buckets.iter().map(|&n| self.staging(n)).sum::<usize>() as u64);
        let active: Bytes = buckets.iter().map(|&n| size(&self.active(n))).sum();
        let lists = self.lists.map_or(Bytes(0), |lists| lists.size(device, buckets));
        let batch = size(&self.words()) + Bytes(4 * self.batch.n_words() as u64);
        // The counters are read and cleared layer by layer, so staging holds one layer.
        let hits = self.hits.map_or(Bytes(0), |hits| size(&hits) + self.hits_staging());
        let union =
            self.union.map_or(Bytes(0), |union| size(&union) + Bytes(union_bytes(&union) as u64));
        body + batch + staging + active + lists + hits + union
    }

    /// Bytes of the head's scratch and staging.
    pub(crate) fn head_size(&self, device: &Device) -> Bytes {
        let body: Bytes = self.head().iter().map(|(_, desc)| device.alloc_size(desc)).sum();
        let row = self.n_logits.max(self.n_embd);
        let n_rows: usize = row_counts(self.max_out).sum();
        body + Bytes(4 * (row * n_rows) as u64)
    }

    /// Bytes of staging for a layer's row counters, its table of slots (the same number of words),
    /// and the per-neuron vectors of every layer's share.
    fn hits_staging(&self) -> Bytes {
        let Some(hits) = self.hits else { return Bytes(0) };
        let vectors = if self.vectors { hits.n_rows } else { 0 };
        Bytes(4 * (hits.n_cols * (1 + vectors)) as u64)
    }

    /// Numbers of values per token in the copies of a step to and from a device: the residual, the
    /// per-layer embeddings, those of n-grams, the counters, the router's weights, and what layers
    /// pass on beside the residual.
    pub(crate) fn copied(&self) -> impl Iterator<Item = usize> {
        let always =
            [self.n_embd, self.n_inputs, self.n_ngram, n_counters(self.n_layer), self.n_expert];
        always.into_iter().chain(self.body.passed_on().map(|desc| desc.n_cols))
    }

    /// Bytes of staging for the copies of a step in programs of `n` tokens.
    fn staging(&self, n: usize) -> usize {
        self.copied().map(|n_values| 4 * n * n_values).sum()
    }
}

/// Maximum number of rows of logits in a copy from a device: more would save little time and take
/// more pinned memory.
const MAX_ROWS_COPIED: usize = 4;

/// The numbers of rows of logits that a copy from a device may have, if there are up to `max_out`:
/// powers of two, largest first.
pub(crate) fn row_counts(max_out: usize) -> impl Iterator<Item = usize> {
    let largest = max_out.clamp(1, MAX_ROWS_COPIED).ilog2();
    (0..=largest).rev().map(|power| 1 << power)
}

/// Rows of counters of active neurons: one per layer, and one for the streamed neurons of all
/// layers.
pub(crate) fn n_counters(n_layer: usize) -> usize {
    n_layer + 1
}

pub(crate) fn union_bytes(union: &TensorDesc) -> usize {
    4 * union.n_rows * union.n_cols
}

/// Whether programs of `n_tokens` have union counts.
pub(crate) fn counts_union(n_tokens: usize) -> bool {
    (2..=MAX_COUNTED_TOKENS).contains(&n_tokens)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use hal::{Bytes, Device, DeviceId};
    use measure::synthetic::Spec;
    use model::{Model, ModelOptions};

    use crate::options::EngineOptions;

    thread_local! {
        /// How often the shapes were made by this thread.
        pub(super) static N_MADE: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn logits_are_copied_by_powers_of_two() {
        let counts = |max_out| super::row_counts(max_out).collect::<Vec<usize>>();
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(3), [2, 1]);
        assert_eq!(counts(512), [4, 2, 1]);
    }

    /// The shapes depend on all layers, so making them for each layer takes the square of the
    /// number of layers.
    #[test]
    fn a_plan_makes_the_shapes_once_whatever_the_number_of_layers() {
        for n_layer in [2, 9] {
            let mut spec = Spec::parse(&format!("64x{n_layer}x64x2/1:Q4_0:relu")).unwrap();
            spec.n_vocab = 300;
            let file = spec.build(&mut |_, _| true).unwrap();
            let model = Model::from_file(file, &ModelOptions::default()).unwrap();
            let card = Device::new(
                Arc::new(hal::null::NullBackend::assumed("card", Bytes(1 << 30))),
                DeviceId(1),
                Bytes(1 << 30),
            );
            let devices = [runtime::devices::cpu(Some(1)), card];
            N_MADE.set(0);
            let options = EngineOptions { n_ctx: 64, n_ubatch: 8, ..EngineOptions::default() };
            let forecast = crate::forecast(&model, &devices, &options);
            assert_eq!(forecast.layers.len(), n_layer);
            assert_eq!(N_MADE.get(), 1, "{n_layer} layers");
        }
    }
}

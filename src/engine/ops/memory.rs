//! Data that layers keep between steps: KV caches and recurrent states.

use hal::{Bytes, HostRows, KV_BLOCK, KvCache, TensorDesc};

use model::{Attention, Kv, LayerWeights, Mamba2, Mixer};

use crate::options::EngineOptions;

/// Per-sequence data that a layer keeps between steps.
#[derive(Clone, Debug)]
pub(crate) struct Memory<T> {
    /// Keys and values of every position; `None` in a layer without attention.
    pub(crate) cache: Option<Cache<T>>,
    /// Recurrent states, `[n_seq + n_checkpoint, width]` each. Row `i` belongs to sequence `i` of
    /// the batch; the rows from `n_seq` on hold checkpoints. Empty in a layer without recurrence.
    pub(crate) states: Vec<T>,
}

/// The KV cache of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Cache<T> {
    /// The layer's own.
    Own(KvCache<T>),
    /// An earlier layer's, which this layer only reads.
    Shared(KvCache<T>),
}

impl<T> Memory<T> {
    /// The KV cache that the layer attends to: its own cache or an earlier layer's; `None` in
    /// layers without attention.
    pub(crate) fn kv(&self) -> Option<&KvCache<T>> {
        match &self.cache {
            Some(Cache::Own(cache) | Cache::Shared(cache)) => Some(cache),
            None => None,
        }
    }

    pub(crate) fn own_kv(&self) -> Option<&KvCache<T>> {
        match &self.cache {
            Some(Cache::Own(cache)) => Some(cache),
            Some(Cache::Shared(_)) | None => None,
        }
    }

    /// The tensors to allocate for the layer. An earlier layer's cache is not included.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &T> {
        self.own_kv().into_iter().flat_map(|cache| [&cache.k, &cache.v]).chain(&self.states)
    }

    /// The tensors that a step reads, including an earlier layer's cache.
    pub(crate) fn read_tensors(&self) -> impl Iterator<Item = &T> {
        self.kv().into_iter().flat_map(|cache| [&cache.k, &cache.v]).chain(&self.states)
    }
}

pub(crate) fn shapes(layer: &LayerWeights) -> Mixer<TensorDesc> {
    layer.frame.map(&mut HostRows::desc).mixer
}

/// The per-sequence data of a layer with `mixer`.
pub(crate) fn of_mixer(mixer: &Mixer<TensorDesc>, options: &EngineOptions) -> Memory<TensorDesc> {
    let cache = mixer.attention().map(|Attention { sizes, kv, .. }| {
        let (formats, rows) = (options.kv_formats, options.n_blocks() * KV_BLOCK);
        let cache = KvCache {
            k: TensorDesc::new(rows, sizes.n_k(), formats.k),
            v: TensorDesc::new(rows, sizes.n_v(), formats.v),
        };
        match kv {
            Kv::Direct { .. } | Kv::Latent(_) => Cache::Own(cache),
            Kv::Shared { .. } => Cache::Shared(cache),
        }
    });
    let rows = options.n_seq + options.n_checkpoint;
    let state = |width| TensorDesc::new(rows, width, hal::format::Format::F32);
    Memory { cache, states: state_widths(mixer).into_iter().map(state).collect() }
}

/// Bytes of the recurrent state of one sequence in `layer`; 0 in a layer without recurrence.
#[must_use]
pub fn state_bytes(layer: &LayerWeights) -> Bytes {
    let values: usize = state_widths(&shapes(layer)).into_iter().sum();
    Bytes(4 * values as u64)
}

/// Number of values of each recurrent state of one sequence.
fn state_widths(mixer: &Mixer<TensorDesc>) -> Vec<usize> {
    let conv = |weight: &TensorDesc| {
        let TensorDesc { n_rows, n_cols, .. } = *weight;
        (n_cols - 1) * n_rows
    };
    let mamba2 = |by: &Mamba2<TensorDesc>| {
        let filters = [&by.x_conv, &by.b_conv, &by.c_conv].map(|filter| conv(&filter.w));
        let scan = by.sizes.d_inner * by.sizes.d_state;
        filters.into_iter().chain([scan]).collect()
    };
    match mixer {
        Mixer::None | Mixer::Attention(_) => Vec::new(),
        Mixer::ShortConv(by) => vec![conv(&by.conv)],
        Mixer::GatedDelta(by) => {
            let sizes = &by.sizes;
            let delta = sizes.n_head_v * sizes.d_k * sizes.d_v;
            vec![conv(&by.q_conv), conv(&by.k_conv), conv(&by.v_conv), delta]
        }
        Mixer::Mamba1(by) => vec![conv(&by.x_conv.w), by.sizes.d_inner * by.sizes.d_state],
        Mixer::Mamba2(by) => mamba2(by),
        Mixer::Rwkv6(by) => {
            let wkv = by.n_head * by.d_head * by.d_head;
            by.shifts().map(conv).chain([wkv]).collect()
        }
        Mixer::Rwkv7(by) => {
            let wkv = by.n_head * by.d_head * by.d_head;
            by.shifts().map(conv).chain([wkv]).collect()
        }
        Mixer::Parallel { mamba, .. } => mamba2(mamba),
    }
}

//! Learned and rotary position embeddings, and stores of keys and values to the paged KV cache.

use hal::op::{self, Pairing};
use hal::{KvRows, Operand, Tensor, TensorDesc};

use super::operand::{Step, optional_view};
use super::{Context, Kernel, cheap_rows, nth_range};
use crate::buffer::{ReadView, WriteView};
use simd::StoreFn;

/// Frequencies per pass; their sines and cosines are on the stack.
const PAIRS: usize = 64;

/// Values of a table row dequantised per pass, on the stack; a multiple of every format's block
/// size.
const PASS_VALUES: usize = 256;

#[derive(Debug)]
pub(super) struct AddPositions {
    table: ReadView<u8>,
    rows: TensorDesc,
    step: Step,
    x: WriteView<f32>,
    offset: usize,
}

impl AddPositions {
    pub(super) fn new(op: &op::AddPositions<Tensor>, context: &Context<'_>) -> AddPositions {
        AddPositions {
            table: context.bind.read(&op.table),
            rows: op.table.desc(),
            step: Step::new(&op.batch, context),
            x: context.bind.write(&op.x),
            offset: op.offset,
        }
    }
}

impl Kernel for AddPositions {
    fn chunks(&self, _phase: usize) -> usize {
        self.step.n_tokens(self.x.n_rows())
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let at = self.offset + self.step.view().positions()[chunk] as usize;
        let row = self.table.row(at.min(self.rows.n_rows - 1));
        let format = self.rows.format;
        let pass_bytes = PASS_VALUES / format.block_values() * format.block_bytes();
        let mut values = [0.0; PASS_VALUES];
        for (x, bytes) in self.x.row(chunk).chunks_mut(PASS_VALUES).zip(row.chunks(pass_bytes)) {
            let values = &mut values[..x.len()];
            format.dequantize(bytes, values);
            x.iter_mut().zip(&*values).for_each(|(x, v)| *x += v);
        }
    }
}

#[derive(Debug)]
pub(super) struct ScaleByPosition {
    step: Step,
    x: WriteView<f32>,
    factor: f32,
    length: u32,
    offset: u32,
}

impl ScaleByPosition {
    pub(super) fn new(op: &op::ScaleByPosition<Tensor>, context: &Context<'_>) -> ScaleByPosition {
        ScaleByPosition {
            step: Step::new(&op.batch, context),
            x: context.bind.write(&op.x),
            factor: op.factor,
            length: op.length,
            offset: op.offset,
        }
    }
}

impl Kernel for ScaleByPosition {
    fn chunks(&self, _phase: usize) -> usize {
        self.step.n_tokens(self.x.n_rows()).div_ceil(cheap_rows(self.x.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let n_tokens = self.step.n_tokens(self.x.n_rows());
        for t in nth_range(chunk, cheap_rows(self.x.n_cols()), n_tokens) {
            let n = (self.step.view().positions()[t] + self.offset) / self.length;
            let scale = 1.0 + self.factor * (n as f32).ln_1p();
            self.x.row(t).iter_mut().for_each(|x| *x *= scale);
        }
    }
}

#[derive(Debug)]
pub(super) struct Rope {
    freqs: ReadView<f32>,
    step: Step,
    x: WriteView<f32>,
    d_head: usize,
    first: usize,
    n_rot: usize,
    pairing: Pairing,
    scale: f32,
}

impl Rope {
    pub(super) fn new(op: &op::Rope<Tensor>, context: &Context<'_>) -> Rope {
        Rope {
            freqs: context.bind.read(&op.freqs),
            step: Step::new(&op.batch, context),
            x: context.bind.write(&op.x),
            d_head: op.d_head,
            first: op.first,
            n_rot: op.n_rot,
            pairing: op.pairing,
            scale: op.scale,
        }
    }

    fn rotate(&self, x: &mut [f32], pos: u32) {
        for (part, freqs) in self.freqs.as_slice().chunks(PAIRS).enumerate() {
            let (mut sin, mut cos) = ([0.0f32; PAIRS], [0.0f32; PAIRS]);
            for ((sin, cos), freq) in sin.iter_mut().zip(&mut cos).zip(freqs) {
                let (s, c) = (pos as f32 * freq).sin_cos();
                (*sin, *cos) = (s * self.scale, c * self.scale);
            }
            let first = part * PAIRS;
            let pairs = sin.iter().zip(&cos).take(freqs.len());
            for head in x.chunks_exact_mut(self.d_head) {
                let head = &mut head[self.first..];
                match self.pairing {
                    Pairing::Adjacent => {
                        let values = head[2 * first..].chunks_exact_mut(2);
                        for (pair, (sin, cos)) in values.zip(pairs.clone()) {
                            let (a, b) = (pair[0], pair[1]);
                            pair[0] = a * cos - b * sin;
                            pair[1] = a * sin + b * cos;
                        }
                    }
                    Pairing::Halves => {
                        let (low, high) = head.split_at_mut(self.n_rot / 2);
                        let values = low[first..].iter_mut().zip(&mut high[first..]);
                        for ((low, high), (sin, cos)) in values.zip(pairs.clone()) {
                            let (a, b) = (*low, *high);
                            *low = a * cos - b * sin;
                            *high = a * sin + b * cos;
                        }
                    }
                }
            }
        }
    }
}

impl Kernel for Rope {
    fn chunks(&self, _phase: usize) -> usize {
        self.step.n_tokens(self.x.n_rows()).div_ceil(cheap_rows(self.x.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let n_tokens = self.step.n_tokens(self.x.n_rows());
        for t in nth_range(chunk, cheap_rows(self.x.n_cols()), n_tokens) {
            self.rotate(self.x.row(t), self.step.view().positions()[t]);
        }
    }
}

/// The keys or the values of the KV cache, for writing.
#[derive(Debug)]
pub(super) struct CacheRows {
    rows: WriteView<u8>,
    store: StoreFn,
}

impl CacheRows {
    pub(super) fn new(tensor: &Tensor, context: &Context<'_>) -> CacheRows {
        let store = context.simd.cache(tensor.desc().format).store;
        CacheRows { rows: context.bind.write(tensor), store }
    }

    pub(super) fn store(&self, row: usize, values: &[f32]) {
        (self.store)(values, self.rows.row(row));
    }
}

#[derive(Debug)]
pub(super) struct StoreKv {
    k: ReadView<f32>,
    v: Option<ReadView<f32>>,
    step: Step,
    cache: KvRows<CacheRows>,
}

impl StoreKv {
    pub(super) fn new(op: &op::StoreKv<Tensor>, context: &Context<'_>) -> StoreKv {
        StoreKv {
            k: context.bind.read(&op.k),
            v: optional_view(op.v.as_ref(), context),
            step: Step::new(&op.batch, context),
            cache: op.cache.map(&mut |tensor| CacheRows::new(tensor, context)),
        }
    }
}

impl Kernel for StoreKv {
    fn chunks(&self, _phase: usize) -> usize {
        self.step.n_tokens(self.k.n_rows()).div_ceil(cheap_rows(self.k.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let n_tokens = self.step.n_tokens(self.k.n_rows());
        for t in nth_range(chunk, cheap_rows(self.k.n_cols()), n_tokens) {
            let row = self.step.view().kv_rows()[t] as usize;
            self.cache.k.store(row, self.k.row(t));
            if let (Some(cache), Some(v)) = (&self.cache.v, &self.v) {
                cache.store(row, v.row(t));
            }
        }
    }
}

//! Measures the prefill speeds of a device: feed-forward blocks for large batches, and uploads of
//! weights.

use std::sync::Arc;
use std::time::Instant;

use hal::op::{Activation, Down, FfnKind, NEVER_DENSE, Skip, SparseFfn};
use hal::{
    Bytes, DeviceKind, HostRows, Operand, PackDesc, Queue, Result, Rows, Select, Source, Staging,
    Tensor,
};

use super::{PASSES, Probe, STRIDE};

/// Tokens of the first and of the largest step that is tried, and rows of the first step.
const TOKENS: [usize; 2] = [64, 512];
const ROWS: usize = 256;
/// A step that takes this many seconds is long enough to measure.
const MIN_SECONDS: f64 = 0.01;
/// Bytes uploaded at once.
const UPLOAD: usize = 8 << 20;

impl Probe {
    /// Bytes of weights times number of tokens, per second. Tries steps with more and more rows,
    /// then with more tokens, until one takes long enough.
    pub(super) fn prompt(&self, queue: &mut Queue) -> Result<f64> {
        let (mut n_tokens, mut n_rows) = (TOKENS[0], ROWS.min(self.n_ff));
        loop {
            let seconds = self.time_block(queue, n_tokens, n_rows)?;
            let bytes = (3 * n_rows * self.shape.row_bytes()) as f64;
            let most = (n_rows, n_tokens) == (self.n_ff, TOKENS[1]);
            if seconds >= MIN_SECONDS || most {
                return Ok(bytes * n_tokens as f64 / seconds);
            }
            if n_rows < self.n_ff {
                n_rows = (4 * n_rows).min(self.n_ff)
            } else {
                n_tokens = (2 * n_tokens).min(TOKENS[1])
            }
        }
    }

    /// Seconds of a block of `n_rows` neurons for `n_tokens` tokens. If neurons are skipped, a
    /// token uses every eighth neuron. If they are listed, neuron `n` is active for the tokens `t`
    /// with `t % 8 == n % 8`.
    fn time_block(&self, queue: &mut Queue, n_tokens: usize, n_rows: usize) -> Result<f64> {
        let (layer, n_ff, n_embd) = (&self.layers[0], self.n_ff, self.shape.n_embd);
        let floats = |rows, cols| self.device.alloc_f32("probe", rows, cols);
        let x = floats(n_tokens, n_embd)?;
        queue.write(&x, bytemuck::cast_slice(&vec![0.5f32; n_tokens * n_embd]))?;
        let y = floats(n_tokens, n_embd)?;
        let active = floats(1, n_tokens)?;
        queue.write(&active, bytemuck::cast_slice(&vec![0f32; n_tokens]))?;
        // Listed neurons are active without a bias.
        let bias = if self.shape.skips && !self.shape.listed {
            let bias_of = |n: usize| if n.is_multiple_of(STRIDE) { 1e9f32 } else { -1e9 };
            let bias = floats(1, n_rows)?;
            let biases: Vec<f32> = (0..n_rows).map(bias_of).collect();
            queue.write(&bias, bytemuck::cast_slice(&biases))?;
            Some(bias)
        } else {
            None
        };
        // A model without exact zeros keeps down in the file's layout, which is much faster in
        // prefill.
        let across = !self.shape.skips && n_rows.is_multiple_of(self.shape.format.block_values());
        let down = if across {
            let rows = self.source(n_embd, n_rows)?;
            self.device.import("probe", &PackDesc::whole(rows.desc()), &rows)?
        } else {
            layer.rows(2 * n_ff..2 * n_ff + n_rows)
        };
        let op = SparseFfn {
            gate: Some(layer.rows(0..n_rows)),
            up: layer.rows(n_ff..n_ff + n_rows),
            down,
            bias_gate: bias,
            bias_up: None,
            bias_down: None,
            threshold: None,
            expert_weights: None,
            rows: self.row_selection(queue, n_tokens, n_rows)?,
            x,
            y,
            active,
            hits: None,
            union: None,
            kind: FfnKind::Gated,
            activation: if self.shape.skips { Activation::Relu } else { Activation::Silu },
            skip: if self.shape.skips { Skip::NotPositive } else { Skip::Never },
            orientation: if across { Down::AcrossNeurons } else { Down::ByNeuron },
            experts: None,
            dense_from: NEVER_DENSE,
            accumulate: false,
        };
        self.time(queue, &self.program(vec![op.into()])?)
    }

    /// All rows, as a list if `shape.listed` is set.
    fn row_selection(
        &self,
        queue: &mut Queue,
        n_tokens: usize,
        n_rows: usize,
    ) -> Result<Rows<Tensor>> {
        if !self.shape.listed {
            return Ok(Rows::All);
        }
        let set = self.device.row_set(n_rows, n_tokens)?;
        let ids: Vec<u32> = (0..n_rows as u32).collect();
        let bits = |first: usize| {
            let every = (first..32).step_by(STRIDE).map(|bit| 1u32 << bit);
            every.fold(0, |word, bit| word | bit)
        };
        let words = set.members.desc().n_cols;
        let members = (0..n_rows).flat_map(|row| vec![bits(row % STRIDE); words]);
        queue.write(&set.ids, bytemuck::cast_slice(&ids))?;
        queue.write(&set.count, bytemuck::bytes_of(&(n_rows as u32)))?;
        queue.write(&set.members, bytemuck::cast_slice(&members.collect::<Vec<_>>()))?;
        Ok(Rows::Active(set))
    }

    /// A matrix of the format with arbitrary contents.
    fn source(&self, n_rows: usize, n_cols: usize) -> Result<HostRows> {
        let format = self.shape.format;
        let len = n_rows * format.row_bytes(n_cols).unwrap_or(0);
        HostRows::new(Source::Owned(Arc::new(vec![0x3c_u8; len])), n_rows, n_cols, format)
    }

    /// Bytes of neurons uploaded to the device per second: every second row of gate and up, and as
    /// many neurons of down, in the layout that the device uses for such a model. 0 for the CPU and
    /// for a device that cannot replace packed weights.
    pub(super) fn upload(&self, queue: &mut Queue) -> Result<f64> {
        if self.device.info().kind == DeviceKind::Cpu {
            return Ok(0.0);
        }
        let (row, n_embd, format) = (self.shape.row_bytes(), self.shape.n_embd, self.shape.format);
        // A multiple of 256 values is a whole number of blocks in any format.
        let n = (UPLOAD / 3 / row).min(self.n_ff) / 256 * 256;
        let n = n.max(256);
        let (rows, down) = (self.source(2 * n, n_embd)?, self.source(n_embd, 2 * n)?);
        let half = Select::Rows((0..n as u32).map(|i| 2 * i).collect());
        let by_row = PackDesc { select: half.clone(), ..PackDesc::whole(rows.desc()) };
        let blocks = (n / format.block_values()) as u32;
        let by_column = if self.shape.skips {
            PackDesc { select: half, transpose: true, ..PackDesc::whole(down.desc()) }
        } else {
            PackDesc {
                select: Select::ColumnBlocks((0..blocks).map(|i| 2 * i).collect()),
                ..PackDesc::whole(down.desc())
            }
        };
        let mut slots: Vec<(&PackDesc, &HostRows, Tensor, Option<Staging>)> = Vec::new();
        for (pack, source) in [(&by_row, &rows), (&by_row, &rows), (&by_column, &down)] {
            let Some(len) = self.device.packed_len(&pack.packed_desc()?) else { return Ok(0.0) };
            let staging = self.device.staging(Bytes(len as u64))?;
            slots.push((pack, source, self.device.import("probe", pack, source)?, Some(staging)));
        }
        let mut least = f64::INFINITY;
        for _ in 0..PASSES {
            let begin = Instant::now();
            for (pack, source, tensor, held) in &mut slots {
                let Some(mut staging) = held.take() else { continue };
                self.device.pack_into(pack, source, staging.bytes_mut())?;
                *held = Some(queue.repack(staging, tensor)?.wait()?);
            }
            queue.finish()?;
            least = least.min(begin.elapsed().as_secs_f64());
        }
        Ok((3 * n * row) as f64 / least.max(1e-9))
    }
}

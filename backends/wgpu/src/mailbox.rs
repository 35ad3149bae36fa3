//! Mailboxes of hand-offs: a buffer to which the device copies a post and which the host maps, and
//! a buffer for the answer.

use std::sync::{Arc, Mutex};

use hal::{HostRowSet, MailboxShape, RawMailbox, Result};

use crate::buffer::Span;
use crate::gpu::Gpu;

/// Clones refer to the same mailbox.
#[derive(Clone, Debug)]
pub(crate) struct WgpuMailbox {
    pub(crate) shape: MailboxShape,
    /// Destination of a post.
    pub(crate) out: wgpu::Buffer,
    answer: wgpu::Buffer,
    /// The row list of the post that the host reads, reused so that a step allocates nothing.
    pub(crate) rows: Arc<Mutex<HostRowSet>>,
}

impl RawMailbox for WgpuMailbox {}

/// Offsets of the sections of a post in [`WgpuMailbox::out`], in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostOffsets {
    pub(crate) n_tokens: u64,
    pub(crate) count: u64,
    pub(crate) x: u64,
    pub(crate) weights: u64,
    pub(crate) ids: u64,
    pub(crate) members: u64,
}

impl WgpuMailbox {
    pub(crate) fn new(gpu: &Gpu, shape: MailboxShape) -> Result<WgpuMailbox> {
        let words = shape.max_tokens.div_ceil(32);
        let rows = HostRowSet {
            ids: Vec::with_capacity(shape.max_rows),
            members: Vec::with_capacity(shape.max_rows * words),
            words,
        };
        let answer = (4 * shape.max_tokens * shape.n_out) as u64;
        let out = shape.bytes().0 - answer;
        Ok(WgpuMailbox {
            shape,
            out: gpu.readback("mailbox out", out)?,
            answer: gpu.storage("mailbox in", answer.max(4))?,
            rows: Arc::new(Mutex::new(rows)),
        })
    }

    /// Membership words per row, with one bit per token.
    pub(crate) fn words(&self) -> usize {
        self.shape.max_tokens.div_ceil(32)
    }

    pub(crate) fn offsets(&self) -> PostOffsets {
        let MailboxShape { max_tokens, n_in, n_weights, max_rows, .. } = self.shape;
        let x = 16;
        let weights = x + (4 * max_tokens * n_in) as u64;
        let ids = weights + (4 * max_tokens * n_weights) as u64;
        let members = ids + (4 * max_rows) as u64;
        PostOffsets { n_tokens: 0, count: 4, x, weights, ids, members }
    }

    pub(crate) fn answer(&self) -> Span {
        Span { buffer: self.answer.clone(), offset: 0, size: self.answer.size() }
    }

    /// Writes an answer, which arrives before the next submission runs.
    pub(crate) fn write_answer(&self, gpu: &Gpu, y: &[f32]) {
        if !y.is_empty() {
            gpu.queue.write_buffer(&self.answer, 0, bytemuck::cast_slice(y));
        }
    }
}

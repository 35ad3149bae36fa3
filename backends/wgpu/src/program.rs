//! Programs: the dispatches of a step, split into submissions at hand-offs and by the work limit.

use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use hal::{Op, RawMailbox, RawProgram, Result, Tensor};

use crate::error::driver;
use crate::gpu::Gpu;
use crate::lowering::{Dispatch, Lowering};
use crate::mailbox::WgpuMailbox;
use crate::ops::{self, PostCopies};
use crate::timer::Timer;
use crate::work::{Meter, work};

#[derive(Clone, Debug)]
pub(crate) struct WgpuProgram(pub(crate) Arc<ProgramCore>);

impl RawProgram for WgpuProgram {
    fn units(&self) -> Vec<String> {
        let dispatches = self.0.segments.iter().flat_map(|segment| &segment.dispatches);
        let names: BTreeSet<&str> = dispatches.map(|(_, dispatch)| dispatch.shader()).collect();
        names.into_iter().map(str::to_owned).collect()
    }
}

/// The segments of a program, and the tensors that they access.
#[derive(Debug)]
pub(crate) struct ProgramCore {
    pub(crate) label: String,
    pub(crate) segments: Vec<Segment>,
    /// The commands of the first segment for the next replay, if they are encoded already.
    ahead: Mutex<Option<wgpu::CommandBuffer>>,
    _ops: Vec<Op>,
    _workspace: Option<Tensor>,
}

impl ProgramCore {
    /// Encodes the first segment for the next replay, unless that is done.
    pub(crate) fn encode_ahead(&self, gpu: &Gpu) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(first)) = (&*ahead, self.segments.first()) {
            *ahead = Some(first.encode(gpu, &self.label, None));
        }
    }

    pub(crate) fn take_ahead(&self) -> Option<wgpu::CommandBuffer> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The dispatches of one submission.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    /// Index and mailbox of the merge that the segment starts with.
    pub(crate) merge: Option<(usize, WgpuMailbox)>,
    /// Dispatches, each with the index of its op in the program; of fused ops, the first.
    dispatches: Vec<(usize, Dispatch)>,
    /// The ops of the segment; the first and the last may continue in other segments.
    pub(crate) ops: Range<usize>,
    /// The post that the segment ends with.
    pub(crate) post: Option<PostCopies>,
}

impl Segment {
    /// Records that these ops, or parts of them, are in this segment.
    fn add_ops(&mut self, ops: Range<usize>) {
        let start = if self.ops.is_empty() { ops.start } else { self.ops.start };
        self.ops = start..ops.end;
    }

    fn is_empty(&self) -> bool {
        self.merge.is_none() && self.dispatches.is_empty() && self.post.is_none()
    }

    pub(crate) fn n_dispatches(&self) -> usize {
        self.dispatches.len()
    }

    pub(crate) fn encode(
        &self,
        gpu: &Gpu,
        label: &str,
        timer: Option<&mut Timer>,
    ) -> wgpu::CommandBuffer {
        let mut encoder = gpu.encoder(label);
        if let Some(timer) = timer {
            self.encode_parts(&mut encoder, timer);
        } else if !self.dispatches.is_empty() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for (_, dispatch) in &self.dispatches {
                dispatch.encode(&mut pass);
            }
        }
        if let Some(post) = &self.post {
            post.encode(&mut encoder);
        }
        encoder.finish()
    }

    /// Encodes a pass with timestamps for each part of the program.
    fn encode_parts(&self, encoder: &mut wgpu::CommandEncoder, timer: &mut Timer) {
        let mut rest = &self.dispatches[..];
        while let [(op, _), ..] = rest {
            let part = timer.part(*op);
            let n = rest.iter().take_while(|(op, _)| timer.part(*op) == part).count();
            let (dispatches, after) = rest.split_at(n);
            let timestamp_writes = timer.pass(part);
            let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
            let mut pass = encoder.begin_compute_pass(&descriptor);
            dispatches.iter().for_each(|(_, dispatch)| dispatch.encode(&mut pass));
            rest = after;
        }
    }
}

fn mailbox(mailboxes: &[Arc<dyn RawMailbox>], index: usize) -> Result<&WgpuMailbox> {
    let mailbox = mailboxes.get(index).and_then(|mailbox| {
        let any: &dyn Any = &**mailbox;
        any.downcast_ref()
    });
    mailbox.ok_or_else(|| driver("compile", "the mailbox belongs to another backend"))
}

impl WgpuProgram {
    pub(crate) fn new(
        gpu: &Gpu,
        label: &str,
        ops: &[Op],
        mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<WgpuProgram> {
        let mut segments = Vec::new();
        let mut segment = Segment::default();
        let mut lowering = Lowering::new(gpu, workspace);
        let mut meter = Meter::new(gpu.facts.max_work);
        let mut op_index = 0;
        while let Some(op) = ops.get(op_index) {
            if let Op::Merge(op) = op {
                if !segment.is_empty() {
                    segments.push(std::mem::take(&mut segment));
                }
                meter.reset();
                let mailbox = mailbox(mailboxes, op.mailbox)?;
                segment.merge = Some((op.mailbox, mailbox.clone()));
                ops::merge(op, mailbox, &mut lowering)?;
            }
            let n = lower::lower_first(&ops[op_index..], &mut lowering)?;
            let ops = &ops[op_index..op_index + n];
            let works = ops.iter().map(|op| work(&op.to_desc()));
            let work = works.fold(0, u64::saturating_add);
            for (i, dispatch) in lowering.take().into_iter().enumerate() {
                if meter.ends_before(i, work) {
                    segments.push(std::mem::take(&mut segment));
                }
                segment.add_ops(op_index..op_index + n);
                segment.dispatches.push((op_index, dispatch));
            }
            if let Op::Post(op) = op {
                meter.reset();
                segment.add_ops(op_index..op_index + 1);
                segment.post = Some(PostCopies::new(op, mailbox(mailboxes, op.mailbox)?)?);
                segments.push(std::mem::take(&mut segment));
            }
            op_index += n;
        }
        if !segment.is_empty() {
            segments.push(segment);
        }
        let (_ops, _workspace) = (ops.to_vec(), workspace.cloned());
        Ok(WgpuProgram(Arc::new(ProgramCore {
            label: label.to_owned(),
            segments,
            ahead: Mutex::default(),
            _ops,
            _workspace,
        })))
    }
}

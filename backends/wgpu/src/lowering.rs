//! Lowers ops to dispatches: pipelines and bind groups are made here, once, when a program is
//! compiled.

use std::sync::Arc;

use hal::{Result, Tensor};

use crate::buffer::{Span, plain};
use crate::error::{created, driver};
use crate::facts::{Facts, IMMEDIATES};
use crate::gpu::{Gpu, Pipeline};
use crate::shader::Source;

/// One dispatch, ready to be encoded.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    numbers: Vec<u8>,
    grid: [u32; 3],
}

impl Dispatch {
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        let [x, y, z] = self.grid;
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.set_immediates(0, &self.numbers);
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Collects the dispatches of an op.
#[derive(Debug)]
pub(crate) struct Lowering<'a> {
    gpu: &'a Gpu,
    workspace: Option<&'a Tensor>,
    dispatches: Vec<Dispatch>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(gpu: &'a Gpu, workspace: Option<&'a Tensor>) -> Lowering<'a> {
        Lowering { gpu, workspace, dispatches: Vec::new() }
    }

    /// Limits, features and tuning constants of the device.
    pub(crate) fn facts(&self) -> &'a Facts {
        &self.gpu.facts
    }

    /// The dispatches added since the last call.
    pub(crate) fn take(&mut self) -> Vec<Dispatch> {
        std::mem::take(&mut self.dispatches)
    }

    /// The span to bind in place of a missing operand.
    pub(crate) fn nothing(&self) -> Span {
        Span { buffer: self.gpu.nothing.clone(), offset: 0, size: 16 }
    }

    /// Code tables of the formats.
    pub(crate) fn tables(&self) -> Result<Span> {
        let buffer = self.gpu.tables.clone();
        let size = buffer.size();
        Ok(Span { buffer, offset: 0, size })
    }

    /// A plain operand that may be missing.
    pub(crate) fn maybe(&self, tensor: Option<&Tensor>) -> Result<Span> {
        tensor.map_or_else(|| Ok(self.nothing()), plain)
    }

    /// Range of the scratch memory that the op's plan requested, in bytes (multiples of 4). Its
    /// contents are undefined, and other ops use it before and after this one.
    pub(crate) fn workspace(&self, offset: u64, size: u64) -> Result<Span> {
        let whole = self.workspace.map(plain).transpose()?;
        match whole {
            Some(whole) if offset + size <= whole.size => Ok(whole.part(offset, size)),
            _ => Err(driver("compile", "the workspace is smaller than planned")),
        }
    }

    /// Constant words that the op reads, copied to the device.
    pub(crate) fn constants(&self, words: &[u32]) -> Result<Span> {
        let size = (words.len().max(4) * 4) as u64;
        let buffer = self.gpu.storage("constants", size)?;
        self.gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        Ok(Span { buffer, offset: 0, size })
    }

    /// Adds a dispatch. `spans` are the shader's bindings in order. The shader's immediates are,
    /// in this order, a word per binding (the offset of the span in it, in words of 4 bytes) and
    /// then `numbers`. `grid` counts workgroups.
    ///
    /// # Errors
    /// [`hal::Error::Driver`] if the driver rejects the shader or its bindings.
    pub(crate) fn dispatch(
        &mut self,
        source: &Source,
        spans: &[Span],
        numbers: &[u32],
        grid: [u32; 3],
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let dispatch = prepare(self.gpu, source, spans, numbers, grid)?;
        self.dispatches.push(dispatch);
        Ok(())
    }
}

/// Makes one dispatch.
pub(crate) fn prepare(
    gpu: &Gpu,
    source: &Source,
    spans: &[Span],
    numbers: &[u32],
    grid: [u32; 3],
) -> Result<Dispatch> {
    let writable = source.bindings();
    let wrong = |what: String| driver(format!("binding {}", source.name()), what);
    if writable.len() != spans.len() {
        return Err(wrong(format!("{} operands for {} bindings", spans.len(), writable.len())));
    }
    let both = |written: &Span| {
        let reads = spans.iter().zip(&writable).filter(|(_, written)| !**written);
        reads.into_iter().any(|(read, _)| read.buffer == written.buffer)
    };
    let shared = spans.iter().zip(&writable).any(|(span, &written)| written && both(span));
    let pipeline = gpu.pipeline(source, shared)?;
    let align = u64::from(gpu.facts.limits.min_storage_buffer_offset_alignment);
    let mut all = Vec::with_capacity(spans.len() + numbers.len());
    let mut entries = Vec::with_capacity(spans.len());
    for (i, span) in spans.iter().enumerate() {
        let start = span.offset / align * align;
        let size = (span.offset - start + span.size).max(4);
        if size > gpu.facts.limits.max_storage_buffer_binding_size {
            return Err(wrong(format!("binding {i} takes {size} bytes")));
        }
        all.push(((span.offset - start) / 4) as u32);
        let bound = wgpu::BufferBinding {
            buffer: &span.buffer,
            offset: start,
            size: std::num::NonZeroU64::new(size),
        };
        let resource = wgpu::BindingResource::Buffer(bound);
        entries.push(wgpu::BindGroupEntry { binding: i as u32, resource });
    }
    all.extend_from_slice(numbers);
    if 4 * all.len() > IMMEDIATES as usize {
        return Err(wrong(format!("{} numbers", all.len())));
    }
    let group = created(&gpu.device, &gpu.health, source.name(), hal::Bytes(0), || {
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(source.name()),
            layout: &pipeline.layout,
            entries: &entries,
        })
    })?;
    Ok(Dispatch { pipeline, group, numbers: bytemuck::cast_slice(&all).to_vec(), grid })
}

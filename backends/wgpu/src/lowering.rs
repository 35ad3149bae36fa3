//! Lowers ops to dispatches, once, when a program is compiled; also makes pipelines and bind
//! groups.

use std::sync::Arc;

use hal::{Result, Tensor};
use lower::EarlierResults;

use crate::buffer::{Span, plain};
use crate::error::{driver, try_create};
use crate::facts::{Facts, IMMEDIATES};
use crate::gpu::{Gpu, Pipeline};
use crate::shader::Source;

#[derive(Debug)]
pub(crate) struct Dispatch {
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    numbers: Vec<u8>,
    grid: [u32; 3],
}

impl Dispatch {
    /// The name of the shader's file.
    pub(crate) fn shader(&self) -> &'static str {
        self.pipeline.name
    }

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
    earlier: EarlierResults<Span>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(gpu: &'a Gpu, workspace: Option<&'a Tensor>) -> Lowering<'a> {
        let (dispatches, earlier) = (Vec::new(), EarlierResults::default());
        Lowering { gpu, workspace, dispatches, earlier }
    }

    pub(crate) fn facts(&self) -> &'a Facts {
        &self.gpu.facts
    }

    /// Results that earlier dispatches left for the next ones.
    pub(crate) fn earlier(&mut self) -> &mut EarlierResults<Span> {
        &mut self.earlier
    }

    /// The dispatches added since the last call.
    pub(crate) fn take(&mut self) -> Vec<Dispatch> {
        std::mem::take(&mut self.dispatches)
    }

    /// The dummy buffer that is bound in place of a missing operand.
    pub(crate) fn dummy(&self) -> Span {
        Span { buffer: self.gpu.dummy.clone(), offset: 0, size: 16 }
    }

    pub(crate) fn tables(&self) -> Result<Span> {
        let buffer = self.gpu.tables.clone();
        let size = buffer.size();
        Ok(Span { buffer, offset: 0, size })
    }

    /// The span of an optional plain operand; a dummy buffer if the operand is missing.
    pub(crate) fn plain_or_dummy(&self, tensor: Option<&Tensor>) -> Result<Span> {
        tensor.map_or_else(|| Ok(self.dummy()), plain)
    }

    /// The workspace that all ops use; `None` if no op needs it.
    pub(crate) fn whole_workspace(&self) -> Result<Option<Span>> {
        self.workspace.map(plain).transpose()
    }

    /// Copies constant words for the op to the device.
    pub(crate) fn constants(&self, words: &[u32]) -> Result<Span> {
        let size = (words.len().max(4) * 4) as u64;
        let buffer = self.gpu.storage("constants", size)?;
        self.gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        Ok(Span { buffer, offset: 0, size })
    }

    /// Adds a dispatch. `spans` are the shader's bindings in order. The shader's immediates are one
    /// word per binding (the offset of the span in the binding, in 32-bit words), then `numbers`.
    /// `grid` counts workgroups.
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

/// Makes one dispatch; the parameters are those of [`Lowering::dispatch`].
pub(crate) fn prepare(
    gpu: &Gpu,
    source: &Source,
    spans: &[Span],
    numbers: &[u32],
    grid: [u32; 3],
) -> Result<Dispatch> {
    let writable = source.bindings();
    let error = |message: String| driver(format!("binding {}", source.name()), message);
    if writable.len() != spans.len() {
        return Err(error(format!("{} operands for {} bindings", spans.len(), writable.len())));
    }
    let is_read = |written: &Span| {
        let reads = spans.iter().zip(&writable).filter(|(_, written)| !**written);
        reads.into_iter().any(|(read, _)| read.buffer == written.buffer)
    };
    let shared = spans.iter().zip(&writable).any(|(span, &written)| written && is_read(span));
    let pipeline = gpu.pipeline(source, shared)?;
    let align = u64::from(gpu.facts.limits.min_storage_buffer_offset_alignment);
    let mut immediates = Vec::with_capacity(spans.len() + numbers.len());
    let mut entries = Vec::with_capacity(spans.len());
    for (i, span) in spans.iter().enumerate() {
        let start = span.offset / align * align;
        let size = (span.offset - start + span.size).max(4);
        if size > gpu.facts.limits.max_storage_buffer_binding_size {
            let limit = gpu.facts.limits.max_storage_buffer_binding_size;
            return Err(error(format!("binding {i} needs {size} bytes; the limit is {limit}")));
        }
        immediates.push(((span.offset - start) / 4) as u32);
        let bound = wgpu::BufferBinding {
            buffer: &span.buffer,
            offset: start,
            size: std::num::NonZeroU64::new(size),
        };
        let resource = wgpu::BindingResource::Buffer(bound);
        entries.push(wgpu::BindGroupEntry { binding: i as u32, resource });
    }
    immediates.extend_from_slice(numbers);
    if 4 * immediates.len() > IMMEDIATES as usize {
        return Err(error(format!(
            "{} words of immediates; the limit is {}",
            immediates.len(),
            IMMEDIATES / 4
        )));
    }
    let group = try_create(&gpu.device, &gpu.health, source.name(), hal::Bytes(0), || {
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(source.name()),
            layout: &pipeline.layout,
            entries: &entries,
        })
    })?;
    Ok(Dispatch { pipeline, group, numbers: bytemuck::cast_slice(&immediates).to_vec(), grid })
}

//! Staging memory, writes to a buffer, and copies of plain rows to, from and on the device.

use std::borrow::Cow;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hal::{Bytes, Operand, RawStaging, Result, Tensor};

use crate::buffer::{Span, plain, plain_stride};
use crate::error::{driver, one_line};
use crate::gpu::{Gpu, Submission};
use crate::lowering::prepare;
use crate::shader::Source;

/// Host memory, and the mappable buffer through which downloads arrive.
#[derive(Debug)]
pub(crate) struct WgpuStaging {
    bytes: Vec<u8>,
    readback: wgpu::Buffer,
}

impl WgpuStaging {
    pub(crate) fn new(gpu: &Gpu, len: Bytes) -> Result<WgpuStaging> {
        let readback = gpu.readback("staging", len.0.max(1).div_ceil(4) * 4)?;
        Ok(WgpuStaging { bytes: vec![0; len.0 as usize], readback })
    }
}

impl RawStaging for WgpuStaging {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A plain view, with the bytes of a row on the host and on the device.
struct RowView {
    span: Span,
    host: usize,
    device: usize,
}

fn row_view(tensor: &Tensor) -> Result<RowView> {
    let desc = tensor.desc();
    let host = desc.format.row_bytes(desc.n_cols);
    let (Some(host), Some(device)) = (host, plain_stride(&desc)) else {
        return Err(driver("copy", format!("{desc} has rows that are not whole blocks")));
    };
    Ok(RowView { span: plain(tensor)?, host, device: device as usize })
}

/// Pads host rows of `host` bytes to `device` bytes; an incomplete last row keeps its length.
pub(crate) fn pad_rows(bytes: &[u8], host: usize, device: usize) -> Cow<'_, [u8]> {
    if host == device || host == 0 {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len().div_ceil(host) * device);
    for row in bytes.chunks(host) {
        out.extend_from_slice(row);
        if row.len() == host {
            out.resize(out.len() + device - host, 0);
        }
    }
    Cow::Owned(out)
}

/// Writes to the first bytes of a plain view, after the previous submission and before the next
/// one.
pub(crate) fn upload(gpu: &Gpu, bytes: &[u8], dst: &Tensor) -> Result<()> {
    gpu.add_copy();
    let rows = row_view(dst)?;
    let bytes = pad_rows(bytes, rows.host, rows.device);
    write(gpu, &rows.span, 0, &bytes)
}

/// Writes `bytes` to a span from byte `at` on, a multiple of 4. If `bytes` ends inside a word, the
/// rest of that word keeps its value.
pub(crate) fn write(gpu: &Gpu, span: &Span, at: u64, bytes: &[u8]) -> Result<()> {
    let (whole, rest) = bytes.split_at(bytes.len() / 4 * 4);
    if !whole.is_empty() {
        gpu.queue.write_buffer(&span.buffer, span.offset + at, whole);
    }
    if rest.is_empty() {
        return Ok(());
    }
    let mut word = [0; 4];
    word[..rest.len()].copy_from_slice(rest);
    let mask = (1u32 << (8 * rest.len())) - 1;
    let last = span.part(at + whole.len() as u64, 4);
    let numbers = [mask, u32::from_le_bytes(word)];
    dispatch(gpu, &Source::new("patch_word"), &[last], &numbers, [1, 1, 1])
}

fn dispatch(
    gpu: &Gpu,
    source: &Source,
    spans: &[Span],
    numbers: &[u32],
    grid: [u32; 3],
) -> Result<()> {
    let dispatch = prepare(gpu, source, spans, numbers, grid)?;
    let mut encoder = gpu.encoder(source.name());
    dispatch.encode(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()));
    gpu.submit(Some(encoder.finish()));
    Ok(())
}

/// Copies rows to another tensor of the same shape.
pub(crate) fn copy_rows(gpu: &Gpu, src: &Tensor, dst: &Tensor) -> Result<()> {
    let (from, to) = (plain(src)?, plain(dst)?);
    if from.size == 0 {
        return Ok(());
    }
    if from.buffer != to.buffer {
        let mut encoder = gpu.encoder("copy rows");
        let (a, b) = (&from.buffer, &to.buffer);
        encoder.copy_buffer_to_buffer(a, from.offset, b, to.offset, from.size);
        gpu.submit(Some(encoder.finish()));
        return Ok(());
    }
    // wgpu cannot copy a buffer to itself, so a shader copies ranges that fit one binding.
    let flat = gpu.facts.tuning.flat;
    let source = Source::new("copy_words").set("FLAT", flat);
    let piece = gpu.facts.max_binding();
    for at in (0..from.size).step_by(piece as usize) {
        let size = piece.min(from.size - at);
        let words = size / 4;
        let grid = gpu.facts.grid((words as usize).div_ceil(flat as usize));
        dispatch(gpu, &source, &[from.part(at, size), to.part(at, size)], &[words as u32], grid)?;
    }
    Ok(())
}

/// A submitted copy from the device to the host, of `len` bytes.
#[derive(Debug)]
pub(crate) struct Readback {
    buffer: wgpu::Buffer,
    submission: Submission,
    mapped: Receiver<std::result::Result<(), wgpu::BufferAsyncError>>,
    len: usize,
    /// Bytes of a row on the host and on the device.
    host: usize,
    device: usize,
}

/// Starts a copy of the first bytes of a plain view, enough to fill `staging`.
pub(crate) fn download(gpu: &Gpu, src: &Tensor, staging: &dyn RawStaging) -> Result<Readback> {
    let rows = row_view(src)?;
    let len = staging.bytes().len();
    let on_device = if rows.host == rows.device || rows.host == 0 {
        len
    } else {
        len / rows.host * rows.device + len % rows.host
    };
    let size = (on_device.max(1).div_ceil(4) * 4) as u64;
    let any: &dyn std::any::Any = staging;
    let staging_buffer = any.downcast_ref::<WgpuStaging>().map(|staging| &staging.readback);
    let buffer = match staging_buffer {
        Some(readback) if readback.size() >= size => readback.clone(),
        // The device's padded rows need a larger buffer than `staging` has.
        _ => gpu.readback("padded staging", size)?,
    };
    gpu.add_copy();
    let mut encoder = gpu.encoder("download");
    let span = &rows.span;
    let copied = size.min(span.buffer.size() - span.offset);
    encoder.copy_buffer_to_buffer(&span.buffer, span.offset, &buffer, 0, copied);
    let submission = gpu.submit(Some(encoder.finish()));
    let mapped = request_mapping(&buffer);
    let (host, device) = (rows.host, rows.device);
    Ok(Readback { buffer, submission, mapped, len, host, device })
}

pub(crate) fn request_mapping(
    buffer: &wgpu::Buffer,
) -> Receiver<std::result::Result<(), wgpu::BufferAsyncError>> {
    let (sender, mapped) = channel();
    buffer.map_async(wgpu::MapMode::Read, .., move |result| {
        // Sending fails if the readback was dropped with its receiver.
        let _ = sender.send(result);
    });
    mapped
}

pub(crate) fn wait_for_mapping(
    gpu: &Gpu,
    buffer: &wgpu::Buffer,
    submission: &Submission,
    mapped: &Receiver<std::result::Result<(), wgpu::BufferAsyncError>>,
) -> Result<wgpu::BufferView> {
    let outcome = match mapped.try_recv() {
        Ok(outcome) => outcome,
        Err(_) => {
            gpu.wait_and_poll(submission)?;
            mapped.recv().map_err(|_| driver("map", "the device dropped the request"))?
        }
    };
    outcome.map_err(|error| driver("map", one_line(&error)))?;
    buffer.get_mapped_range(..).map_err(|error| driver("map", one_line(&error)))
}

impl Readback {
    /// Whether the copy is done, or cannot complete because the device is lost.
    pub(crate) fn is_done(&self, gpu: &Gpu) -> bool {
        gpu.health.check().is_err() || gpu.poll(&self.submission, Duration::ZERO).unwrap_or(true)
    }

    /// Waits for the copy, then copies its bytes to `out`.
    pub(crate) fn finish(self, gpu: &Gpu, out: &mut [u8]) -> Result<()> {
        let view = wait_for_mapping(gpu, &self.buffer, &self.submission, &self.mapped)?;
        if self.host == self.device || self.host == 0 {
            out.copy_from_slice(&view[..self.len]);
        } else {
            for (row, out) in view.chunks(self.device).zip(out.chunks_mut(self.host)) {
                out.copy_from_slice(&row[..out.len()]);
            }
        }
        drop(view);
        self.buffer.unmap();
        Ok(())
    }
}

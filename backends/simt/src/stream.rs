//! A safe wrapper around a driver's stream: it upholds the driver's safety conditions.
//!
//! The submitter keeps all memory alive until the work that accesses it is done: the program or the
//! command holds the tensors, and the transfer owns the host memory.

#![allow(unsafe_code, reason = "a driver does not check addresses and arguments")]

use std::sync::Arc;

use hal::Result;

use crate::buffer::Span;
use crate::driver::{DevicePtr, Driver};
use crate::error::failure;
use crate::pinned::Pinned;
use crate::program::LoadedLaunch;

/// A stream, which runs its work in order.
#[derive(Debug)]
pub(crate) struct Stream<D: Driver> {
    driver: Arc<D>,
    raw: D::Stream,
}

impl<D: Driver> Stream<D> {
    pub(crate) fn new(driver: &Arc<D>) -> Result<Stream<D>> {
        Ok(Stream { raw: driver.stream()?, driver: Arc::clone(driver) })
    }

    pub(crate) fn finish(&self) -> Result<()> {
        self.driver.finish(&self.raw)
    }

    /// An event without a timestamp, for [`Stream::record`].
    pub(crate) fn event(&self) -> Result<D::Event> {
        self.driver.event(false)
    }

    /// Records an event after all submitted work.
    pub(crate) fn record(&self, event: &D::Event) -> Result<()> {
        self.driver.record(event, &self.raw)
    }

    /// Creates and records an event after all submitted work.
    pub(crate) fn mark(&self, timed: bool) -> Result<D::Event> {
        let event = self.driver.event(timed)?;
        self.driver.record(&event, &self.raw)?;
        Ok(event)
    }

    /// Copies `len` bytes of pinned memory, from byte `at` on, to byte `offset` of a span.
    pub(crate) fn copy_in(
        &self,
        to: Span,
        offset: u64,
        from: &Pinned<D>,
        at: usize,
        len: usize,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (to, inside) = (offset_in(to, offset, len)?, from.len() >= at + len);
        if !inside {
            return Err(failure("copy in", format!("{len} bytes at {at} exceed {from:?}")));
        }
        // SAFETY: both ranges were checked; the owner of the work keeps both until a later event
        // has happened.
        unsafe { self.driver.copy_in(&self.raw, to, from.as_ptr().add(at), len) }
    }

    /// Copies `len` bytes of a span, from byte `offset` on, to byte `at` of pinned memory.
    pub(crate) fn copy_out(
        &self,
        to: &mut Pinned<D>,
        at: usize,
        from: Span,
        offset: u64,
        len: usize,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (from, inside) = (offset_in(from, offset, len)?, to.len() >= at + len);
        if !inside {
            return Err(failure("copy out", format!("{len} bytes at {at} exceed {to:?}")));
        }
        // SAFETY: as in `copy_in`; the memory belongs to the transfer alone until then.
        unsafe { self.driver.copy_out(&self.raw, to.as_mut_ptr().add(at), from, len) }
    }

    /// Copies within device memory; the spans have the same size and do not overlap.
    pub(crate) fn copy(&self, to: Span, from: Span) -> Result<()> {
        if from.size == 0 {
            return Ok(());
        }
        let len = from.size as usize;
        let to = offset_in(to, 0, len)?;
        // SAFETY: both spans belong to live tensors, which the command holds.
        unsafe { self.driver.copy(&self.raw, to, from.at, len) }
    }

    /// Sets all words of a span to `word`.
    pub(crate) fn fill(&self, to: Span, word: u32) -> Result<()> {
        if to.size == 0 {
            return Ok(());
        }
        // SAFETY: the span is live memory, which the command holds.
        unsafe { self.driver.fill(&self.raw, to.at, word, (to.size / 4) as usize) }
    }

    pub(crate) fn launch(&self, loaded: &LoadedLaunch<D>) -> Result<()> {
        // SAFETY: lowering passes the arguments that the kernel declares (the conformance suite
        // launches every kernel); the program holds the module and the tensors, and its run holds
        // the program.
        unsafe { self.driver.launch(&self.raw, loaded.function, loaded.geometry, &loaded.args) }
    }

    /// Captures, as a graph, the work that `submit` submits.
    pub(crate) fn capture(&self, submit: impl FnOnce() -> Result<()>) -> Result<D::Graph> {
        self.driver.begin_capture(&self.raw)?;
        let submitted = submit();
        let graph = self.driver.end_capture(&self.raw);
        submitted?;
        graph
    }

    pub(crate) fn launch_graph(&self, graph: &D::Graph) -> Result<()> {
        // SAFETY: as in `launch`; runs of a program follow each other on one stream.
        unsafe { self.driver.launch_graph(&self.raw, graph) }
    }
}

fn offset_in(span: Span, offset: u64, len: usize) -> Result<DevicePtr> {
    if offset.checked_add(len as u64).is_some_and(|end| end <= span.size) {
        Ok(span.at + offset)
    } else {
        Err(failure(
            "copy",
            format!("{len} bytes at {offset} exceed a span of {} bytes", span.size),
        ))
    }
}

//! A stream as the rest of this crate uses it: the promises that a driver wants are kept here.
//!
//! Who gives work to a stream keeps what the work reaches until it is done: tensors through the program or the command
//! that holds them, host memory through the transfer that owns it.

#![allow(unsafe_code, reason = "a driver believes its caller in addresses and arguments")]

use std::sync::Arc;

use hal::Result;

use crate::buffer::Span;
use crate::driver::{DevicePtr, Driver};
use crate::error::driver;
use crate::pinned::Pinned;
use crate::program::Ready;

/// Work in order.
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

    /// An event without a time, for [`Stream::record`].
    pub(crate) fn event(&self) -> Result<D::Event> {
        self.driver.event(false)
    }

    /// Puts an event behind all that was given.
    pub(crate) fn record(&self, event: &D::Event) -> Result<()> {
        self.driver.record(event, &self.raw)
    }

    /// A new event behind all that was given.
    pub(crate) fn mark(&self, timed: bool) -> Result<D::Event> {
        let event = self.driver.event(timed)?;
        self.driver.record(&event, &self.raw)?;
        Ok(event)
    }

    /// Copies `len` bytes of pinned memory from byte `at` on to the device.
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
        let (to, inside) = (inside(to, offset, len)?, hal_len(from) >= at + len);
        if !inside {
            return Err(driver("copy in", format!("{at} + {len} bytes of {from:?}")));
        }
        // SAFETY: both ranges were checked; the owner of the work keeps both until an event behind it has happened.
        unsafe { self.driver.copy_in(&self.raw, to, from.as_ptr().add(at), len) }
    }

    /// Copies to pinned memory, from byte `at` of it on.
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
        let (from, inside) = (inside(from, offset, len)?, hal_len(to) >= at + len);
        if !inside {
            return Err(driver("copy out", format!("{at} + {len} bytes of {to:?}")));
        }
        // SAFETY: as in `copy_in`; the memory is the transfer's alone until then.
        unsafe { self.driver.copy_out(&self.raw, to.as_mut_ptr().add(at), from, len) }
    }

    /// Copies inside the device; the spans have the same size and do not overlap.
    pub(crate) fn copy(&self, to: Span, from: Span) -> Result<()> {
        if from.size == 0 {
            return Ok(());
        }
        let len = from.size as usize;
        let to = inside(to, 0, len)?;
        // SAFETY: both are parts of live tensors, which their command holds.
        unsafe { self.driver.copy(&self.raw, to, from.at, len) }
    }

    /// Sets all words of a span.
    pub(crate) fn fill(&self, to: Span, word: u32) -> Result<()> {
        if to.size == 0 {
            return Ok(());
        }
        // SAFETY: part of live memory that its command holds.
        unsafe { self.driver.fill(&self.raw, to.at, word, (to.size / 4) as usize) }
    }

    /// Starts one kernel.
    pub(crate) fn launch(&self, ready: &Ready<D>) -> Result<()> {
        // SAFETY: lowering names the arguments of a kernel as its file does, which the conformance suite executes; the
        // program that holds the launch holds module and tensors, and its run holds the program.
        unsafe { self.driver.launch(&self.raw, ready.function, ready.geometry, &ready.args) }
    }

    /// Records what `give` gives.
    pub(crate) fn capture(&self, give: impl FnOnce() -> Result<()>) -> Result<D::Graph> {
        self.driver.begin_capture(&self.raw)?;
        let given = give();
        let graph = self.driver.end_capture(&self.raw);
        given?;
        graph
    }

    /// Starts recorded work.
    pub(crate) fn launch_graph(&self, graph: &D::Graph) -> Result<()> {
        // SAFETY: as in `launch`; a program's runs follow each other on one stream.
        unsafe { self.driver.launch_graph(&self.raw, graph) }
    }
}

fn inside(span: Span, offset: u64, len: usize) -> Result<DevicePtr> {
    match offset.checked_add(len as u64).is_some_and(|end| end <= span.size) {
        true => Ok(span.at + offset),
        false => Err(driver("copy", format!("{offset} + {len} of {} bytes", span.size))),
    }
}

fn hal_len<D: Driver>(pinned: &Pinned<D>) -> usize {
    hal::RawStaging::bytes(pinned).len()
}

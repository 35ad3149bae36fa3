//! Places and loads a model. If a device runs out of memory, plans again with a smaller budget;
//! after a device loss, plans again without that device.

use hal::Bytes;

use placement::{CPU, Placement};

use super::Engine;
use super::ready::ReadyEngine;
use crate::error::{Error, Result};
use crate::load::Loader;
use crate::sequence::pool::{Pool, PoolSizes};
use crate::size::Sizing;
use crate::size::cost::free_budget;

impl Engine {
    pub(super) fn sizing(&self) -> Sizing<'_> {
        let Engine { model, devices, options, mode, .. } = self;
        Sizing::with_mode(model, devices, options, *mode)
    }

    /// Loads the model with the placement `given` or, without it, a planned one. If a device fails
    /// to load its share of a planned placement, plans again with a smaller budget.
    pub(super) fn place(
        &mut self,
        given: Option<Placement>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<()> {
        self.ready = None;
        self.pool = Pool::new(PoolSizes::new(&self.model, &self.options));
        let mut budgets: Vec<Bytes> = self.devices.iter().map(free_budget).collect();
        for (budget, lost) in budgets.iter_mut().zip(&self.lost) {
            if *lost {
                *budget = Bytes(0);
            }
        }
        let sizing = self.sizing();
        let fixed = given.is_some();
        let mut forecast = None;
        let mut placement = match given {
            Some(placement) => placement,
            None => sizing.place(&budgets, &mut forecast),
        };
        loop {
            let loader = Loader { sizing: &sizing, paged: None, progress };
            match ReadyEngine::build(&loader, &placement, forecast.as_ref()) {
                Ok((ready, slow)) => {
                    slow.iter().for_each(|slow| (self.notice)(slow));
                    self.placement = placement;
                    self.forecast = forecast;
                    self.ready = Some(ready);
                    return Ok(());
                }
                Err(Error::Device(error)) if !fixed => {
                    self.shrink(&error, &mut budgets)?;
                    placement = sizing.place(&budgets, &mut forecast);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reduces the budget by the bytes that a device could not allocate, and by at least 1/32 of
    /// the budget, so that a device that keeps failing is soon unused.
    fn shrink(&self, error: &hal::Error, budgets: &mut [Bytes]) -> Result<()> {
        let (device, missing) = match error {
            hal::Error::OutOfMemory { device, requested, free, .. } => {
                (device, (*requested - *free).max(Bytes(1 << 10)))
            }
            // A lost device, or one that rejects an op that the planner did not ask about, is no
            // longer used.
            hal::Error::DeviceLost { device, .. } | hal::Error::Unsupported { device, .. } => {
                (device, Bytes::MAX)
            }
            hal::Error::Shape { .. }
            | hal::Error::Aliasing { .. }
            | hal::Error::ForeignBuffer { .. }
            | hal::Error::MissingLibrary { .. }
            | hal::Error::Driver { .. }
            | hal::Error::TimedOut { .. }
            | hal::Error::Cancelled => return Err(error.clone().into()),
        };
        let index = self.devices.iter().position(|d| d.info().name == *device);
        match index {
            Some(index) if index != CPU && budgets[index] > Bytes(0) => {
                // An unlimited budget is first set to the peak of the allocated bytes plus the
                // missing ones.
                let used = self.devices[index].ledger().peak();
                let before = budgets[index].min(used + missing);
                budgets[index] = before - missing.max(Bytes(before.0 / 32));
                let less = before - budgets[index];
                (self.notice)(&format!("{error}; continuing with {less} less memory on {device}"));
                Ok(())
            }
            _ => Err(error.clone().into()),
        }
    }

    /// Unloads the model because a device was lost. The next step begins with
    /// [`Engine::ensure_placed`].
    pub(super) fn unload_after_loss(&mut self, device: &str, reason: &str) -> Result<()> {
        let index = self.devices.iter().position(|d| d.info().name == device);
        match index {
            Some(index) if index != CPU && !self.lost[index] => self.lost[index] = true,
            _ => {
                let (device, reason) = (device.to_owned(), reason.to_owned());
                return Err(hal::Error::DeviceLost { device, reason }.into());
            }
        }
        (self.notice)(&format!("{device} was lost ({reason}); continuing without it"));
        self.ready = None;
        Ok(())
    }

    /// Places the model on the remaining devices after a loss, if that has not happened yet.
    pub(super) fn ensure_placed(&mut self) -> Result<()> {
        match self.ready {
            Some(_) => Ok(()),
            // The new pool is empty, so all sequences are computed again. This also holds after a
            // panic in a callback dropped the old model.
            None => self.place(None, &|_, _| {}),
        }
    }

    /// Unloads the model because a device waited too long for the CPU's part of a layer. Its
    /// programs are recorded again, and then do not wait on the device.
    pub(super) fn unload_after_timeout(&mut self, error: &hal::Error) {
        (self.notice)(&format!("{error}, so the model is loaded again without such waits"));
        self.ready = None;
    }

    /// Runs `f` on a loaded model, and runs it again after each device loss or timeout.
    pub(super) fn retry_after_losses<T>(
        &mut self,
        f: &mut dyn FnMut(&mut Engine) -> Result<T>,
    ) -> Result<T> {
        loop {
            match self.ensure_placed().and_then(|()| f(self)) {
                Err(Error::Device(hal::Error::DeviceLost { device, reason })) => {
                    self.unload_after_loss(&device, &reason)?;
                }
                Err(Error::Device(error @ hal::Error::TimedOut { .. })) => {
                    self.unload_after_timeout(&error);
                }
                other => return other,
            }
        }
    }
}

//! Converts errors of wgpu to errors of `hal`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use hal::{Bytes, Error, Result};

/// Records the loss of a device. The first error outside an error scope counts as a loss: a
/// submission with an error did not run, so later results would be wrong.
#[derive(Debug)]
pub(crate) struct Health {
    device: String,
    lost: OnceLock<String>,
}

impl Health {
    pub(crate) fn new(device: &str) -> Arc<Health> {
        Arc::new(Health { device: device.to_owned(), lost: OnceLock::new() })
    }

    /// Marks the device as lost, unless it is already.
    pub(crate) fn mark_lost(&self, reason: impl Into<String>) {
        // Only the first reason is stored: later errors follow from it.
        let _ = self.lost.set(reason.into());
    }

    /// # Errors
    /// [`Error::DeviceLost`], always with the same reason.
    pub(crate) fn check(&self) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(reason) => Err(self.lost(reason)),
        }
    }

    fn lost(&self, reason: &str) -> Error {
        Error::DeviceLost { device: self.device.clone(), reason: reason.to_owned() }
    }

    /// Runs a call in which wgpu panics if the driver reports a lost device. The panic hook still
    /// prints its message: a hook is global to the process, so a library must not replace it.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub(crate) fn guard<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        // wgpu's state after the panic is not used again: every later call checks `lost` first.
        catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
            let reason = self.lost.get_or_init(|| panic_text(&*panic));
            self.lost(reason)
        })
    }

    /// Registers callbacks for the device's loss and errors.
    pub(crate) fn watch(self: &Arc<Health>, device: &wgpu::Device) {
        let health = Arc::clone(self);
        device.set_device_lost_callback(move |reason, message| {
            health.mark_lost(format!("{reason:?}: {message}"));
        });
        let health = Arc::clone(self);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            health.mark_lost(one_line(&error));
        }));
    }
}

/// The message of a panic, on one line.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    one_line(&text.unwrap_or("the driver panicked"))
}

pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// An error of `call` that has no driver code.
pub(crate) fn driver(call: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Driver { call: call.into(), code: 0, message: message.into() }
}

/// Runs `make`, which creates an object on the device, and returns errors of the driver.
pub(crate) fn try_create<T>(
    device: &wgpu::Device,
    health: &Health,
    label: &str,
    requested: Bytes,
    make: impl FnOnce() -> T,
) -> Result<T> {
    health.check()?;
    // Error scopes are per thread: they do not catch errors of other threads.
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let result = make();
    let internal = pollster::block_on(internal.pop());
    let validation = pollster::block_on(validation.pop());
    let memory = pollster::block_on(memory.pop());
    if memory.is_some() {
        let (device, label, free) = (health.device.clone(), label.to_owned(), Bytes(0));
        return Err(Error::OutOfMemory { device, label, requested, free });
    }
    if let Some(error) = validation.or(internal) {
        return Err(driver(format!("creating {label}"), one_line(&error)));
    }
    health.check()?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wgpu panics when it polls a lost device, before or after it calls the lost-device callback.
    #[test]
    fn a_panic_in_wgpu_means_a_lost_device() {
        let reason_of = |health: &Health| {
            let result = health.guard(|| -> u32 { panic!("Error in {}:\n  gone", "Device::poll") });
            let expected = health.check().expect_err("the device counts as lost");
            assert_eq!(result, Err(expected.clone()));
            assert!(matches!(&expected, Error::DeviceLost { device, .. } if device == "Vulkan0"));
            expected.to_string()
        };
        let silent = Health::new("Vulkan0");
        assert_eq!(silent.guard(|| 7), Ok(7));
        assert_eq!(silent.check(), Ok(()));
        assert!(reason_of(&silent).contains("Error in Device::poll: gone"));
        let notified = Health::new("Vulkan0");
        notified.mark_lost("pulled out");
        assert!(reason_of(&notified).contains("pulled out"));
    }
}

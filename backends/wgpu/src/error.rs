//! What wgpu reports, as errors of the contract.

use std::sync::{Arc, OnceLock};

use hal::{Bytes, Error, Result};

/// Whether the device still works. The first fault that no scope caught ends it: what was submitted with a fault did
/// not run, so nothing after it can be believed.
#[derive(Debug)]
pub(crate) struct Health {
    device: String,
    lost: OnceLock<String>,
}

impl Health {
    pub(crate) fn new(device: &str) -> Arc<Health> {
        Arc::new(Health { device: device.to_owned(), lost: OnceLock::new() })
    }

    /// The device is gone; the first reason stays.
    pub(crate) fn lose(&self, reason: impl Into<String>) {
        // The second reason follows from the first.
        let _ = self.lost.set(reason.into());
    }

    /// # Errors
    /// [`Error::DeviceLost`], always the same one.
    pub(crate) fn check(&self) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(reason) => {
                Err(Error::DeviceLost { device: self.device.clone(), reason: reason.clone() })
            }
        }
    }

    /// Listens to a device.
    pub(crate) fn watch(self: &Arc<Health>, device: &wgpu::Device) {
        let health = Arc::clone(self);
        device.set_device_lost_callback(move |reason, message| {
            health.lose(format!("{reason:?}: {message}"));
        });
        let health = Arc::clone(self);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            health.lose(one_line(&error));
        }));
    }
}

/// A driver's error on one line.
pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// A refused call.
pub(crate) fn driver(call: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Driver { call: call.into(), code: 0, message: message.into() }
}

/// Runs `make`, which creates something on the device, and gives what went wrong with it as an error.
pub(crate) fn created<T>(
    device: &wgpu::Device,
    health: &Health,
    label: &str,
    wanted: Bytes,
    make: impl FnOnce() -> T,
) -> Result<T> {
    health.check()?;
    // Scopes are this thread's own: they catch nothing that another one creates.
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let made = make();
    let internal = pollster::block_on(internal.pop());
    let validation = pollster::block_on(validation.pop());
    let memory = pollster::block_on(memory.pop());
    if memory.is_some() {
        let (device, label, free) = (health.device.clone(), label.to_owned(), Bytes(0));
        return Err(Error::OutOfMemory { device, label, wanted, free });
    }
    if let Some(error) = validation.or(internal) {
        return Err(driver(format!("creating {label}"), one_line(&error)));
    }
    health.check()?;
    Ok(made)
}

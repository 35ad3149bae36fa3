//! Shaders that a self-test found wrong, and faults that tests plant for it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::shader;

/// Shaders whose sums use workgroup memory although the device has subgroups.
#[derive(Debug, Default)]
pub(crate) struct PlainShaders(Mutex<BTreeSet<String>>);

impl PlainShaders {
    /// Adds a shader. Returns whether this changes it.
    pub(crate) fn add(&self, name: &str) -> bool {
        shader::has_sums(name)
            && self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}

/// Text of shaders and its replacement, for a test of what finds a wrong shader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlantedFault(pub Option<(String, String)>);

impl PlantedFault {
    pub(crate) fn apply(&self, text: String) -> String {
        match &self.0 {
            Some((right, wrong)) => text.replace(right, wrong),
            None => text,
        }
    }
}

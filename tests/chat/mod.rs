//! Conversations: templates as Python renders them, hostile templates, and the command.

mod command;
mod flags;
mod hostile;
mod render;
mod terminal;

use std::path::Path;

use thermocline::embedded;
use thermocline::gguf::{Container, Value, Writer};

/// Writes the built-in model with these keys changed or added.
pub(crate) fn built_in_with(path: &Path, changes: &[(&str, Value)]) {
    let file = embedded::file().unwrap();
    let mut writer = Writer::new(Container::Gguf);
    let kept = |key: &str| changes.iter().all(|(changed, _)| *changed != key);
    for (key, value) in file.metadata().iter().filter(|(key, _)| kept(key)) {
        writer.set(key, value.clone()).unwrap();
    }
    for (key, value) in changes {
        writer.set(key, value.clone()).unwrap();
    }
    for tensor in file.tensors() {
        writer.declare(&tensor.name, &tensor.shape, tensor.ty).unwrap();
    }
    let mut data = writer.create(path).unwrap();
    for tensor in file.tensors() {
        data.write(&tensor.name, file.bytes(tensor).unwrap()).unwrap();
    }
    data.finish().unwrap();
}

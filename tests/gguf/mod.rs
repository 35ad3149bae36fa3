//! The container: real files, round trips, and malformed files.

mod files;
mod hostile;
mod random;
mod real;
mod round_trip;

use hal::format::Format;
use thermocline::gguf::{Array, Container, DataWriter, TensorType, Value, Writer};

/// A small container with values of several types and three tensors, without their data.
fn small(container: Container) -> Writer {
    let mut writer = Writer::new(container);
    writer.set("general.architecture", "llama").unwrap();
    writer.set("a.u32", 7_u32).unwrap();
    writer.set("a.i64", -7_i64).unwrap();
    writer.set("a.f32", 0.5_f32).unwrap();
    writer.set("a.bool", true).unwrap();
    writer.set("a.raw", Value::String(vec![b'a', 0xff, 0])).unwrap();
    writer.set("a.scores", Array::F32(vec![0.0, -1.5])).unwrap();
    writer.set("a.pieces", strings(&[b"<s>", b"", b"\xe2\x96", b"word"])).unwrap();
    writer.set("a.nested", Array::Array(vec![Array::U8(vec![1, 2]), strings(&[b"x"])])).unwrap();
    writer.declare("norm", &[3], TensorType::F32).unwrap();
    writer.declare("weight", &[64, 2], Format::Q4_0).unwrap();
    writer.declare("ids", &[5], TensorType::I32).unwrap();
    writer
}

fn strings(list: &[&[u8]]) -> Array {
    Array::String(list.iter().collect())
}

/// Fills every tensor with bytes that depend on their position, a few at a time.
fn fill<S: std::io::Write>(data: &mut DataWriter<S>) {
    for tensor in data.tensors().to_vec() {
        let bytes = contents(&tensor.name, tensor.n_bytes());
        bytes.chunks(7).for_each(|chunk| data.write(&tensor.name, chunk).unwrap());
    }
}

fn contents(name: &str, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ name.as_bytes()[0]).collect()
}

fn small_bytes(container: Container) -> Vec<u8> {
    let mut data = small(container).in_memory().unwrap();
    fill(&mut data);
    data.finish().unwrap()
}

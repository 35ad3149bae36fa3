//! Random containers survive a round trip; random damage never causes panics, hangs or large
//! allocations.

use proptest::{collection::vec, prelude::*};

use super::{contents, fill, small_bytes};
use thermocline::gguf::{Array, Container, File, TensorType, Value, Writer};

fn arrays() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(vec(any::<u8>(), 0..5), 0..9).prop_map(|s| Array::String(s.iter().collect())),
    ];
    flat.prop_recursive(3, 30, 5, |inner| vec(inner, 0..5).prop_map(Array::Array))
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        vec(any::<u8>(), 0..40).prop_map(Value::String),
        arrays().prop_map(Value::Array),
    ]
}

/// Calls every reading method of a file. Getters may fail; nothing may panic.
fn read_everything(file: &File) {
    let metadata = file.metadata();
    for (key, value) in metadata.iter() {
        let _ = (value.to_string(), value.as_str().is_some());
        let _ = (metadata.u32(key), metadata.i32(key), metadata.u64(key), metadata.f32(key));
        let _ = (metadata.bool(key), metadata.str(key), metadata.str_array(key));
        let _ = (metadata.u32_array(key), metadata.i32_array(key), metadata.f32_array(key));
        assert!(metadata.get(key).is_some());
    }
    for tensor in file.tensors() {
        assert!(file.tensor(&tensor.name).is_some());
        let _ = (tensor.n_rows(), tensor.row_len(), tensor.to_owned());
        if let Ok(bytes) = file.bytes(tensor) {
            assert_eq!(bytes.len() as u64, tensor.n_bytes());
            let _: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
        }
    }
}

#[derive(Clone, Debug)]
enum Damage {
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Number(usize, u64),
    Cut(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || 0..1000_usize;
    let numbers =
        prop_oneof![any::<u64>(), 0..9_u64, Just(u64::MAX), (0..64_u32).prop_map(|n| 1 << n)];
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        2 => at().prop_map(Damage::Remove),
        4 => (at(), numbers).prop_map(|(at, number)| Damage::Number(at, number)),
        1 => at().prop_map(Damage::Cut),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len().max(1);
        match *self {
            _ if bytes.is_empty() => {}
            Damage::Set(at, byte) => bytes[at % len] = byte,
            Damage::Insert(at, byte) => bytes.insert(at % len, byte),
            Damage::Remove(at) => drop(bytes.remove(at % len)),
            Damage::Number(at, number) => {
                let at = at % len;
                let n = 8.min(len - at);
                bytes[at..at + n].copy_from_slice(&number.to_le_bytes()[..n]);
            }
            Damage::Cut(at) => bytes.truncate(at % len),
        }
    }
}

/// Stores no seeds of failing cases, because each failure gets its own test.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn damaged_files_are_refused_or_read(list in vec(damage(), 1..6), powerinfer: bool) {
        let container = if powerinfer { Container::PowerInfer } else { Container::Gguf };
        let mut bytes = small_bytes(container);
        list.iter().for_each(|damage| damage.apply(&mut bytes));
        if let Ok(file) = File::from_vec(bytes, "damaged") {
            read_everything(&file);
        }
    }

    #[test]
    fn random_bytes_are_refused_or_read(tail in vec(any::<u8>(), 0..200), version in 2..4_u32) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(&tail);
        for bytes in [bytes, tail] {
            if let Ok(file) = File::from_vec(bytes, "random") {
                read_everything(&file);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn any_container_round_trips(
        list in vec(values(), 0..12),
        tensors in vec((0..TensorType::all().count(), 0..3_u64, vec(0..4_u64, 0..4)), 0..8),
        alignment in 0..8_u32,
    ) {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.alignment", 1_u32 << alignment).unwrap();
        for (n, value) in list.iter().enumerate() {
            writer.set(&format!("key.{n}"), value.clone()).unwrap();
        }
        for (n, (ty, blocks, rest)) in tensors.iter().enumerate() {
            let ty = TensorType::all().nth(*ty).unwrap();
            let mut shape = vec![blocks * ty.block().unwrap().values];
            shape.extend(rest);
            writer.declare(&format!("tensor.{n}"), &shape, ty).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        fill(&mut data);
        let declared = data.tensors().to_vec();
        let file = File::from_vec(data.finish().unwrap(), "any").unwrap();
        read_everything(&file);
        for (n, value) in list.iter().enumerate() {
            // Compared as text: a NaN does not equal itself.
            let found = file.metadata().get(&format!("key.{n}")).unwrap();
            prop_assert_eq!(format!("{found:?}"), format!("{value:?}"));
        }
        prop_assert_eq!(file.tensors().len(), declared.len());
        for (tensor, declared) in file.tensors().iter().zip(&declared) {
            prop_assert_eq!((&tensor.name, &tensor.shape, tensor.ty), (&declared.name, &declared.shape, declared.ty));
            prop_assert_eq!(file.bytes(tensor).unwrap(), contents(&tensor.name, tensor.n_bytes()));
        }
    }
}

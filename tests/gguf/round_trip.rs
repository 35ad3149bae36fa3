//! The reader reads what the writer wrote.

use super::{contents, fill, small, small_bytes, strings};
use hal::format::Format;
use thermocline::gguf::{Array, Container, File, TensorType, Value, Writer};

#[test]
fn values_and_tensors_round_trip() {
    for container in [Container::Gguf, Container::PowerInfer] {
        let file = File::from_vec(small_bytes(container), "memory").unwrap();
        assert_eq!((file.container(), file.version(), file.name()), (container, 3, "memory"));
        assert!(file.paths().is_empty());

        let metadata = file.metadata();
        let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys[..3], ["general.architecture", "a.u32", "a.i64"]);
        assert_eq!(metadata.len(), 9);
        assert_eq!(metadata.get("a.raw"), Some(&Value::String(vec![b'a', 0xff, 0])));
        assert_eq!(metadata.get("a.raw").unwrap().as_str().unwrap(), "a\u{fffd}\0");
        let nested = Array::Array(vec![Array::U8(vec![1, 2]), strings(&[b"x"])]);
        assert_eq!(metadata.get("a.nested"), Some(&Value::Array(nested)));
        let pieces = metadata.str_array("a.pieces").unwrap().unwrap();
        assert_eq!(pieces.iter().collect::<Vec<_>>(), [&b"<s>"[..], b"", b"\xe2\x96", b"word"]);
        assert_eq!((pieces.get(1), pieces.get(4)), (Some(&b""[..]), None));

        let names: Vec<&str> = file.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["norm", "weight", "ids"]);
        for tensor in file.tensors() {
            let expected = contents(&tensor.name, tensor.n_bytes());
            assert_eq!(file.bytes(tensor).unwrap(), expected);
            assert_eq!(&*file.slice(tensor).unwrap(), expected);
            assert_eq!(tensor.offset() % 32, 0);
        }
        let weight = file.tensor("weight").unwrap();
        assert_eq!((weight.n_elements(), weight.n_rows(), weight.n_bytes()), (128, 2, 72));
        assert_eq!(weight.shape, [64, 2]);
        assert!(file.tensor("wei").is_none());
    }
}

#[test]
fn getters_convert_widths_and_refuse_other_types() {
    let mut writer = small(Container::Gguf);
    writer.set("a.wide", Array::I64(vec![1, -1])).unwrap();
    writer.set("a.u64", u64::MAX).unwrap();
    writer.set("a.f64", 0.25_f64).unwrap();
    writer.set("a.bools", Array::Bool(vec![true, false])).unwrap();
    writer.set("a.long", "long ".repeat(40)).unwrap();
    let mut data = writer.in_memory().unwrap();
    fill(&mut data);
    let file = File::from_vec(data.finish().unwrap(), "m.gguf").unwrap();
    let m = file.metadata();

    assert_eq!(m.u64("a.u32").unwrap(), Some(7));
    assert_eq!(m.i32("a.i64").unwrap(), Some(-7));
    assert_eq!(m.u64("a.u64").unwrap(), Some(u64::MAX));
    assert_eq!(m.f32("a.f64").unwrap(), Some(0.25));
    assert_eq!(m.bool("a.bool").unwrap(), Some(true));
    assert_eq!(m.i32_array("a.wide").unwrap().unwrap()[..], [1, -1]);
    assert_eq!(m.f32_array("a.scores").unwrap().unwrap()[..], [0.0, -1.5]);
    assert_eq!(m.bool_array("a.bools").unwrap(), Some(&[true, false][..]));
    assert_eq!(m.u32("absent").unwrap(), None);
    assert!(m.str_array("absent").unwrap().is_none());

    let check = |error: thermocline::gguf::Error, expected: &str| {
        assert_eq!(error.to_string(), format!("m.gguf: key {expected}"));
    };
    let natural = "a whole number from 0 to 4294967295";
    check(
        m.u32("a.i64").unwrap_err(),
        &format!("`a.i64` should hold {natural}, found the i64 `-7`"),
    );
    check(
        m.u32("a.u64").unwrap_err(),
        &format!("`a.u64` should hold {natural}, found the u64 `18446744073709551615`"),
    );
    check(
        m.u32_array("a.wide").unwrap_err(),
        "`a.wide` should hold an array of whole numbers from 0 to 4294967295, \
         found an array of 2 i64 with the element -1",
    );
    check(m.bool("a.u32").unwrap_err(), "`a.u32` should hold a bool, found the u32 `7`");
    check(
        m.f32("a.pieces").unwrap_err(),
        "`a.pieces` should hold a floating-point number, found an array of 4 string",
    );
    check(
        m.str("a.raw").unwrap_err(),
        "`a.raw` should hold a UTF-8 string, found the string `a\u{fffd}\0`",
    );
    let long = "long ".repeat(8);
    check(
        m.str_array("a.long").unwrap_err(),
        &format!("`a.long` should hold an array of strings, found the string `{long}...`"),
    );
}

#[test]
fn alignment_is_kept() {
    for alignment in [1_u32, 2, 64, 4096] {
        let mut writer = small(Container::Gguf);
        writer.set("general.alignment", alignment).unwrap();
        let mut data = writer.in_memory().unwrap();
        fill(&mut data);
        let bytes = data.finish().unwrap();
        assert_eq!(bytes.len() % alignment as usize, 0);
        let file = File::from_vec(bytes, "aligned").unwrap();
        for tensor in file.tensors() {
            assert_eq!(tensor.offset() % u64::from(alignment), 0);
            assert_eq!(file.bytes(tensor).unwrap(), contents(&tensor.name, tensor.n_bytes()));
        }
    }
}

#[test]
fn static_bytes_need_no_alignment() {
    let mut shifted = vec![0];
    shifted.extend(small_bytes(Container::Gguf));
    let bytes: &'static [u8] = &shifted.leak()[1..];
    let file = File::from_static(bytes, "embedded").unwrap();
    let norm = file.slice(file.tensor("norm").unwrap()).unwrap();
    assert_eq!(&*norm.slice(1..3), &contents("norm", 12)[1..3]);
}

#[test]
fn each_type_has_the_id_of_its_container() {
    for ty in TensorType::all() {
        let id = ty.id(Container::Gguf).unwrap();
        assert_eq!(TensorType::from_id(id, Container::Gguf), ty);
        match ty.id(Container::PowerInfer) {
            Some(id) => assert_eq!(TensorType::from_id(id, Container::PowerInfer), ty),
            None => assert!(id > 15, "{ty} is as old as PowerInfer"),
        }
    }
    let i32_id = TensorType::I32.id(Container::PowerInfer);
    assert_eq!((i32_id, TensorType::I32.id(Container::Gguf)), (Some(18), Some(26)));
    assert_eq!(TensorType::from_id(30, Container::PowerInfer), TensorType::Unknown(30));
    assert_eq!(TensorType::Unknown(3).id(Container::Gguf), None);
    assert_eq!(
        format!("{:>6}|{}", TensorType::from(Format::Q4_K), TensorType::Unknown(99)),
        "  Q4_K|?99"
    );
}

#[test]
fn empty_tensors_and_arrays_round_trip() {
    let mut writer = Writer::new(Container::Gguf);
    writer.set("none", Array::U32(vec![])).unwrap();
    writer.set("no.pieces", strings(&[])).unwrap();
    for name in ["first", "middle", "last"] {
        writer.declare(name, &[0, 7], TensorType::F32).unwrap();
        if name == "first" {
            writer.declare("full", &[2], TensorType::F16).unwrap();
        }
    }
    let mut data = writer.in_memory().unwrap();
    data.write("full", &[1, 2, 3, 4]).unwrap();
    data.write("last", &[]).unwrap();
    let file = File::from_vec(data.finish().unwrap(), "empty tensors").unwrap();
    assert_eq!(file.bytes(file.tensor("full").unwrap()).unwrap(), [1, 2, 3, 4]);
    assert_eq!(file.bytes(file.tensor("middle").unwrap()).unwrap(), [0_u8; 0]);
    assert!(file.metadata().u32_array("none").unwrap().unwrap().is_empty());
    assert!(file.metadata().str_array("no.pieces").unwrap().unwrap().is_empty());
}

#[test]
fn the_writer_refuses_unreadable_files() {
    let mut w = small(Container::PowerInfer);
    let check = |result: Result<(), thermocline::gguf::Error>, expected: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    };
    check(w.set("a.u32", 1_u32), "key `a.u32` occurs twice");
    check(w.set(&"k".repeat(65_536), 1_u32), "65536 bytes, expected at most 65535");
    check(w.set("general.alignment", 24_u32), "power of two up to 2147483648, found 24");
    check(w.set("general.alignment", "32"), "found the string `32`");
    let deep = (0..4).fold(Array::U8(vec![]), |inner, _| Array::Array(vec![inner]));
    check(w.set("deep", deep), "deeper than 4");
    check(w.declare("norm", &[1], TensorType::F32), "tensor `norm` occurs twice");
    check(w.declare("t", &[], TensorType::F32), "0 dimensions, expected 1 to 4");
    check(w.declare("t", &[1; 5], TensorType::F32), "5 dimensions");
    check(w.declare("t", &[33], Format::Q8_0), "rows of 33 values, expected a multiple of 32");
    check(w.declare("t", &[1 << 32, 1 << 32], TensorType::F32), "64 bits");
    check(w.declare("t", &[1], Format::BF16), "BF16, which a PowerInfer GGUF file cannot");
    check(w.declare("t", &[1], TensorType::Unknown(77)), "type ?77");

    let mut data = w.in_memory().unwrap();
    check(data.write("weight", &[0]), "`weight` written, expected `norm`");
    check(data.write("norm", &[0; 13]), "`norm` needs 12 bytes of data, found 13");
    data.write("norm", &[0; 12]).unwrap();
    data.write("weight", &[0; 70]).unwrap();
    check(data.write("norm", &[0]), "`norm` written, expected `weight`");
    check(data.finish().map(drop), "`weight` needs 72 bytes of data, found 70");
}

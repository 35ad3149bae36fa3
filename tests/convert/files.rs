//! The output files: rows of any length, unchanged inputs, and parts that appear together.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use hal::format::Format;
use thermocline::convert::{self, Error, Limit};
use thermocline::gguf::{Container, File, TensorType, Writer};

use super::{conversion, incomplete_files, make, never_stop, quantization};

/// Writes a file of F32 tensors with distinct values.
fn file_of(path: &Path, tensors: &[(&str, &[u64])]) {
    let mut writer = Writer::new(Container::Gguf);
    writer.set("general.architecture", "llama").unwrap();
    for (name, shape) in tensors {
        writer.declare(name, shape, TensorType::F32).unwrap();
    }
    let mut data = writer.create(path).unwrap();
    for (name, shape) in tensors {
        let n = shape.iter().product::<u64>();
        let bytes: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
        data.write(name, &bytes).unwrap();
    }
    data.finish().unwrap();
}

#[test]
fn rows_of_any_length_are_copied() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    // A row of 12 MiB is larger than a chunk; two tensors are empty.
    let tensors: [(&str, &[u64]); 4] =
        [("long.weight", &[3 << 20, 2]), ("none", &[0]), ("rows.weight", &[0, 7]), ("last", &[3])];
    file_of(&path("in.gguf"), &tensors);
    convert::split(&path("in.gguf"), &path("part"), Limit::Tensors(2), false, &never_stop).unwrap();
    convert::merge(&path("part-00001-of-00002.gguf"), &path("out.gguf"), false, &never_stop)
        .unwrap();
    assert!(fs::read(path("in.gguf")).unwrap() == fs::read(path("out.gguf")).unwrap());
    quantization(&path("in.gguf"), &path("small.gguf"), "Q8_0").run(&never_stop).unwrap();
    let small = File::open(&path("small.gguf")).unwrap();
    let long = small.tensor("long.weight").unwrap();
    assert_eq!((long.ty, small.tensor("rows.weight").unwrap().n_bytes()), (Format::Q8_0.into(), 0));
    let (n, mut last) = (Format::Q8_0.row_bytes(32).unwrap(), [0.0; 32]);
    let bytes = small.bytes(long).unwrap();
    Format::Q8_0.dequantize(&bytes[bytes.len() - n..], &mut last);
    assert!((last[31] - (6 << 20) as f32).abs() < (6 << 20) as f32 / 100.0, "{}", last[31]);
}

#[test]
fn the_input_file_is_never_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let bytes = make::safetensors(&make::weights());
    let folder = make::folder(scratch.path(), &make::config(), "model.safetensors", &bytes);
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        let before = fs::read(folder.join(name)).unwrap();
        let error = conversion(folder.clone(), folder.join(name)).run(&never_stop).unwrap_err();
        assert!(matches!(error, Error::SameFile { .. }), "{error}");
        assert!(fs::read(folder.join(name)).unwrap() == before);
    }
    // The output path is another name of an input file.
    #[cfg(unix)]
    {
        let (blob, name) = (scratch.path().join("blob"), folder.join("model.safetensors"));
        fs::rename(&name, &blob).unwrap();
        std::os::unix::fs::symlink(&blob, &name).unwrap();
        let error = conversion(folder.clone(), blob).run(&never_stop).unwrap_err();
        assert!(matches!(error, Error::SameFile { .. }), "{error}");
    }
    let output = folder.join("model.gguf");
    fs::write(&output, "old").unwrap();
    conversion(folder, output.clone()).run(&never_stop).unwrap();
    assert!(fs::metadata(output).unwrap().len() > 3);
}

#[test]
fn parts_are_replaced_once_all_are_complete() {
    let scratch = tempfile::tempdir().unwrap();
    let (input, prefix) = (scratch.path().join("in.gguf"), scratch.path().join("part"));
    file_of(&input, &[("a", &[64]), ("b", &[64]), ("c", &[64])]);
    let (paths, _) =
        convert::split(&input, &prefix, Limit::Tensors(1), false, &never_stop).unwrap();
    let before: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let changed: [(&str, &[u64]); 3] = [("a", &[128]), ("b", &[128]), ("c", &[128])];
    file_of(&input, &changed);
    // `stop` is called before and after each tensor, so its fifth call is in the last file.
    let n_calls = AtomicU64::new(0);
    let stop = |_: u64, _: u64| match n_calls.fetch_add(1, Ordering::Relaxed) {
        0..4 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    let stopped = convert::split(&input, &prefix, Limit::Tensors(1), true, &stop);
    assert!(matches!(stopped, Err(Error::Interrupted)));
    assert!(paths.iter().zip(&before).all(|(path, bytes)| fs::read(path).unwrap() == *bytes));
    assert_eq!(incomplete_files(scratch.path()), [""; 0]);
    let (again, summary) =
        convert::split(&input, &prefix, Limit::Tensors(1), true, &never_stop).unwrap();
    assert_eq!(again, paths);
    let sizes = paths.iter().map(|path| fs::metadata(path).unwrap().len());
    assert_eq!(summary.size, sizes.sum::<u64>());
    assert_eq!(File::open(&paths[0]).unwrap().tensor("c").unwrap().shape, [128]);
}

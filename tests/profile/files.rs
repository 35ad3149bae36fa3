//! Profiles in Thermocline's and PowerInfer's formats: read, or rejected with a reason.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use thermocline::gguf::{Container, File, TensorType, Writer};
use thermocline::learned::{self, Section, SideFile};
use thermocline::profile::{Profile, Text, gpu_index, import};

use super::calibration::collect_profile;
use crate::convert::make::zip;
use crate::support::Tiny;

/// A file as `torch.save` writes it for a tensor of one axis, with this storage class and these
/// bytes.
fn torch(class: &str, n: u64, bytes: Vec<u8>) -> Vec<u8> {
    let number = |n: u64| [&b"J"[..], &(n as i32).to_le_bytes()].concat();
    let text =
        |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let pickle = [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        format!("ctorch\n{class}\n").into_bytes(),
        text("0"),
        text("cpu"),
        number(n),
        b"tQ".to_vec(),
        number(0),
        [b"(".to_vec(), number(n), b"t(".to_vec(), number(1), b"t".to_vec()].concat(),
        b"\x89ccollections\nOrderedDict\n)RtR.".to_vec(),
    ];
    zip(&[("a/data.pkl".to_owned(), pickle.concat()), ("a/data/0".to_owned(), bytes)])
}

fn write_counts(folder: &Path, layer: usize, counts: &[i64]) {
    let bytes = counts.iter().flat_map(|n| n.to_le_bytes()).collect();
    let file = torch("LongStorage", counts.len() as u64, bytes);
    fs::write(folder.join(format!("activation_{layer}.pt")), file).unwrap();
}

#[test]
fn powerinfers_counts_are_read_in_layer_order() {
    let model = Tiny { n_layer: 12, n_ff: 5, n_embd: 8, ..Tiny::default() }.model();
    let folder = tempfile::tempdir().unwrap();
    for layer in 0..12 {
        write_counts(folder.path(), layer, &[layer as i64, 1, 40, 0, 3]);
    }
    let floats: Vec<u8> =
        [7.0f32, 1.0, 40.0, 0.0, 3.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    fs::write(folder.path().join("activation_7.pt"), torch("FloatStorage", 5, floats)).unwrap();
    let profile = import(folder.path(), &model).unwrap();
    assert_eq!((profile.n_tokens(), profile.is_finished()), (40, true));
    for (layer, found) in profile.layers().iter().enumerate() {
        assert_eq!(found.active_counts(), [layer as u64, 1, 40, 0, 3]);
    }
    assert_eq!(profile.probabilities()[11], [11.0 / 40.0, 1.0 / 40.0, 1.0, 0.0, 3.0 / 40.0]);
    let path = folder.path().join("x.gguf");
    learned::save(&path, &model.file, Section::Profile, &profile.contents(&model), false).unwrap();
    let read = SideFile::open(&path, &model.file).unwrap();
    assert_eq!(Profile::read(&read, &model).unwrap().unwrap(), profile);

    let error = || import(folder.path(), &model).unwrap_err().to_string();
    write_counts(folder.path(), 3, &[1, 2, 3]);
    assert!(error().contains("has 3 numbers, expected 5"), "{}", error());
    write_counts(folder.path(), 3, &[1, 2, 3, 4, -5]);
    assert!(error().contains("has the value -5"), "{}", error());
    let nan: Vec<u8> = [f32::NAN; 5].iter().flat_map(|n| n.to_le_bytes()).collect();
    fs::write(folder.path().join("activation_3.pt"), torch("FloatStorage", 5, nan)).unwrap();
    assert!(error().contains("has the value NaN"), "{}", error());
    fs::write(folder.path().join("activation_3.pt"), b"PK").unwrap();
    assert!(error().contains("activation_3.pt"), "{}", error());
    fs::remove_file(folder.path().join("activation_3.pt")).unwrap();
    assert!(error().contains("activation_3.pt"), "{}", error());
    (0..12).for_each(|layer| write_counts(folder.path(), layer, &[0; 5]));
    assert!(error().contains("all counts are 0"), "{}", error());
}

/// The bytes of PowerInfer's list of neurons on the GPU: in each layer, those whose mark is 1.
fn gpu_index_bytes(n_layer: u32, marks: &[&[i32]]) -> Vec<u8> {
    let mut writer = Writer::new(Container::PowerInfer);
    writer.set("general.architecture", "generic.gpu_index").unwrap();
    writer.set("generic.gpu_index.block_count", n_layer).unwrap();
    writer.set("split.vram_capacity", 123_456u64).unwrap();
    let buckets = |marks: &[i32]| -> Vec<i32> {
        (0..).zip(marks).filter(|(_, mark)| **mark == 1).map(|(neuron, _)| neuron).collect()
    };
    let mut parts = Vec::new();
    for (layer, marks) in marks.iter().enumerate() {
        parts.push((format!("blk.{layer}.gpu_idx"), marks.to_vec()));
        parts.push((format!("blk.{layer}.gpu_bucket"), buckets(marks)));
    }
    for (name, values) in &parts {
        writer.declare(name, &[values.len() as u64], TensorType::I32).unwrap();
    }
    let mut data = writer.in_memory().unwrap();
    for (name, values) in &parts {
        let bytes: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
        data.write(name, &bytes).unwrap();
    }
    data.finish().unwrap()
}

#[test]
fn powerinfers_gpu_index_is_read_and_checked() {
    let bytes = gpu_index_bytes(2, &[&[1, 0, 0, 1], &[0, 0, 0, 0]]);
    let file = File::from_vec(bytes.clone(), "x.gpuidx").unwrap();
    let found = gpu_index(&file, &[4, 4]).unwrap();
    assert_eq!((found.vram_capacity, found.n_neurons()), (123_456, 2));
    assert_eq!(found.layers, [vec![0, 3], vec![]]);
    for (n_layer, n_ff, says) in [(3, 4, "2 layers"), (2, 5, "gpu_idx"), (1, 4, "2 layers")] {
        let error = gpu_index(&file, &vec![n_ff; n_layer]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 0x41;
        if let Ok(file) = File::from_vec(other, "x.gpuidx") {
            let _ = gpu_index(&file, &[4, 4]);
        }
    }
}

#[test]
fn a_mismatched_or_invalid_profile_is_refused() {
    let model = Tiny { n_layer: 2, ..Tiny::default() }.model();
    let text = Text::new(&(0..60).collect::<Vec<u32>>(), None, 32, None);
    let contents = collect_profile(&model, &text).contents(&model);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    // The profile has this model's fingerprint, but the sizes of another model.
    let other = Tiny { n_layer: 2, n_ff: 64, ..Tiny::default() }.model();
    learned::save(&path, &other.file, Section::Profile, &contents, false).unwrap();
    let error = Profile::read(&SideFile::open(&path, &other.file).unwrap(), &other).unwrap_err();
    assert!(error.to_string().contains("expected [64]"), "{error}");
    assert!(SideFile::open(&path, &model.file).is_err());
    let error_with = |name: &str, value: u64| {
        let mut contents = collect_profile(&model, &text).contents(&model);
        contents.replace(name, value);
        learned::save(&path, &model.file, Section::Profile, &contents, true).unwrap();
        let read = Profile::read(&SideFile::open(&path, &model.file).unwrap(), &model);
        read.unwrap_err().to_string()
    };
    assert!(error_with("tokens", 3).contains("counts from 0 to 3"));
    assert!(error_with("version", 9).contains("expected 1"));
    assert!(error_with("stride", 7).contains("samples"));
    assert!(error_with("tokens", u64::MAX).contains("samples"));
    assert!(error_with("stride", u64::MAX).contains("samples"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn changed_bytes_never_panic(at in 0usize..100_000, bit in 0u8..8, cut in 0usize..100_000) {
        let model = Tiny { n_layer: 1, n_ff: 40, n_embd: 8, ..Tiny::default() }.model();
        let text = Text::new(&(0..40).collect::<Vec<u32>>(), None, 32, None);
        let profile = text.start(&model);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        learned::save(&path, &model.file, Section::Profile, &profile.contents(&model), false).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let n = bytes.len();
        bytes[at % n] ^= 1 << bit;
        bytes.truncate(n.max(1) - cut % n * usize::from(cut % 2 == 0));
        if let Ok(read) = SideFile::from_vec(bytes, &model.file.fingerprint()) {
            let _ = Profile::read(&read, &model);
        }
    }
}

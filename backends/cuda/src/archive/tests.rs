//! Compares the committed archive with its manifest and with the kernel sources, and checks that
//! damaged copies are errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::*;

fn kernels_folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-cuda")
}

/// The non-empty lines of a source, without comments and trailing blanks.
fn strip_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

/// Hash of a kernel file and all that it includes, as `scripts/ptx_archive.py` computes it.
fn source_hash(file: &str) -> u64 {
    let (mut texts, mut pending) = (BTreeMap::new(), vec![format!("{file}.cu")]);
    while let Some(name) = pending.pop() {
        if texts.contains_key(&name) {
            continue;
        }
        let text = strip_comments(&fs::read_to_string(kernels_folder().join(&name)).unwrap());
        for line in text.lines() {
            let include = line.trim_start().strip_prefix('#').map(str::trim_start);
            let include = include.and_then(|rest| rest.strip_prefix("include")).map(str::trim);
            let quoted = include.and_then(|rest| rest.strip_prefix('"'));
            pending.extend(quoted.and_then(|rest| rest.split('"').next()).map(str::to_owned));
        }
        texts.insert(name, text);
    }
    let mut bytes = Vec::new();
    for (name, text) in &texts {
        for part in [name, text] {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part.as_bytes());
        }
    }
    fnv(&bytes)
}

#[test]
fn fnv_has_published_values() {
    assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
}

#[test]
fn every_unit_has_the_listed_hash_name_and_target() {
    let mut end = 0;
    for entry in EMBEDDED.entries() {
        let entry = entry.unwrap();
        let text = String::from_utf8(EMBEDDED.read(entry).unwrap()).unwrap();
        assert!(text.starts_with(&format!("// unit {}\n", entry.unit)), "{}", entry.unit);
        assert!(text.contains(&format!(".target sm_{}", entry.target)), "{}", entry.unit);
        assert!(text.ends_with('\0'), "{}", entry.unit);
        end = entry.frame.1;
    }
    assert_eq!(end, EMBEDDED.packed.len());
}

#[test]
fn every_unit_is_compiled_from_the_current_sources() {
    let mut hashes = BTreeMap::new();
    let mut stale = Vec::new();
    for entry in EMBEDDED.entries() {
        let entry = entry.unwrap();
        let file = entry.unit.split('.').next().unwrap();
        let hash = *hashes.entry(file).or_insert_with(|| source_hash(file));
        stale.extend((hash != entry.source).then_some(entry.unit));
    }
    assert!(stale.is_empty(), "run scripts/make_ptx: the sources of {stale:?} have changed");
    let files = fs::read_dir(kernels_folder()).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|end| end == "cu")) {
        let file = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(hashes.contains_key(&*file), "run scripts/make_ptx: {file} has no PTX");
    }
}

#[test]
fn a_device_gets_the_latest_target_it_runs() {
    let targets = |device: u32| {
        let text = String::from_utf8(EMBEDDED.ptx("matmul_many.q4_k", device).unwrap()).unwrap();
        text.lines().find_map(|line| line.strip_prefix(".target sm_")).unwrap().to_owned()
    };
    assert_eq!((targets(75), targets(79)), ("75".to_owned(), "75".to_owned()));
    assert_eq!((targets(80), targets(120)), ("80".to_owned(), "80".to_owned()));
    let missing = EMBEDDED.ptx("matmul_many.q4_k", 70).unwrap_err();
    assert!(matches!(missing, ArchiveError::Missing { target: 70 }), "{missing}");
    let missing = EMBEDDED.ptx("matmul_many", 80).unwrap_err();
    assert!(matches!(missing, ArchiveError::Missing { target: 80 }), "{missing}");
}

/// An archive that has only the frame with `unit`, so that tests need not decompress other frames.
fn one_frame(unit: &str) -> (String, Vec<u8>) {
    let file = unit.split('.').next().unwrap();
    let lines: Vec<&str> = EMBEDDED
        .manifest
        .lines()
        .skip_while(|line| !line.starts_with(&format!("file {file} ")))
        .enumerate()
        .take_while(|(index, line)| *index == 0 || line.starts_with("unit "))
        .map(|(_, line)| line)
        .collect();
    let entries = EMBEDDED.entries().map(Result::unwrap);
    let (from, to) = entries.into_iter().find(|entry| entry.unit == unit).unwrap().frame;
    (lines.join("\n"), EMBEDDED.packed[from..to].to_vec())
}

#[test]
fn damaged_archives_are_errors() {
    let (manifest, packed) = one_frame("route");
    let whole = Archive { manifest: &manifest, packed: &packed }.ptx("route", 75).unwrap();
    for at in 0..packed.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut bad = packed.clone();
            bad[at] ^= bits;
            let read = Archive { manifest: &manifest, packed: &bad }.ptx("route", 75);
            // Some bits do not matter: those of the frame's checksum, and reserved bits.
            assert!(read.is_err() || read.is_ok_and(|text| text == whole), "byte {at}");
        }
    }
    for length in 0..packed.len() {
        let short = Archive { manifest: &manifest, packed: &packed[..length] };
        assert!(
            matches!(short.ptx("route", 75), Err(ArchiveError::Short { .. })),
            "{length} bytes"
        );
    }
    // A frame that ends early although the manifest agrees with the archive.
    for length in (0..packed.len() - 4).step_by(97) {
        let manifest = manifest.replacen(&packed.len().to_string(), &length.to_string(), 1);
        let short = Archive { manifest: &manifest, packed: &packed[..length] };
        assert!(matches!(short.ptx("route", 75), Err(ArchiveError::Frame(_))), "{length} bytes");
    }
}

#[test]
fn damaged_manifests_are_errors() {
    let (manifest, packed) = one_frame("route");
    let read = |manifest: &str| Archive { manifest, packed: &packed }.ptx("route", 75);
    let line = manifest.lines().nth(1).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    for (index, bad) in [(2, "-1"), (3, "18446744073709551615"), (3, "x"), (4, "g"), (5, "")] {
        let mut words = words.clone();
        words[index] = bad;
        let error = read(&manifest.replace(line, &words.join(" "))).unwrap_err();
        assert!(matches!(error, ArchiveError::Manifest { line: 2 }), "{error}");
    }
    let mut other = words.clone();
    other[5] = "0";
    let error = read(&manifest.replace(line, &other.join(" "))).unwrap_err();
    assert!(matches!(error, ArchiveError::Hash { expected: 0, .. }), "{error}");
    let size = (words[3].parse::<usize>().unwrap() + 1).to_string();
    other[3] = &size;
    let error = read(&manifest.replace(line, &other.join(" "))).unwrap_err();
    assert!(matches!(error, ArchiveError::Frame(_)), "{error}");
    for bad in ["file route", "file route 99999999999999999999", "what is this", "unit route 75"] {
        let error = read(&format!("{bad}\n{manifest}")).unwrap_err();
        assert!(matches!(error, ArchiveError::Manifest { line: 1 }), "{bad}: {error}");
    }
    let huge = format!("file a {}\n{manifest}", usize::MAX);
    assert!(matches!(read(&huge), Err(ArchiveError::Manifest { line: 2 })));
}

//! Reads importance matrices of both forms with some bytes changed, and arbitrary bytes: each read must return a matrix or
//! an error.
#![no_main]

mod made;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use thermocline::convert::{ImportanceMatrix, InputSums};

static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut matrix = ImportanceMatrix { chunk_size: 64, ..ImportanceMatrix::default() };
    for (name, n_matrices) in [("blk.0.ffn_up.weight", 1), ("blk.0.ffn_up_exps.weight", 3)] {
        let mut sums = InputSums::new(8, n_matrices);
        sums.counts.iter_mut().for_each(|count| *count = 64);
        sums.squares.iter_mut().for_each(|square| *square = 0.5);
        matrix.entries.insert(name.to_owned(), sums);
    }
    matrix.datasets.push("text".to_owned());
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    let saved = |name: &str, save: &dyn Fn(&Path)| {
        let path = folder.path().join(name);
        save(&path);
        fs::read(path).expect("the saved file can be read")
    };
    vec![
        saved("x.gguf", &|path| matrix.save(path).expect("the matrix can be saved")),
        saved("x.dat", &|path| matrix.save_dat(path).expect("the matrix can be saved")),
    ]
});

fn read(bytes: &[u8]) -> Option<ImportanceMatrix> {
    let file = tempfile::NamedTempFile::new().ok()?;
    fs::write(file.path(), bytes).ok()?;
    ImportanceMatrix::open(file.path(), 64).ok()
}

fuzz_target!(
    init: {
        for file in FILES.iter() {
            assert!(read(file).is_some(), "an unchanged file must be readable");
        }
    },
    |input: &[u8]| {
        let Some(bytes) = made::changed(&FILES, input) else { return };
        if let (Some(mut one), Some(two)) = (read(&bytes), read(&FILES[0])) {
            let _ = one.merge(two, "x");
        }
    }
);

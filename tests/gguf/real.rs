//! GGUF files that other programs wrote, in `../shared` beside the repository. Tests are skipped if
//! a folder is missing.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use thermocline::gguf::{Container, File, TensorType};

/// The GGUF files in `../shared/{folder}`, or `None` with a printed reason if there is no such
/// folder.
fn files(folder: &str) -> Option<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(folder);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: {} does not exist", folder.display());
        return None;
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    assert!(!paths.is_empty(), "no GGUF file in {}", folder.display());
    Some(paths)
}

#[test]
fn vocabularies_open_in_milliseconds() {
    for path in files("vocab").unwrap_or_default() {
        // The shortest of five times, since the machine may be busy.
        let open = || {
            let start = Instant::now();
            (File::open(&path).unwrap(), start.elapsed())
        };
        let (file, took) = (0..5).map(|_| open()).min_by_key(|(_, took)| *took).unwrap();
        println!("{}: {took:?}", path.display());
        assert!(took < Duration::from_millis(500), "{}: {took:?}", path.display());

        assert_eq!((file.container(), file.version()), (Container::Gguf, 3));
        assert_eq!(file.tensors().len(), 0);
        assert_eq!(file.size_bytes(), std::fs::metadata(&path).unwrap().len());
        assert_eq!(file.paths(), std::slice::from_ref(&path));
        let metadata = file.metadata();
        assert!(metadata.str("general.architecture").unwrap().is_some());
        let model = metadata.str("tokenizer.ggml.model").unwrap().unwrap();
        let tokens = metadata.str_array("tokenizer.ggml.tokens").unwrap().unwrap();
        let kinds = metadata.i32_array("tokenizer.ggml.token_type").unwrap().unwrap();
        assert_eq!(tokens.len(), kinds.len());
        assert_eq!(tokens.iter().len(), tokens.len());
        match model {
            "llama" => {
                let scores = metadata.f32_array("tokenizer.ggml.scores").unwrap().unwrap();
                assert_eq!(scores.len(), tokens.len());
                assert_eq!(tokens.get(2), Some("</s>".as_bytes()));
            }
            "gpt2" => {
                let merges = metadata.str_array("tokenizer.ggml.merges").unwrap().unwrap();
                assert!(merges.iter().all(|merge| merge.contains(&b' ')));
            }
            other => panic!("{}: tokenizer {other}", path.display()),
        }
    }
}

#[test]
fn tensors_of_a_trained_model_are_read() {
    for path in files("models/tinystories-relu").unwrap_or_default() {
        let file = File::open(&path).unwrap();
        let n_embd = file.metadata().u64("llama.embedding_length").unwrap().unwrap();
        let n_layer = file.metadata().u32("llama.block_count").unwrap().unwrap();
        let n_vocab = file.metadata().str_array("tokenizer.ggml.tokens").unwrap().unwrap().len();
        let embedding = file.tensor("token_embd.weight").unwrap();
        assert_eq!(embedding.shape, [n_embd, n_vocab as u64]);
        assert_eq!((embedding.row_len(), embedding.n_rows()), (n_embd, n_vocab as u64));
        assert_eq!(embedding.ty, TensorType::F16);
        assert_eq!(file.bytes(embedding).unwrap().len() as u64, embedding.n_elements() * 2);
        assert!(file.tensor(&format!("blk.{}.ffn_down.weight", n_layer - 1)).is_some());
        assert!(file.tensor(&format!("blk.{n_layer}.ffn_down.weight")).is_none());

        // An F32 norm of a trained model: finite, with different values.
        let norm = file.tensor("output_norm.weight").unwrap();
        let slice = file.slice(norm).unwrap();
        drop(file);
        let values: Vec<f32> =
            slice.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(values.len() as u64, n_embd);
        assert!(values.iter().all(|value| value.is_finite()));
        assert!(values.iter().any(|value| *value != values[0]));
    }
}

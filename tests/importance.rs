//! Importance matrices: the sums of llama-imatrix, and entries for all matrices of every family.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thermocline::convert::InputSums;
use thermocline::engine::{Engine, EngineOptions, Sparsity};
use thermocline::evaluate::{Chunks, Collected, Collection, Error};
use thermocline::model::{Model, ModelOptions};
use thermocline::tokenizer::{Tokenizer, Vocab};
use thermocline::{devices, embedded};

fn collect(model: &Arc<Model>, chunks: &Chunks, what: Collection) -> Collected {
    let n_ctx = chunks.n_ctx();
    let options = EngineOptions {
        n_ctx,
        n_ubatch: n_ctx.min(64),
        sparsity: Sparsity::Off,
        ..EngineOptions::default()
    };
    let devices = vec![devices::cpu(Some(2))];
    let model = Arc::clone(model);
    let mut engine =
        Engine::load(model, devices, options, None, Arc::new(|_| {}), &|_, _| {}).unwrap();
    let mut collected = Collected::default();
    let interrupt = AtomicBool::new(false);
    collected.run::<Error>(&mut engine, chunks, what, &interrupt, &mut |_| Ok(())).unwrap();
    collected
}

/// Sums and largest values of llama-imatrix's `in_sum2` (llama.cpp of llama-cpp-python 0.3.36,
/// `--chunks 2 -f assets/calibration.txt`). llama.cpp runs the built-in model with SiLU.
const REFERENCE: [(&str, f32, f32); 16] = [
    ("blk.0.attn_output.weight", 5792.25, 160.316),
    ("blk.0.attn_q.weight", 18_979.6, 648.172),
    ("blk.0.ffn_down.weight", 132_131.0, 3771.57),
    ("blk.0.ffn_gate.weight", 137_313.0, 3666.5),
    ("blk.1.attn_output.weight", 74_189.1, 1757.98),
    ("blk.1.attn_q.weight", 93_762.0, 3061.51),
    ("blk.1.ffn_down.weight", 885_213.0, 21_633.3),
    ("blk.1.ffn_gate.weight", 83_042.1, 2013.94),
    ("blk.2.attn_output.weight", 84_197.8, 2401.97),
    ("blk.2.attn_q.weight", 135_878.0, 3572.27),
    ("blk.2.ffn_down.weight", 148_558.0, 5427.4),
    ("blk.2.ffn_gate.weight", 153_341.0, 5030.25),
    ("blk.3.attn_output.weight", 166_588.0, 4640.08),
    ("blk.3.attn_q.weight", 182_455.0, 3906.76),
    ("blk.3.ffn_down.weight", 391_028.0, 130_146.0),
    ("blk.3.ffn_gate.weight", 253_840.0, 26_367.6),
];

#[test]
fn the_sums_are_those_of_llama_imatrix() {
    let file = embedded::file().unwrap();
    let tokenizer = Tokenizer::new(Vocab::from_metadata(file.metadata()).unwrap()).unwrap();
    let options = ModelOptions { activation: Some("silu".to_owned()), ..ModelOptions::default() };
    let model = Arc::new(Model::from_file(file, &options).unwrap());
    let text = include_str!("../assets/calibration.txt").trim_end_matches('\n');
    let tokens = tokenizer.encode(text, true, false).unwrap();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let chunks = Chunks::new(tokens, 512, bos, Some(2)).unwrap();
    let what = Collection { output: true, perplexity: true };
    let collected = collect(&model, &chunks, what);
    assert_eq!((collected.n_chunks, collected.matrix.n_chunks()), (2, 2));
    assert_eq!(collected.perplexity.nll.n(), 2 * chunks.n_scored() as u64);
    let entries = &collected.matrix.entries;
    // The output matrix is the embedding, and so has no entry, as in llama.cpp.
    assert_eq!(entries.len(), 28, "{:?}", entries.keys());
    for (name, sum, largest) in REFERENCE {
        let InputSums { squares, counts } = &entries[name];
        assert_eq!(counts[..], [1024], "{name}");
        let found = (squares.iter().sum::<f32>(), squares.iter().copied().fold(0.0, f32::max));
        assert!((found.0 / sum - 1.0).abs() < 2e-3, "{name}: {}, expected {sum}", found.0);
        assert!((found.1 / largest - 1.0).abs() < 2e-3, "{name}: {}, expected {largest}", found.1);
    }
    let same = ["attn_q", "attn_k", "attn_v"].map(|part| &entries[&format!("blk.1.{part}.weight")]);
    assert!(same[0] == same[1] && same[1] == same[2]);
}

/// Tensors with several rows that are not multiplied with an input by columns: filters, RWKV's token
/// shifts and two matrices that its first layer does not use, PowerInfer's transposed down and its
/// predictors, summands of gates, tables of experts, and matrices per head or group of heads,
/// and of AltUp's coefficients, which are joined or divided at load, and blocks that experts share, which
/// have no observer. RWKV-6 has factors of the first token, and five
/// matrices in one tensor; neither is quantised.
const WITHOUT_INPUT: [&str; 19] = [
    "conv1d",
    "shortconv.conv",
    "lerp",
    "blk.0.time_mix_v1",
    "blk.0.time_mix_v2",
    "ffn_down_t",
    "fc1",
    "fc2",
    "attn_k_b",
    "attn_v_b",
    "attn_kv_b",
    "attn_output_a",
    "compressor_ape",
    "tid2eid",
    "altup_correct_coef",
    "altup_predict_coef",
    "time_mix_first",
    "time_mix_w2",
    "chexps",
];

#[test]
fn every_matrix_of_every_family_has_an_entry() {
    for (name, model) in crate::families::all_models() {
        let n_vocab = model.n_vocab() as u32;
        let tokens = (0..40).map(|i| (i * 37 + i * i) % n_vocab).collect();
        let chunks = Chunks::new(tokens, 16, None, None).unwrap();
        let collected = collect(&model, &chunks, Collection { output: true, perplexity: false });
        let entries = &collected.matrix.entries;
        for tensor in model.file.tensors() {
            let is_matrix = tensor.shape.iter().skip(1).any(|&n| n > 1)
                && tensor.name.ends_with(".weight")
                && (tensor.name.starts_with("blk.") || tensor.name == "output.weight")
                && !WITHOUT_INPUT.iter().any(|part| tensor.name.contains(part))
                && !tensor.name.contains("norm");
            // Layers that predict further tokens are not run.
            let layer = tensor.name.split('.').nth(1).and_then(|layer| layer.parse().ok());
            if !is_matrix || layer.is_some_and(|layer: usize| layer >= model.layers.len()) {
                continue;
            }
            // Some files have keys and values of layers that use those of an earlier layer.
            let shared = layer.is_some_and(|layer| {
                model.layers[layer].frame.mixer.kv_source().is_some()
                    && ["attn_k", "attn_v"].iter().any(|part| tensor.name.contains(part))
            });
            // So are indexers.
            let unused = layer.is_some_and(|layer| {
                let attention = model.layers[layer].attention();
                tensor.name.contains("indexer")
                    && attention.is_some_and(|by| by.indexer().is_none())
            });
            if shared || unused {
                continue;
            }
            let sums = entries.get(&tensor.name);
            let sums = sums.unwrap_or_else(|| panic!("{name}: {} has no entry", tensor.name));
            let n_matrices: u64 = tensor.shape.iter().skip(2).product();
            assert_eq!(sums.squares.len() as u64, tensor.row_len() * n_matrices, "{name}");
            // 32 tokens; each uses some of the experts.
            let used: u64 = sums.counts.iter().sum();
            let per_expert = used > 0 && used <= 32 * n_matrices;
            let is_of_experts =
                tensor.name.contains("exps") || tensor.name.matches('.').count() > 3;
            // These run before and after the layer and, in RWKV-6, in five parts.
            let n_uses = match tensor.name.rsplit('.').nth(1) {
                Some("altup_router") => 2 * 32,
                // The low stack runs twice; a second router selects the shared blocks.
                _ if name == "hrm_text" => 2 * 32,
                Some("ffn_gate_inp") if name == "grovemoe" => 2 * 32,
                Some("time_mix_w1") => 5 * 32,
                _ => 32,
            };
            let right = [32, n_uses].contains(&used) || (per_expert && is_of_experts);
            assert!(right, "{name}: {} {used}", tensor.name);
            assert!(sums.squares.iter().all(|v| v.is_finite()), "{name}: {}", tensor.name);
        }
    }
}

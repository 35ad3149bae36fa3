//! PowerInfer's predictors, imported for a model without one.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thermocline::engine::{Engine, EngineOptions, Sparsity};
use thermocline::predictor::Layers;

use super::{chooser, engine, logits, model, stdout, text, thermocline};
use crate::convert::make;

const N_EMBD: usize = 256;
const N_FF: usize = 1280;
const RANK: usize = 32;
const THRESHOLD: f32 = 0.5;

/// Pseudo-random values that are exact in F16.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 20) as u16 as i16 % 64 - 32) / 64.0
    };
    (0..n).map(|_| next()).collect()
}

/// Writes a folder with PowerInfer's predictors of four layers; returns fc1 and fc2 of the first.
/// The others select no neuron.
fn write_predictors(at: &Path) -> [Vec<f32>; 2] {
    fs::create_dir(at).unwrap();
    let (fc1, fc2) = (values(RANK * N_EMBD, 1), values(N_FF * RANK, 2));
    for layer in 0..4 {
        let fc2 = if layer == 0 { fc2.clone() } else { vec![0.0; N_FF * RANK] };
        let part = |name: &str, shape: [usize; 2], values: Vec<f32>| {
            (name.to_owned(), shape.map(|n| n as u64).to_vec(), values)
        };
        let parts = [
            part("fc1.weight", [RANK, N_EMBD], fc1.clone()),
            part("fc2.weight", [N_FF, RANK], fc2),
        ];
        fs::write(at.join(format!("model_{layer}.pt")), make::torch(&parts, &[])).unwrap();
    }
    fs::write(at.join("config.json"), format!(r#"{{"sparse_threshold": {THRESHOLD}}}"#)).unwrap();
    [fc1, fc2]
}

/// Number of neurons of the first layer that PowerInfer's formula selects for the input `p`.
fn n_selected(p: &[f32], [fc1, fc2]: &[Vec<f32>; 2]) -> usize {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let hidden = fc1.chunks_exact(N_EMBD).map(|row| dot(row, p).max(0.0) as f32);
    let hidden: Vec<f32> = hidden.collect();
    fc2.chunks_exact(RANK).filter(|row| dot(row, &hidden) >= f64::from(THRESHOLD)).count()
}

#[test]
fn imported_predictors_match_powerinfers_formula() {
    let scratch = tempfile::tempdir().unwrap();
    let pt = scratch.path().join("pt");
    let weights = write_predictors(&pt);
    let out = scratch.path().join("learned.gguf");
    let (pt_name, out_name) = (pt.to_string_lossy(), out.to_string_lossy());
    let import = ["predictor", "--import", &pt_name, "--out", &out_name];
    stdout(&thermocline(scratch.path(), &import));
    let model = model(None);
    let chosen = chooser(&out, &model);
    assert!(
        matches!(&chosen.layers, Layers::Imported { layers, threshold } if layers.len() == 4 && *threshold == THRESHOLD)
    );
    let token = [300u32];
    // The input of the first layer's predictor is the same in every run.
    let mut exact = engine(&model, Sparsity::Exact, None, true);
    let mut expected = 0;
    let mut sequence = exact.new_sequence();
    let look = &mut |layer: usize, o: &thermocline::engine::ObservedBlock<'_>| {
        if layer == 0 {
            expected = n_selected(o.residual, &weights);
        }
    };
    exact.observe(&mut sequence, &token, &AtomicBool::new(false), look).unwrap();
    drop(sequence);
    assert!(expected > 0 && expected < N_FF);
    let mut predicted = engine(&model, Sparsity::Predicted, Some(&chosen), true);
    assert!(predicted.predicts());
    assert_eq!(logits(&mut predicted, &token).1.gates, expected as f64);
    let options =
        EngineOptions { sparse_threshold: Some(f32::NEG_INFINITY), ..predicted.options().clone() };
    let quiet = Arc::new(|_: &str| {});
    let devices = vec![thermocline::devices::cpu(Some(1))];
    let mut all = Engine::load(model, devices, options, None, quiet, &|_, _| {}).unwrap();
    assert_eq!(logits(&mut all, &token).1.gates, 4.0 * N_FF as f64);
}

#[test]
fn imports_are_quantised_and_damaged_files_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let pt = scratch.path().join("pt");
    write_predictors(&pt);
    let out = scratch.path().join("learned.gguf");
    let (pt_name, out_name, text) = (pt.to_string_lossy(), out.to_string_lossy(), text());
    let import = ["predictor", "--import", &pt_name, "--out", &out_name, "-f", &text, "-t", "2"];
    stdout(&thermocline(scratch.path(), &import));
    let Layers::Imported { layers, .. } = chooser(&out, &model(None)).layers else {
        panic!("imported")
    };
    let bytes = |rows: &hal::HostRows| rows.row_bytes() * rows.desc().n_rows;
    assert!(bytes(&layers[0].fc2) < 2 * N_FF * RANK, "{}", layers[0].fc2.desc());
    let balanced = ["-p", "Once", "-n", "2", "--sparsity", "balanced", "-t", "1"];
    stdout(&thermocline(scratch.path(), &["predictor", "--import", &pt_name]));
    let output = thermocline(scratch.path(), &balanced);
    assert!(String::from_utf8_lossy(&output.stderr).contains("was imported"));
    let predicted = ["-p", "Once", "-n", "2", "-t", "1"];
    let used = thermocline(scratch.path(), &predicted);
    assert!(String::from_utf8_lossy(&used.stderr).contains("an imported predictor chooses"));
    for (name, says) in [("model_2.pt", "model_2.pt"), ("model_0.pt", "model_0.pt")] {
        fs::write(pt.join(name), b"PK\x05\x06 no checkpoint").unwrap();
        let failed = thermocline(scratch.path(), &import);
        let words = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success() && words.contains(says), "{words}");
        assert!(!words.contains("panicked"), "{words}");
    }
}

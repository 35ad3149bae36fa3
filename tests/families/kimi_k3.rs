//! Kimi K3: hostile keys and tensors of its residual mixes, its latent experts and its activation.

use thermocline::engine;
use thermocline::gguf::Value as GgufValue;
use thermocline::placement::{Neurons, Share};

use super::layers::ChangedModel;
use super::*;

const NAME: &str = "kimi-k3";

fn changed(key: &str, value: impl Into<GgufValue>) -> ChangedModel {
    ChangedModel::new(NAME).key(&format!("{NAME}.{key}"), value)
}

fn without(key: &str) -> ChangedModel {
    ChangedModel::new(NAME).without(&format!("{NAME}.{key}"))
}

#[test]
fn hostile_residual_mixes_are_refused() {
    let key = "attn_res.block_size";
    without(key).fails("the number of layers between snapshots");
    for tensor in ["blk.0.attn_res_score", "blk.2.ffn_res_score", "output_res_score"] {
        ChangedModel::new(NAME).without(&format!("{tensor}.weight")).fails(tensor);
    }
    // With 0, the residual is an ordinary one, and these tensors have no meaning.
    changed(key, 0u32).fails("res_score");
    for period in [1u32, 3, u32::MAX] {
        let model = changed(key, period).model().unwrap();
        let mixes = model.layers.iter().map(|layer| layer.frame.residual_mix.as_ref().unwrap());
        let found: Vec<(usize, bool)> = mixes.map(|by| (by.n_before, by.takes_snapshot)).collect();
        let expected = match period {
            1 => [(0, true), (1, true), (2, true)],
            _ => [(0, true), (1, false), (1, false)],
        };
        assert_eq!(found, expected, "{period}");
    }
}

#[test]
fn hostile_latent_experts_are_refused() {
    for width in [7u32, 16, 1 << 24] {
        changed("expert_latent_length", width).fails("blk.1.ffn_");
    }
    changed("expert_latent_length", u32::MAX).fails("expected 1 to 16777216");
    // The tensors state the width too.
    assert!(without("expert_latent_length").model().is_ok());
    assert!(changed("expert_latent_length", 0u32).model().is_ok());
    for part in ["down", "up"] {
        let tensor = format!("blk.1.ffn_routed_{part}.weight");
        ChangedModel::new(NAME).without(&tensor).fails("blk.1.ffn_");
    }
    // The norm is optional.
    let model = ChangedModel::new(NAME).without("blk.1.ffn_routed_norm.weight").model().unwrap();
    let latent = |i: usize| model.layers[i].frame.latent.as_ref();
    assert!(latent(0).is_none() && latent(1).unwrap().norm.is_none());
    assert!(latent(2).unwrap().norm.is_some());
    // Nemotron 3 Super has other names.
    let mut renamed = changed("moe_latent_size", 8u32);
    for tensor in &mut renamed.tensors {
        tensor.0 = tensor.0.replace("ffn_routed_", "ffn_latent_");
    }
    let model = renamed.model().unwrap();
    assert!(
        model.layers[1].frame.latent.is_some()
            && model.layers[2].ffn.as_ref().unwrap().width() == 8
    );
    renamed.key(&format!("{NAME}.moe_latent_size"), 7u32).fails("blk.1.ffn_");
}

#[test]
fn hostile_limits_of_the_activation_are_refused() {
    for key in ["situ_beta", "situ_linear_beta"] {
        let key = format!("activation.{key}");
        without(&key).fails(&format!("key `{NAME}.{key}` is missing"));
        for limit in [f32::NAN, f32::INFINITY, 1e-30, 1e30] {
            changed(&key, limit).fails("a number from 0.001 to 1000000");
        }
    }
    for limit in [0.0, -1.0] {
        changed("activation.situ_beta", limit).fails("a number from 0.001 to 1000000");
        // Up has no limit then.
        assert!(changed("activation.situ_linear_beta", limit).model().is_ok());
    }
}

#[test]
fn hostile_bounds_and_gates_of_its_attention_are_refused() {
    for bound in [0.0, 5.0, f32::NAN, f32::NEG_INFINITY] {
        changed("kda.gate_lower_bound", bound).fails("a negative number");
    }
    // The other curve, as in Kimi Linear.
    assert!(without("kda.gate_lower_bound").model().is_ok());
    for tensor in ["ssm_g.weight", "ssm_f_b.weight", "ssm_a", "ssm_conv1d_v.weight"] {
        ChangedModel::new(NAME).without(&format!("blk.0.{tensor}")).fails(tensor);
    }
    // The gate of latent attention is optional.
    assert!(ChangedModel::new(NAME).without("blk.1.attn_gate.weight").model().is_ok());
}

/// Hand-offs carry as many values as the residual has. A layer whose experts are wider is on one device.
#[test]
fn wide_experts_are_not_split_between_devices() {
    let model = wide_experts();
    let sim = |budget| sim_device(1, budget, Duration::ZERO..Duration::ZERO, 1).1;
    let load = |placement| {
        let options = EngineOptions { n_ctx: 64, ..EngineOptions::default() };
        let devices = vec![cpu_device(2), sim(Bytes::MAX)];
        let model = Arc::clone(&model);
        Engine::load(model, devices, options, Some(placement), ignore_notices(), &|_, _| {})
    };
    let whole = Placement::all_on(1, model.hyper.n_layer);
    let ids = [3, 17, 60, 2, 9];
    let expected = logits_of(&mut load(whole.clone()).unwrap(), &ids, &[5]);
    let mut split = whole;
    split.layers[2].shares = vec![Share { device: 0, neurons: Neurons::All }];
    let Err(engine::Error::WideExperts { layer: 2, width: 24, n_embd: 16 }) = load(split) else {
        panic!("the layer is refused");
    };
    // The planner places such layers whole.
    let all = sim(Bytes::MAX);
    let load = |device: &Device| {
        let options = EngineOptions { n_ctx: 64, ..EngineOptions::default() };
        let devices = vec![cpu_device(2), device.clone()];
        let model = Arc::clone(&model);
        Engine::load(model, devices, options, None, ignore_notices(), &|_, _| {}).unwrap()
    };
    drop(load(&all));
    for part in 1..8 {
        let mut engine = load(&sim(Bytes(all.ledger().peak().0 * part / 8)));
        assert!(engine.placement().layers[1..].iter().all(|layer| !layer.is_split()));
        assert!(difference(&expected, &logits_of(&mut engine, &ids, &[2])) <= 1e-3);
    }
}

/// The fixture with experts of 24 values instead of 8, by repeated weights.
fn wide_experts() -> Arc<Model> {
    let mut changed = ChangedModel::new(NAME).key(&format!("{NAME}.expert_latent_length"), 24u32);
    for layer in [1, 2] {
        let blk = format!("blk.{layer}.ffn_");
        // The axis of 8 values, and the bytes of a value.
        for (part, axis, size) in [
            ("gate_exps", 0, 2),
            ("up_exps", 0, 2),
            ("down_exps", 1, 2),
            ("routed_down", 1, 2),
            ("routed_up", 0, 2),
            ("routed_norm", 0, 4),
        ] {
            widen(&mut changed, &format!("{blk}{part}.weight"), axis, size);
        }
    }
    Arc::new(changed.model().unwrap())
}

/// Makes `axis` of a tensor, whose values have `size` bytes, three times as long, by repeated values.
fn widen(changed: &mut ChangedModel, name: &str, axis: usize, size: u64) {
    let tensor = changed.tensors.iter_mut().find(|tensor| tensor.0 == name);
    let (_, shape, _, bytes) = tensor.unwrap_or_else(|| panic!("{name} exists"));
    let chunk: u64 = size * shape[..=axis].iter().product::<u64>();
    *bytes = bytes.chunks_exact(chunk as usize).flat_map(|chunk| chunk.repeat(3)).collect();
    shape[axis] *= 3;
}

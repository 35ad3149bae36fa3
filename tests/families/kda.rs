//! Kimi Delta Attention (Kimi Linear, Ling 3): hostile files, and files whose layers are described in other
//! words.

use thermocline::engine::state_bytes;
use thermocline::gguf::{Array, Value as GgufValue};
use thermocline::model::Mixer;

use super::layers::ChangedModel;
use super::*;

/// Name of the family and of its fixture, and the index of its layer with Kimi Delta Attention; the other layer
/// has latent attention.
const FAMILIES: [(&str, usize); 2] = [("kimi-linear", 0), ("bailingmoe3", 1)];

#[test]
fn hostile_keys_of_kimi_delta_attention_are_refused() {
    for (name, recurrent) in FAMILIES {
        assert!(ChangedModel::new(name).model().is_ok(), "{name}");
        let reject = |key: &str, value: GgufValue, says: &str| {
            ChangedModel::new(name).key(&format!("{name}.{key}"), value).fails(says);
        };
        for key in ["kda.head_dim", "ssm.conv_kernel"] {
            reject(key, 0u32.into(), "is 0");
            reject(key, u32::MAX.into(), "expected 1 to 16777216");
            let missing = ChangedModel::new(name).without(&format!("{name}.{key}"));
            missing.fails(&format!("key `{name}.{key}` is missing"));
        }
        let blk = format!("blk.{recurrent}");
        for size in [7u32, 1 << 24] {
            reject("kda.head_dim", size.into(), &format!("{blk}.attn_q"));
            reject("ssm.conv_kernel", size.into(), &format!("{blk}.ssm_conv1d_q"));
        }
        let list = |values: [u32; 2]| GgufValue::from(Array::U32(values.to_vec()));
        let (heads, kv) = ("attention.head_count", "attention.head_count_kv");
        reject(heads, list([0, 0]), "is 0 in all layers");
        reject(heads, list([2, 4]), "the same number in all layers that have heads");
        reject(kv, list([0, 0]), &format!("blk.{}.", 1 - recurrent));
        reject(kv, list([1, 1]), &format!("{blk}.attn_"));
        reject(kv, list([3, 3]), "a divisor of the 2 heads");
        reject(kv, Array::U32(vec![0]).into(), "each of the 2 layers");
        for tensor in ["ssm_a", "ssm_dt.bias", "ssm_norm.weight", "ssm_beta.weight"] {
            ChangedModel::new(name).without(&format!("{blk}.{tensor}")).fails(tensor);
        }
        for tensor in ["ssm_f_a", "ssm_g_a", "ssm_conv1d_k", "ssm_conv1d_v", "attn_output"] {
            ChangedModel::new(name).without(&format!("{blk}.{tensor}.weight")).fails(tensor);
        }
    }
    ChangedModel::new("kimi-linear").without("blk.0.ssm_f_b.weight").fails("ssm_f_b");
    ChangedModel::new("kimi-linear").without("blk.0.ssm_g_b.weight").fails("ssm_g_b");
    ChangedModel::new("bailingmoe3").without("blk.0.attn_gate.weight").fails("attn_gate");
}

#[test]
fn hostile_bounds_of_a_decay_are_refused() {
    let key = "bailingmoe3.kda.gate_lower_bound";
    for bound in [0.0, 5.0, f32::NAN, f32::NEG_INFINITY] {
        ChangedModel::new("bailingmoe3").key(key, bound).fails("a negative number");
    }
    ChangedModel::new("bailingmoe3").without(key).fails("the lower bound");
    let safe = ChangedModel::new("bailingmoe3").key("bailingmoe3.kda.safe_gate", false);
    safe.fails("only bounded decays are supported");
    // Bounded decays are the default.
    let without = ChangedModel::new("bailingmoe3").without("bailingmoe3.kda.safe_gate");
    assert!(without.model().is_ok());
}

/// Layers with latent attention state one KV head or as many as query heads; a family whose layers all
/// have it may not state 0.
#[test]
fn files_state_the_layers_with_attention_in_several_ways() {
    let mixers = |model: &Model| -> Vec<bool> {
        let layers = model.layers.iter();
        layers.map(|layer| matches!(layer.frame.mixer, Mixer::GatedDelta(_))).collect()
    };
    for (name, recurrent) in FAMILIES {
        for (heads, kv) in [([2, 2], 2), ([2, 2], 1), ([0, 0], 1)] {
            let (mut heads, mut kv_heads) = (heads.to_vec(), vec![kv; 2]);
            heads[1 - recurrent] = 2;
            kv_heads[recurrent] = 0;
            let changed = ChangedModel::new(name)
                .key(&format!("{name}.attention.head_count"), Array::U32(heads))
                .key(&format!("{name}.attention.head_count_kv"), Array::U32(kv_heads));
            let found = mixers(&changed.model().unwrap());
            assert_eq!(found, [recurrent == 0, recurrent == 1], "{name}");
        }
    }
    let zeros = Array::U32(vec![1, 0]);
    let changed = ChangedModel::new("deepseek2").key("deepseek2.attention.head_count_kv", zeros);
    changed.fails("at least 1 in a layer with heads");
}

#[test]
fn the_state_of_kimi_delta_attention_is_in_the_budget() {
    for (name, recurrent) in FAMILIES {
        let model = fixture(&folder().join(format!("{name}.gguf"))).model;
        // 2 heads of 8 x 8 values, and 3 inputs of 3 x 16 channels.
        assert_eq!(state_bytes(&model.layers[recurrent]), Bytes(4 * (2 * 8 * 8 + 3 * 3 * 16)));
        assert_eq!(state_bytes(&model.layers[1 - recurrent]), Bytes(0));
        let used = |n_checkpoint: usize| {
            let options = EngineOptions { n_ctx: 64, n_checkpoint, ..EngineOptions::default() };
            let (model, devices) = (Arc::clone(&model), vec![cpu_device(2)]);
            let engine =
                Engine::load(model, devices, options, None, ignore_notices(), &|_, _| {}).unwrap();
            engine.devices()[0].ledger().used()
        };
        assert!(used(9) - used(0) >= Bytes(9 * 4 * (2 * 8 * 8 + 3 * 3 * 16)));
    }
}

//! GroveMoE: hostile keys and tensors of the blocks that experts share.

use thermocline::gguf::Value as GgufValue;

use super::layers::ChangedModel;

const NAME: &str = "grovemoe";

#[test]
fn hostile_chunks_of_experts_are_refused() {
    let changed =
        |key: &str, value: GgufValue| ChangedModel::new(NAME).key(&format!("{NAME}.{key}"), value);
    let per_chunk = "experts_per_group";
    changed(per_chunk, 0u32.into()).fails("is 0");
    changed(per_chunk, 4u32.into()).fails("a divisor of the 6 experts");
    changed(per_chunk, u32::MAX.into()).fails("expected 1 to 16777216");
    for n in [1u32, 3, 6] {
        changed(per_chunk, n.into()).fails("blk.0.ffn_");
    }
    for n in [7u32, 1 << 24] {
        changed("expert_chunk_feed_forward_length", n.into()).fails("blk.0.ffn_");
    }
    for scale in [f32::NAN, f32::INFINITY] {
        changed("expert_group_scale", scale.into()).fails("a finite number");
    }
    for key in [per_chunk, "expert_group_scale"] {
        let key = format!("{NAME}.{key}");
        ChangedModel::new(NAME).without(&key).fails(&format!("key `{key}` is missing"));
    }
    // Without the key, a chunk has as many neurons as a head has values: 8.
    let key = format!("{NAME}.expert_chunk_feed_forward_length");
    ChangedModel::new(NAME).without(&key).fails("blk.0.ffn_gate_chexps");
    for part in ["gate", "up", "down"] {
        let tensor = format!("blk.0.ffn_{part}_chexps.weight");
        ChangedModel::new(NAME).without(&tensor).fails(&tensor);
    }
}

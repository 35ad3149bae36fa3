//! Settings that no model can have.

use serde_json::json;

use super::tests::refused_config;

#[test]
fn sizes_without_meaning_are_refused() {
    let hunyuan = json!({"num_experts": 4, "moe_topk": [], "moe_intermediate_size": 32});
    assert!(refused_config("HunYuanMoEV1ForCausalLM", &hunyuan).contains("moe_topk"));
    let narrow = json!({
        "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 32
    });
    for class in ["BaichuanForCausalLM", "LlamaForCausalLM"] {
        let message = refused_config(class, &narrow);
        assert!(message.contains("`num_attention_heads` is 128"), "{message}");
    }
    let runs = json!({"H_cycles": 300, "L_cycles": 3, "num_layers_per_stack": 2});
    assert!(refused_config("HrmTextForCausalLM", &runs).contains("at most 256 runs"));
}

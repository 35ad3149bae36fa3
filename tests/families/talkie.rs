//! Talkie: hostile tensors and keys.

use super::layers::ChangedModel;

#[test]
fn hostile_files_of_talkie_are_refused() {
    for tensor in ["blk.1.layer_output_scale.weight", "blk.0.attn_q_norm.weight"] {
        ChangedModel::new("talkie").without(tensor).fails(tensor);
    }
    let scale = |scale: f32| ChangedModel::new("talkie").key("talkie.logit_scale", scale);
    for bad in [f32::NAN, -1.0, 1e30] {
        scale(bad).fails("a number from 0.000001 to 1000000");
    }
    let model = scale(0.5).model().unwrap();
    assert_eq!(model.hyper.scales.logits, 0.5);
    let layers = model.layers.iter().map(|layer| &layer.frame);
    assert!(layers.clone().all(|frame| frame.embedding_skip.is_some()));
    // The tensor is a factor on the embedding here, not on the residual.
    assert!(layers.clone().all(|frame| frame.out_scale.is_none()));
    assert!(layers.clone().all(|frame| frame.gains.iter().all(Option::is_some)));
    // The factors on outputs are optional.
    let without = ChangedModel::new("talkie").without("blk.0.attn_output.scale").model().unwrap();
    assert!(without.layers[0].frame.gains[0].is_none());
    let heads = ChangedModel::new("talkie").key("talkie.attention.head_count", 4u32);
    heads.fails("blk.0.attn_");
}

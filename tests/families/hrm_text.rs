//! HRM-Text: the order of its stacks, and hostile sizes of them.

use thermocline::model::StackState::{High, Low};

use super::layers::ChangedModel;

const NAME: &str = "hrm_text";

#[test]
fn hostile_sizes_of_stacks_are_refused() {
    for key in ["layers_per_stack", "h_cycles", "l_cycles"] {
        let key = format!("{NAME}.hrm.{key}");
        ChangedModel::new(NAME).key(&key, 0u32).fails("is 0");
        ChangedModel::new(NAME).key(&key, u32::MAX).fails("expected 1 to 16777216");
        ChangedModel::new(NAME).key(&key, 1u32 << 24).fails("as the other keys say");
        ChangedModel::new(NAME).without(&key).fails(&format!("key `{key}` is missing"));
    }
    for n in [5u32, 7, 10_000] {
        ChangedModel::new(NAME).key(&format!("{NAME}.block_count"), n).fails("block_count");
    }
    // Nothing else in the file bounds the number of runs.
    ChangedModel::new(NAME)
        .key(&format!("{NAME}.hrm.h_cycles"), 200u32)
        .key(&format!("{NAME}.block_count"), 1_200u32)
        .fails("at most 256 runs");
    for tensor in ["hrm.z_l_init", "blk.3.attn_gate.weight", "blk.0.attn_q.weight"] {
        ChangedModel::new(NAME).without(tensor).fails(tensor);
    }
    // With stacks of one layer, two of the file's four blocks have no meaning.
    let short = ChangedModel::new(NAME).key(&format!("{NAME}.hrm.layers_per_stack"), 1u32);
    short.key(&format!("{NAME}.block_count"), 3u32).fails("blk.");
}

#[test]
fn low_stacks_run_before_each_run_of_the_high_one() {
    let model = ChangedModel::new(NAME)
        .key(&format!("{NAME}.hrm.h_cycles"), 2u32)
        .key(&format!("{NAME}.block_count"), 12u32)
        .model()
        .unwrap();
    let runs = model.layers.iter().map(|layer| layer.frame.stack.as_ref());
    let starts: Vec<bool> = runs.clone().map(|run| run.is_some_and(|run| run.starts)).collect();
    assert_eq!(starts, [true, false].repeat(6));
    let ends: Vec<_> = runs.clone().filter_map(|run| run.and_then(|run| run.ends)).collect();
    // The output norm follows the last run.
    assert_eq!(ends, [Low, Low, High, Low, Low]);
    let first: Vec<bool> = runs.map(|run| run.is_some_and(|run| run.first_low.is_some())).collect();
    assert_eq!(first.iter().filter(|first| **first).count(), 1);
    assert!(first[0]);
    // Layers 0, 2, 6 and 8 run block 0 of the file, and layers 4 and 10 block 2.
    let query = |layer: usize| {
        let rows = &model.layers[layer].attention().unwrap().q.w;
        rows.rows(0..rows.desc().n_rows).unwrap().to_vec()
    };
    assert!([2, 6, 8].into_iter().all(|layer| query(layer) == query(0)));
    assert!(query(4) == query(10) && query(4) != query(0) && query(1) != query(0));
}

//! Layers that use an earlier layer's KV cache: memory, placement, and invalid files.

use thermocline::engine::host_bytes;
use thermocline::gguf::Array;

use super::layers::ChangedModel;
use super::*;

#[test]
fn a_shared_cache_is_allocated_and_saved_once() {
    let fixture = fixture(&folder().join("gemma4-shared.gguf"));
    let sources: Vec<_> =
        fixture.model.layers.iter().map(|layer| layer.frame.mixer.kv_source()).collect();
    // Sliding layers use the cache of the last sliding layer that has one, global layers that of
    // the last global one.
    assert_eq!(sources, [None, None, None, None, Some(2), Some(3)]);
    let kv_formats = KvCache::both(Format::F32);
    let options = EngineOptions { n_ctx: 64, kv_formats, ..EngineOptions::default() };
    let (model, devices) = (Arc::clone(&fixture.model), vec![cpu_device(2)]);
    let placement = Placement::all_on(0, 6);
    let held = host_bytes(&model, &devices, &options, &placement);
    let caches: Vec<u64> = held.layers.iter().map(|layer| layer.cache.0).collect();
    // Keys and values of one head of 8 in sliding layers, of three heads of 16 in global ones.
    let [sliding, global] = [8, 48].map(|width| 64 * 2 * 4 * width);
    let least = [sliding, global, sliding, global, 0, 0];
    for (cache, least) in caches.iter().zip(least) {
        // Allocations are padded.
        assert!((least..=least + least / 4).contains(cache), "{caches:?}");
    }
    let mut engine =
        Engine::load(model, devices, options, None, ignore_notices(), &|_, _| {}).unwrap();
    let mut saved = |n: usize| {
        let mut sequence = engine.new_sequence();
        let interrupt = std::sync::atomic::AtomicBool::new(false);
        let ids = &fixture.runs[0].ids[..n];
        let want = thermocline::engine::LogitsRequest::Last;
        engine.feed(&mut sequence, ids, want, &interrupt, &mut |_, _| {}).unwrap();
        engine.save(&sequence).unwrap().len() as u64
    };
    // A saved token has its id and a row of each cache.
    assert_eq!(saved(13) - saved(3), 10 * (4 + 2 * (sliding + global) / 64));
}

#[test]
fn a_layer_and_its_kv_cache_must_share_a_device() {
    let fixture = fixture(&folder().join("gemma4-shared.gguf"));
    let mut placement = Placement::all_on(0, 6);
    placement.layers[5].home = 1;
    placement.layers[5].shares[0].device = 1;
    let sim = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1;
    let (model, devices) = (fixture.model, vec![cpu_device(2), sim]);
    let options = EngineOptions { n_ctx: 64, ..EngineOptions::default() };
    let engine =
        Engine::load(model, devices, options, Some(placement), ignore_notices(), &|_, _| {});
    let error = engine.map(drop).unwrap_err().to_string();
    assert!(error.contains("layer 5 uses the KV cache of layer 3"), "{error}");
}

#[test]
fn hostile_keys_of_gemma4_are_refused() {
    let reject = |name: &str, key: &str, value: u32, says: &str| {
        ChangedModel::new(name).key(&format!("gemma4.{key}"), value).fails(says);
    };
    let shared = |key: &str, value: u32, says: &str| reject("gemma4-shared", key, value, says);
    shared("attention.shared_kv_layers", 6, "fewer than the 6 layers");
    shared("attention.shared_kv_layers", u32::MAX, "fewer than the 6 layers");
    shared("attention.shared_kv_layers", 5, "an earlier layer whose KV cache layer 1 can share");
    // With a smaller count, layer 4 needs its own K matrix, which the file lacks.
    shared("attention.shared_kv_layers", 1, "blk.4.attn_k.weight");
    shared("attention.key_length_swa", 7, "an even number up to 7");
    shared("attention.value_length_swa", 4, "expected 8");
    shared("attention.sliding_window_pattern", 2, "sliding_window_pattern");
    let kinds = Array::Bool(vec![true; 5]);
    let few =
        ChangedModel::new("gemma4-shared").key("gemma4.attention.sliding_window_pattern", kinds);
    few.fails("6 entries");
    ChangedModel::new("gemma4-shared")
        .without("gemma4.attention.sliding_window")
        .fails("sliding_window");
    ChangedModel::new("gemma4-shared")
        .without("blk.0.attn_k_norm.weight")
        .fails("blk.0.attn_k_norm");
    let width = "embedding_length_per_layer_input";
    reject("gemma4-shared", width, 17, "per_layer_proj_norm");
    reject("gemma4-shared", width, 0, "per_layer");
    reject("gemma4-shared", width, u32::MAX, "expected 1 to 16777216");
    ChangedModel::new("gemma4-shared").without("blk.2.proj.weight").fails("blk.2.proj.weight");
    for part in ["ffn_gate_inp.scale", "post_ffw_norm_1.weight", "ffn_up.weight"] {
        let name = format!("blk.1.{part}");
        ChangedModel::new("gemma4-moe").without(&name).fails(&name);
    }
    reject("gemma4-moe", "expert_count", 3, "blk.0.ffn_gate_inp.weight");
    reject("gemma4-moe", "expert_feed_forward_length", 8, "blk.0.ffn_");
}

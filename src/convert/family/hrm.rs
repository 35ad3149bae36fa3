//! HRM-Text: two stacks of layers that run alternately, norms without weights.

use super::Family;
use super::keys::{Build, Setting, count};
use super::rule::{Rule, Transform, rule, same_name};
use super::table::LLAMA;
use crate::Error;
use crate::change::Selection;

const ENDS: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("lm_head", "output"),
    same_name("z_L_init", "hrm.z_l_init="),
];
/// Gates, queries, keys and values are quarters of one matrix.
macro_rules! stack {
    ($of:literal) => {
        [
            rule(
                concat!($of, ".attn.gqkv_proj"),
                "blk.*.attn_gate",
                Transform::Rows(|b| quarter(b, 0)),
            ),
            rule(
                concat!($of, ".attn.gqkv_proj"),
                "blk.*.attn_q",
                Transform::Rows(|b| quarter(b, 1)),
            ),
            rule(
                concat!($of, ".attn.gqkv_proj"),
                "blk.*.attn_k",
                Transform::Rows(|b| quarter(b, 2)),
            ),
            rule(
                concat!($of, ".attn.gqkv_proj"),
                "blk.*.attn_v",
                Transform::Rows(|b| quarter(b, 3)),
            ),
            same_name(concat!($of, ".attn.o_proj"), "blk.*.attn_output"),
            rule(concat!($of, ".mlp.gate_up_proj"), "blk.*.ffn_gate", Transform::FirstHalf),
            rule(concat!($of, ".mlp.gate_up_proj"), "blk.*.ffn_up", Transform::SecondHalf),
            same_name(concat!($of, ".mlp.down_proj"), "blk.*.ffn_down"),
        ]
    };
}
const LOW: &[Rule] = &stack!("L_module.layers.*");
const HIGH: &[Rule] = &{
    let mut rules = stack!("H_module.layers.*");
    let mut i = 0;
    while i < rules.len() {
        rules[i] = rules[i].after(per_stack);
        i += 1;
    }
    rules
};
const SETTINGS: &[Setting] =
    &[count("hrm.h_cycles", &["H_cycles"]), count("hrm.l_cycles", &["L_cycles"])];

pub(super) const FAMILIES: &[Family] = &[Family {
    arch: "hrm_text",
    classes: &["HrmTextForCausalLM"],
    rules: &[ENDS, LOW, HIGH],
    settings: SETTINGS,
    keys: hrm,
    ..LLAMA
}];

/// The number of layers of a stack: as the number of layers, `transformers` stores that of all
/// runs.
fn per_stack(build: &Build<'_>) -> Result<u32, Error> {
    build.config.count(&["num_layers_per_stack", "num_hidden_layers"], "the layers of a stack")
}

fn quarter(build: &Build<'_>, part: u32) -> Result<Selection, Error> {
    let n = build.n_head()?.saturating_mul(build.d_head()?);
    if n > 1 << 24 {
        return Err(build.config.wrong_value("num_attention_heads", "at most 2^24 rows", n));
    }
    Ok(Selection::join(part * n..(part + 1) * n, 4 * n))
}

/// What readers of the file accept.
const MAX_RUNS: u64 = 256;
const MAX_LAYERS: u32 = 10_000;

fn hrm(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if config.bool(&["prefix_lm"])? == Some(true) {
        build.notes.push("prefix_lm is true, but attention is causal, as in llama.cpp: a prompt whose tokens see later ones gives other results".to_owned());
    }
    for key in ["attention_bias", "mlp_bias"] {
        if config.bool(&[key])? == Some(true) {
            return Err(config.wrong_value(key, "false, as in HRM-Text", true));
        }
    }
    let n = per_stack(build)?;
    build.n_block = Some(2 * n);
    build.sizes()?;
    let count = |key: &'static str| config.count(&[key], "the number of runs of a stack");
    let runs = u64::from(count("H_cycles")?) * (u64::from(count("L_cycles")?) + 1);
    let n_run = u32::try_from(runs.saturating_mul(u64::from(n))).ok();
    let Some(n_run) = n_run.filter(|&n| n <= MAX_LAYERS && runs <= MAX_RUNS) else {
        let expected = format!("at most {MAX_RUNS} runs of stacks and {MAX_LAYERS} of layers");
        return Err(config.wrong_value("H_cycles", &expected, runs));
    };
    // A file counts each run of a layer, but has its weights once.
    build.replace("block_count", n_run);
    build.set("hrm.layers_per_stack", n);
    build.set("hrm.prefix_lm", false);
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    let scale = match config.f32(&["embedding_scale"])? {
        Some(scale) => scale,
        None => 1.0 / config.f32(&["initializer_range"])?.unwrap_or(0.02),
    };
    build.set("embedding_scale", scale);
    build.rope(build.d_head()?)
}

//! The tensors of a model with given sizes, as its GGUF file would have them.

use gguf::TensorType;
use hal::format::Format;

use super::sizes::{DeltaSizes, ExpertSizes, Form, IndexerSizes, LatentSizes, Sizes};

/// Names and shapes, in ggml's order (row length first).
pub(super) struct TensorList<'a> {
    sizes: &'a Sizes,
    all: Vec<(String, Vec<u64>)>,
}

/// All tensors of a model.
pub(super) fn list(sizes: &Sizes) -> Vec<(String, Vec<u64>)> {
    let mut list = TensorList { sizes, all: Vec::new() };
    let (n_embd, n_vocab) = (sizes.n_embd, sizes.n_vocab);
    list.add("token_embd", &[n_embd, n_vocab]);
    if sizes.form == Form::Opt {
        // OPT's positions begin at 2.
        list.add("position_embd", &[n_embd, sizes.n_ctx + 2]);
    }
    for layer in 0..sizes.n_layer {
        list.layer(layer);
    }
    list.norm("output_norm", n_embd);
    if !sizes.tied {
        list.add("output", &[n_embd, n_vocab]);
    }
    list.all
}

/// The type of a tensor in a file that is not quantised.
pub(super) fn float_type(name: &str, shape: &[u64]) -> TensorType {
    let small = name.contains("_norm") || name.contains("ffn_gate_inp") || name.contains("conv1d");
    let format = if shape.len() < 2 || small { Format::F32 } else { Format::F16 };
    format.into()
}

impl TensorList<'_> {
    fn add(&mut self, part: &str, shape: &[u64]) {
        self.all.push((format!("{part}.weight"), shape.to_vec()));
    }

    fn norm(&mut self, part: &str, n: u64) {
        self.add(part, &[n]);
        if self.sizes.form == Form::Opt {
            self.all.push((format!("{part}.bias"), vec![n]));
        }
    }

    fn layer(&mut self, layer: u64) {
        let sizes = self.sizes;
        let blk = |part: &str| format!("blk.{layer}.{part}");
        self.norm(&blk("attn_norm"), sizes.n_embd);
        let recurrent = sizes.delta.as_ref().filter(|delta| delta.layers[layer as usize]);
        match (sizes.latent, recurrent) {
            (Some(latent), _) => self.latent(&blk, latent, layer),
            (None, Some(delta)) => self.delta(&blk, delta),
            (None, None) => self.attention(&blk),
        }
        let norm = match sizes.form {
            Form::Dense | Form::Opt | Form::Latent => "ffn_norm",
            Form::Experts | Form::Sinks | Form::Delta => "post_attention_norm",
        };
        self.norm(&blk(norm), sizes.n_embd);
        match sizes.experts {
            Some(experts) if layer >= experts.first => self.experts(&blk, experts),
            Some(_) | None => self.dense(&blk),
        }
    }

    fn attention(&mut self, blk: &impl Fn(&str) -> String) {
        let Sizes { form, n_embd, n_head, n_head_kv, d_head, .. } = *self.sizes;
        // Gated attention has a gate for each query.
        let n_q = n_head * d_head;
        let n_queries = if form == Form::Delta { 2 * n_q } else { n_q };
        self.add(&blk("attn_q"), &[n_embd, n_queries]);
        self.add(&blk("attn_k"), &[n_embd, n_head_kv * d_head]);
        self.add(&blk("attn_v"), &[n_embd, n_head_kv * d_head]);
        self.add(&blk("attn_output"), &[n_q, n_embd]);
        match form {
            Form::Delta => {
                self.add(&blk("attn_q_norm"), &[d_head]);
                self.add(&blk("attn_k_norm"), &[d_head]);
            }
            Form::Sinks => self.add(&blk("attn_sinks"), &[n_head]),
            Form::Dense | Form::Opt | Form::Experts | Form::Latent => {}
        }
    }

    fn latent(&mut self, blk: &impl Fn(&str) -> String, latent: LatentSizes, layer: u64) {
        let LatentSizes { q_rank, kv_rank, n_nope, n_rope, n_value } = latent;
        let Sizes { n_embd, n_head, .. } = *self.sizes;
        let n_q = n_head * (n_nope + n_rope);
        if q_rank > 0 {
            self.add(&blk("attn_q_a"), &[n_embd, q_rank]);
            self.add(&blk("attn_q_a_norm"), &[q_rank]);
            self.add(&blk("attn_q_b"), &[q_rank, n_q]);
        } else {
            self.add(&blk("attn_q"), &[n_embd, n_q]);
        }
        self.add(&blk("attn_kv_a_mqa"), &[n_embd, kv_rank + n_rope]);
        self.add(&blk("attn_kv_a_norm"), &[kv_rank]);
        self.add(&blk("attn_k_b"), &[n_nope, kv_rank, n_head]);
        self.add(&blk("attn_v_b"), &[kv_rank, n_value, n_head]);
        self.add(&blk("attn_output"), &[n_head * n_value, n_embd]);
        let has_indexer = |indexer: &&IndexerSizes| {
            indexer.layers.as_ref().is_none_or(|layers| layers[layer as usize])
        };
        if let Some(indexer) = self.sizes.indexer.as_ref().filter(has_indexer) {
            let IndexerSizes { n_head, d_head, .. } = *indexer;
            self.add(&blk("indexer.attn_q_b"), &[q_rank, n_head * d_head]);
            self.add(&blk("indexer.attn_k"), &[n_embd, d_head]);
            self.norm(&blk("indexer.k_norm"), d_head);
            self.all.push((format!("{}.bias", blk("indexer.k_norm")), vec![d_head]));
            self.add(&blk("indexer.proj"), &[n_embd, n_head]);
        }
    }

    fn delta(&mut self, blk: &impl Fn(&str) -> String, delta: &DeltaSizes) {
        let DeltaSizes { n_head_k, n_head_v, d_head, kernel, .. } = *delta;
        let n_embd = self.sizes.n_embd;
        let (n_k, n_v) = (n_head_k * d_head, n_head_v * d_head);
        self.add(&blk("attn_qkv"), &[n_embd, 2 * n_k + n_v]);
        self.add(&blk("attn_gate"), &[n_embd, n_v]);
        self.add(&blk("ssm_alpha"), &[n_embd, n_head_v]);
        self.add(&blk("ssm_beta"), &[n_embd, n_head_v]);
        self.add(&blk("ssm_conv1d"), &[kernel, 2 * n_k + n_v]);
        self.all.push((blk("ssm_dt.bias"), vec![n_head_v]));
        self.all.push((blk("ssm_a"), vec![n_head_v]));
        self.add(&blk("ssm_norm"), &[d_head]);
        self.add(&blk("ssm_out"), &[n_v, n_embd]);
    }

    fn dense(&mut self, blk: &impl Fn(&str) -> String) {
        let Sizes { form, n_embd, n_ff, .. } = *self.sizes;
        if form != Form::Opt {
            self.add(&blk("ffn_gate"), &[n_embd, n_ff]);
        }
        self.add(&blk("ffn_up"), &[n_embd, n_ff]);
        self.add(&blk("ffn_down"), &[n_ff, n_embd]);
    }

    fn experts(&mut self, blk: &impl Fn(&str) -> String, experts: ExpertSizes) {
        let ExpertSizes { n, n_ff, n_shared, .. } = experts;
        let Sizes { form, n_embd, .. } = *self.sizes;
        self.add(&blk("ffn_gate_inp"), &[n_embd, n]);
        self.add(&blk("ffn_gate_exps"), &[n_embd, n_ff, n]);
        self.add(&blk("ffn_up_exps"), &[n_embd, n_ff, n]);
        self.add(&blk("ffn_down_exps"), &[n_ff, n_embd, n]);
        if n_shared > 0 {
            if form == Form::Delta {
                self.add(&blk("ffn_gate_inp_shexp"), &[n_embd]);
            }
            self.add(&blk("ffn_gate_shexp"), &[n_embd, n_shared]);
            self.add(&blk("ffn_up_shexp"), &[n_embd, n_shared]);
            self.add(&blk("ffn_down_shexp"), &[n_shared, n_embd]);
        }
    }
}

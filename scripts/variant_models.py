"""Tiny random models that hold the fields of `ArchSpec` that no other fixture has: one model for each way of placing norms,
scaling, gating, routing and encoding positions.

Tensor names, shapes and keys are those that llama.cpp's converter writes (`conversion/`).
"""
import numpy as np

# Small sizes, because the fixtures are committed.
WIDTH, D_HEAD, HEADS, KV_HEADS, NEURONS = 16, 8, 2, 1, 24
# llama.cpp rounds GELU to F16.
GELU_BOUND = 1e-3


class Model:
    """One model; layers are added by the methods. `bound`: see tests/families/mod.rs; `n_tokens`: of its run, if not the
    usual number."""

    n_tokens = None

    def __init__(self, name, arch, weights, n_layer, bound=None, **keys):
        self.name, self.arch, self.w, self.bound = name, arch, weights, bound
        self.keys = {
            "context_length": 256, "embedding_length": WIDTH, "block_count": n_layer, "feed_forward_length": NEURONS,
            "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": D_HEAD,
            "attention.value_length": D_HEAD, "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": D_HEAD, "rope.freq_base": 1e4, "vocab_size": 99,
            **{key.replace("__", "."): value for key, value in keys.items()},
        }

    def norms(self, blk, *parts, bias=False):
        for part in parts:
            self.w.norm(f"{blk}{part}", WIDTH)
            if bias:
                self.w.put(f"{blk}{part}.bias", 0.3 * self.w.noise(WIDTH))

    def ends(self, norm=True, tied=False, bias=False):
        self.w.matrix("token_embd", 99, WIDTH)
        if norm:
            self.norms("", "output_norm", bias=bias)
        if not tied:
            self.w.matrix("output", 99, WIDTH)

    def attention(self, blk, heads=HEADS, kv=KV_HEADS, bias=False):
        sizes = {"attn_q": heads * D_HEAD, "attn_k": kv * D_HEAD, "attn_v": kv * D_HEAD}
        for part, n in sizes.items():
            self.w.matrix(f"{blk}{part}", n, WIDTH)
            if bias:
                self.w.put(f"{blk}{part}.bias", 0.3 * self.w.noise(n))
        self.w.matrix(f"{blk}attn_output", WIDTH, heads * D_HEAD)

    def qk_norms(self, blk, q=D_HEAD, k=D_HEAD):
        self.w.norm(f"{blk}attn_q_norm", q)
        self.w.norm(f"{blk}attn_k_norm", k)

    def dense(self, blk, gate=True, suffix="", n=NEURONS, bias=False):
        parts = (["gate"] if gate else []) + ["up"]
        for part in parts:
            self.w.matrix(f"{blk}ffn_{part}{suffix}", n, WIDTH)
        self.w.matrix(f"{blk}ffn_down{suffix}", WIDTH, n)
        if bias:
            self.w.put(f"{blk}ffn_up.bias", 0.3 * self.w.noise(n))
            self.w.put(f"{blk}ffn_down.bias", 0.3 * self.w.noise(WIDTH))

    def experts(self, blk, n, n_ff, selection=True, gate=True):
        self.w.matrix(f"{blk}ffn_gate_inp", n, WIDTH)
        if selection:
            self.w.put(f"{blk}exp_probs_b.bias", 0.4 * self.w.noise(n))
        parts = ([("gate", n_ff, WIDTH)] if gate else []) + [("up", n_ff, WIDTH), ("down", WIDTH, n_ff)]
        for part, n_out, n_in in parts:
            self.w.put(f"{blk}ffn_{part}_exps.weight", np.float16(1.5 * n_in**-0.5 * self.w.noise(n, n_out, n_in)))


def olmo(w):
    """Norms without weights; clamped queries, keys and values."""
    m = Model("olmo", "olmo", w, 2, attention__clamp_kqv=1.0)
    m.ends(norm=False)
    for i in range(2):
        m.attention(f"blk.{i}.")
        m.dense(f"blk.{i}.")
    return m


def olmo2(w):
    """Norms after both halves of a layer; queries and keys normalised as rows; windows with unscaled RoPE."""
    m = Model("olmo2", "olmo2", w, 2, attention__sliding_window=6, attention__sliding_window_pattern=2,
              attention__head_count_kv=HEADS, rope__scaling__type="yarn", rope__scaling__factor=4.0,
              rope__scaling__original_context_length=64)
    m.ends()
    for blk in (f"blk.{i}." for i in range(2)):
        m.attention(blk, kv=HEADS)
        m.qk_norms(blk, HEADS * D_HEAD, HEADS * D_HEAD)
        m.norms(blk, "post_attention_norm", "post_ffw_norm")
        m.dense(blk)
    return m


def biased(m, blk):
    """A layer with LayerNorm, joined projections and biases."""
    w, n = m.w, (HEADS + 2 * KV_HEADS) * D_HEAD
    m.norms(blk, "attn_norm", "ffn_norm", bias=True)
    w.matrix(f"{blk}attn_qkv", n, WIDTH)
    w.put(f"{blk}attn_qkv.bias", 0.3 * w.noise(n))
    w.matrix(f"{blk}attn_output", WIDTH, HEADS * D_HEAD)
    w.put(f"{blk}attn_output.bias", 0.3 * w.noise(WIDTH))


def gptneox(w):
    """Parallel blocks by a key, with a norm each."""
    m = Model("gptneox", "gptneox", w, 2, GELU_BOUND, use_parallel_residual=True, rope__dimension_count=4)
    m.ends(bias=True)
    for blk in (f"blk.{i}." for i in range(2)):
        biased(m, blk)
        m.dense(blk, gate=False, bias=True)
    return m


def stablelm(w):
    """A norm for each head, and a layer whose halves share a norm."""
    m = Model("stablelm", "stablelm", w, 2, rope__dimension_count=4)
    m.ends(bias=True)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", *["ffn_norm"] * i, bias=True)
        m.attention(blk)
        w.put(f"{blk}attn_q_norm.weight", 1 + 0.3 * w.noise(HEADS, D_HEAD))
        w.put(f"{blk}attn_k_norm.weight", 1 + 0.3 * w.noise(KV_HEADS, D_HEAD))
        m.dense(blk)
    return m


def hunyuan(w):
    """Queries and keys normalised after RoPE, of which one section stands still."""
    m = Model("hunyuan_vl", "hunyuan_vl", w, 2, rope__dimension_sections=[1, 1, 1, 1])
    m.ends(tied=True)
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        m.attention(blk)
        m.qk_norms(blk)
        m.dense(blk)
    return m


def gated(name, w, gates, sandwich, **keys):
    """A dense layer, then a layer with experts; gates of attention from a matrix; windows."""
    m = Model(name, name, w, 2, attention__sliding_window=6, expert_count=6, expert_used_count=2,
              leading_dense_block_count=1, expert_shared_count=1, expert_feed_forward_length=8,
              expert_weights_norm=True, expert_weights_scale=1.5, expert_gating_func=2, **keys)
    m.ends()
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        after = ["post_attention_norm", "post_ffw_norm"] if sandwich else []
        m.norms(blk, "attn_norm", "ffn_norm", *after)
        m.attention(blk)
        m.qk_norms(blk)
        w.matrix(f"{blk}attn_gate", gates, WIDTH)
        if i:
            m.experts(blk, 6, 8)
            m.dense(blk, suffix="_shexp", n=8)
        else:
            m.dense(blk)
    return m


def cohere2(w):
    """Halves that share a norm; a factor on the logits; RoPE only in layers with a window."""
    m = Model("cohere2", "cohere2", w, 2, attention__sliding_window=6, attention__sliding_window_pattern=2,
              logit_scale=0.3)
    m.ends(tied=True)
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm")
        m.attention(blk)
        m.dense(blk)
    return m


def latent(m, blk, d_nope, d_rope, d_value, rank, split):
    w = m.w
    m.norms(blk, "attn_norm", "ffn_norm")
    w.matrix(f"{blk}attn_q_a", 8, WIDTH)
    w.norm(f"{blk}attn_q_a_norm", 8)
    w.matrix(f"{blk}attn_q_b", HEADS * (d_nope + d_rope), 8)
    w.matrix(f"{blk}attn_kv_a_mqa", rank + d_rope, WIDTH)
    w.norm(f"{blk}attn_kv_a_norm", rank)
    if split:
        w.put(f"{blk}attn_k_b.weight", np.float16(d_nope**-0.5 * w.noise(HEADS, rank, d_nope)))
        w.put(f"{blk}attn_v_b.weight", np.float16(rank**-0.5 * w.noise(HEADS, d_value, rank)))
    else:
        w.matrix(f"{blk}attn_kv_b", HEADS * (d_nope + d_value), rank)
    w.matrix(f"{blk}attn_output", WIDTH, HEADS * d_value)


def minicpm3(w):
    """Latent attention with queries of low rank; factors without keys."""
    m = Model("minicpm3", "minicpm3", w, 2, attention__q_lora_rank=8, attention__kv_lora_rank=8,
              attention__key_length=12, rope__dimension_count=4, attention__head_count_kv=HEADS)
    m.ends()
    for blk in (f"blk.{i}." for i in range(2)):
        latent(m, blk, 8, 4, 8, 8, split=False)
        m.dense(blk)
    return m


def deepseek2(w):
    """Matrices for absorbed latent attention, DeepSeek's YaRN, growing queries, groups of experts."""
    m = Model("deepseek2", "deepseek2", w, 2, attention__q_lora_rank=8, attention__kv_lora_rank=8,
              attention__head_count_kv=1, attention__key_length=12, attention__value_length=8,
              attention__key_length_mla=12, attention__value_length_mla=6, rope__dimension_count=4,
              rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=64,
              rope__scaling__yarn_log_multiplier=0.0707, attention__temperature_scale=0.5,
              attention__temperature_length=5, expert_count=8, expert_used_count=3, expert_group_count=4,
              expert_group_used_count=2, leading_dense_block_count=1, expert_shared_count=1,
              expert_feed_forward_length=8, expert_weights_norm=True, expert_weights_scale=2.5, expert_gating_func=2)
    m.ends()
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        latent(m, blk, 8, 4, 6, 8, split=True)
        if i:
            m.experts(blk, 8, 8)
            m.dense(blk, suffix="_shexp", n=8)
        else:
            m.dense(blk)
    return m


def mistral3(w):
    """YaRN with a ratio of scales; queries that grow with their position."""
    m = Model("mistral3", "mistral3", w, 2, rope__scaling__type="yarn", rope__scaling__factor=4.0,
              rope__scaling__original_context_length=5, rope__scaling__yarn_log_multiplier=0.7,
              attention__temperature_scale=0.5)
    m.ends()
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        m.attention(blk)
        m.dense(blk)
    return m


def phi2(w):
    """A bias of the logits."""
    m = Model("phi2", "phi2", w, 1, GELU_BOUND, rope__dimension_count=4)
    m.ends(bias=True)
    w.put("output.bias", w.noise(99))
    m.norms("blk.0.", "attn_norm", bias=True)
    m.attention("blk.0.", bias=True)
    w.put("blk.0.attn_output.bias", 0.3 * w.noise(WIDTH))
    m.dense("blk.0.", gate=False, bias=True)
    return m


def qwen(w):
    """Twice the number of neurons in its key."""
    m = Model("qwen", "qwen", w, 1, feed_forward_length=2 * NEURONS, attention__head_count_kv=HEADS)
    m.ends()
    m.norms("blk.0.", "attn_norm", "ffn_norm")
    w.matrix("blk.0.attn_qkv", 3 * WIDTH, WIDTH)
    w.put("blk.0.attn_qkv.bias", 0.3 * w.noise(3 * WIDTH))
    w.matrix("blk.0.attn_output", WIDTH, WIDTH)
    m.dense("blk.0.")
    return m


def qwen3next(w):
    """A gated delta net whose matrices are grouped by key head; experts with a gated shared expert."""
    d, n_k, n_v = 4, 2, 4
    m = Model("qwen3next", "qwen3next", w, 2, full_attention_interval=2, ssm__state_size=d, ssm__group_count=n_k,
              ssm__time_step_rank=n_v, ssm__conv_kernel=4, ssm__inner_size=d * n_v, rope__dimension_count=4,
              expert_count=4, expert_used_count=2, expert_feed_forward_length=8, expert_shared_feed_forward_length=8)
    m.ends()
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "post_attention_norm")
        if i:
            w.matrix(f"{blk}attn_q", 2 * HEADS * D_HEAD, WIDTH)
            w.matrix(f"{blk}attn_k", KV_HEADS * D_HEAD, WIDTH)
            w.matrix(f"{blk}attn_v", KV_HEADS * D_HEAD, WIDTH)
            w.matrix(f"{blk}attn_output", WIDTH, HEADS * D_HEAD)
            m.qk_norms(blk)
        else:
            w.matrix(f"{blk}ssm_in", 2 * d * (n_k + n_v), WIDTH)
            w.matrix(f"{blk}ssm_ba", 2 * n_v, WIDTH)
            w.matrix(f"{blk}ssm_conv1d", d * (2 * n_k + n_v), 4)
            w.put(f"{blk}ssm_dt.bias", 0.5 * w.noise(n_v))
            w.put(f"{blk}ssm_a", -np.exp(0.7 * w.noise(n_v) - 0.7))
            w.norm(f"{blk}ssm_norm", d)
            w.matrix(f"{blk}ssm_out", WIDTH, d * n_v)
        m.experts(blk, 4, 8, selection=False)
        w.put(f"{blk}ffn_gate_inp_shexp.weight", 0.5 * w.noise(WIDTH))
        m.dense(blk, suffix="_shexp", n=8)
    return m


def nemotron_h_moe(w):
    """Experts without a gate, whose inactive neurons are skipped."""
    d_inner, n_head, d_state = 8, 2, 4
    m = Model("nemotron_h_moe", "nemotron_h_moe", w, 3, feed_forward_length=[0, 0, 8], expert_count=6,
              expert_used_count=2, expert_feed_forward_length=8, expert_shared_feed_forward_length=12,
              expert_shared_count=1, expert_weights_norm=True, expert_weights_scale=2.5,
              attention__head_count_kv=[0, 1, 0], ssm__conv_kernel=4, ssm__state_size=d_state,
              ssm__inner_size=d_inner, ssm__time_step_rank=n_head, ssm__group_count=1)
    m.ends()
    for blk in (f"blk.{i}." for i in range(3)):
        m.norms(blk, "attn_norm")
    n_conv = d_inner + 2 * d_state
    w.matrix("blk.0.ssm_in", d_inner + n_conv + n_head, WIDTH)
    w.matrix("blk.0.ssm_conv1d", n_conv, 4)
    w.put("blk.0.ssm_conv1d.bias", 0.5 * w.noise(n_conv))
    w.put("blk.0.ssm_dt.bias", 0.5 * w.noise(n_head))
    w.put("blk.0.ssm_a", -np.exp(0.7 * w.noise(n_head, 1) - 0.7))
    w.put("blk.0.ssm_d", w.noise(n_head, 1))
    w.put("blk.0.ssm_norm.weight", 1 + 0.3 * w.noise(1, d_inner))
    w.matrix("blk.0.ssm_out", WIDTH, d_inner)
    m.attention("blk.1.")
    m.experts("blk.2.", 6, 8, gate=False)
    m.dense("blk.2.", gate=False, suffix="_shexp", n=12)
    return m


def bloom(w):
    """ALiBi; a norm of the embeddings."""
    m = Model("bloom", "bloom", w, 1, GELU_BOUND)
    m.ends(tied=True, bias=True)
    m.norms("", "token_embd_norm", bias=True)
    biased(m, "blk.0.")
    m.dense("blk.0.", gate=False, bias=True)
    return m


def jais(w):
    """ALiBi by a key; scores divided by the size of a head."""
    m = Model("jais", "jais", w, 1, attention__max_alibi_bias=6.0)
    m.ends(bias=True)
    biased(m, "blk.0.")
    m.dense("blk.0.", bias=True)
    w.put("blk.0.ffn_gate.bias", 0.3 * w.noise(NEURONS))
    return m


def minicpm(w):
    """Factors on embeddings, layers' outputs and logits by keys."""
    m = Model("minicpm", "minicpm", w, 1, embedding_scale=3.0, residual_scale=0.4, logit_scale=1.5)
    m.ends()
    m.norms("blk.0.", "attn_norm", "ffn_norm")
    m.attention("blk.0.")
    m.dense("blk.0.")
    return m


def models(weights):
    """Every model; `weights(seed)` makes its random tensors."""
    builders = [
        olmo, olmo2, gptneox, stablelm, hunyuan, cohere2, minicpm3, deepseek2, mistral3, phi2, qwen, qwen3next,
        nemotron_h_moe,
        lambda w: gated("afmoe", w, HEADS * D_HEAD, sandwich=True),
        lambda w: gated("laguna", w, HEADS, sandwich=False, expert_shared_feed_forward_length=8),
        bloom, jais, minicpm,
    ]
    for seed, build in enumerate(builders, start=200):
        yield build(weights(seed))

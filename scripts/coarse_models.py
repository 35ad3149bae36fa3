"""Tiny random models of the families with Mamba-1 blocks, parallel mixers and other rare traits. Their weights take few
values, so that a file takes some 3 kB.

Tensor names, shapes and keys are those that llama.cpp's converter writes (`conversion/`).
"""
import numpy as np

from variant_models import D_HEAD, GELU_BOUND, HEADS, KV_HEADS, NEURONS, WIDTH, Model

D_STATE, RANK, KERNEL = 4, 2, 4


def ssm(d_inner, rank, **more):
    return {"ssm__conv_kernel": KERNEL, "ssm__state_size": D_STATE, "ssm__inner_size": d_inner,
            "ssm__time_step_rank": rank, **more}


def scan(m, blk, d_inner, heads, rank, per_state, names):
    """The scan of a Mamba-1 block and the matrices of its inputs; `names`: norms of the inputs, if any."""
    w = m.w
    w.matrix(f"{blk}ssm_conv1d", d_inner, KERNEL)
    w.matrix(f"{blk}ssm_in", 2 * d_inner, WIDTH)
    w.matrix(f"{blk}ssm_x", rank + 2 * D_STATE, d_inner)
    w.matrix(f"{blk}ssm_dt", heads, rank)
    w.put(f"{blk}ssm_dt.bias", 0.5 * w.noise(heads))
    rates = 0.7 * w.noise(heads, D_STATE if per_state else 1) - 0.7
    w.put(f"{blk}ssm_a", -np.exp(rates if per_state else rates[:, 0]))
    w.put(f"{blk}ssm_d", w.noise(heads))
    for part, name in names.items():
        w.put(f"{blk}{name}", 1 + 0.3 * w.noise(rank if part == "dt" else D_STATE))
    w.matrix(f"{blk}ssm_out", WIDTH, d_inner)


def mamba1(m, blk, names):
    scan(m, blk, 2 * WIDTH, 2 * WIDTH, RANK, True, names)
    m.w.put(f"{blk}ssm_conv1d.bias", 0.5 * m.w.noise(2 * WIDTH))


def mamba(w):
    """A decay rate for each value of a state."""
    m = Model("mamba", "mamba", w, 2, **ssm(2 * WIDTH, RANK), feed_forward_length=0, attention__head_count=0)
    m.ends(tied=True)
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm")
        mamba1(m, blk, {})
    return m


def jamba(w):
    """Norms of the scan's inputs; attention without RoPE; experts in one layer."""
    m = Model("jamba", "jamba", w, 2, **ssm(2 * WIDTH, RANK), attention__head_count_kv=[0, KV_HEADS],
              feed_forward_length=8, expert_count=4, expert_used_count=2)
    m.ends(tied=True)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        if i:
            m.attention(blk)
            m.dense(blk, n=8)
        else:
            mamba1(m, blk, {part: f"ssm_{part}_norm.weight" for part in ("dt", "b", "c")})
            m.experts(blk, 4, 8, selection=False)
    return m


def plamo2(w):
    """A scan of heads with one decay rate each; norms after both halves of a layer."""
    heads, rank = 4, 64
    m = Model("plamo2", "plamo2", w, 2, **ssm(WIDTH, heads, ssm__group_count=0), attention__head_count_kv=[0, KV_HEADS],
              feed_forward_length=8)
    m.ends(tied=True)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        for part in ["post_attention_norm", "post_ffw_norm"]:
            w.put(f"{blk}{part}", 1 + 0.3 * w.noise(WIDTH))
        if i:
            w.matrix(f"{blk}attn_qkv", (HEADS + 2 * KV_HEADS) * D_HEAD, WIDTH)
            w.put(f"{blk}attn_q_norm.weight", 1 + 0.3 * w.noise(HEADS, D_HEAD))
            w.put(f"{blk}attn_k_norm.weight", 1 + 0.3 * w.noise(KV_HEADS, D_HEAD))
            w.matrix(f"{blk}attn_output", WIDTH, HEADS * D_HEAD)
        else:
            scan(m, blk, WIDTH, heads, rank, False, {part: f"ssm_{part}_norm" for part in ("dt", "b", "c")})
        w.matrix(f"{blk}ffn_up", 16, WIDTH)
        w.matrix(f"{blk}ffn_down", WIDTH, 8)
    return m


def falcon_h1(w):
    """Attention and Mamba-2 side by side; a norm of the heads in one layer only."""
    d_inner, heads = 8, 2
    m = Model("falcon-h1", "falcon-h1", w, 2, **ssm(d_inner, heads, ssm__group_count=1), feed_forward_length=8)
    m.ends(tied=True)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm")
        w.put(f"{blk}ffn_norm", 1 + 0.3 * w.noise(WIDTH))
        m.attention(blk)
        n_conv = d_inner + 2 * D_STATE
        w.matrix(f"{blk}ssm_in", d_inner + n_conv + heads, WIDTH)
        w.matrix(f"{blk}ssm_conv1d", n_conv, KERNEL)
        w.put(f"{blk}ssm_conv1d.bias", 0.5 * w.noise(n_conv))
        w.put(f"{blk}ssm_dt.bias", 0.5 * w.noise(heads))
        w.put(f"{blk}ssm_a", -np.exp(0.7 * w.noise(heads, 1) - 0.7))
        w.put(f"{blk}ssm_d", w.noise(heads, 1))
        if i:
            w.put(f"{blk}ssm_norm.weight", 1 + 0.3 * w.noise(1, d_inner))
        w.matrix(f"{blk}ssm_out", WIDTH, d_inner)
        m.dense(blk, n=8)
    return m


def llama4(w):
    """Chunks and RoPE in all layers but the last; the weight of the expert scales its input; a shared expert."""
    m = Model("llama4", "llama4", w, 4, attention__sliding_window=8192, feed_forward_length=8, expert_count=4,
              expert_used_count=1, expert_feed_forward_length=8, interleave_moe_layer_step=2)
    m.ends(tied=True)
    for i, blk in enumerate(f"blk.{i}." for i in range(4)):
        m.norms(blk, "attn_norm", "ffn_norm")
        m.attention(blk)
        if i % 2:
            m.experts(blk, 4, 8, selection=False)
            m.dense(blk, suffix="_shexp", n=8)
        else:
            m.dense(blk, n=8)
    return m


def grok(w):
    """A dense block beside the experts, without norms of its own; factors on embeddings, scores and logits."""
    m = Model("grok", "grok", w, 1, GELU_BOUND, feed_forward_length=8, expert_count=4, expert_used_count=2,
              expert_feed_forward_length=8, logit_scale=0.6, embedding_scale=3.0, attention__output_scale=0.5,
              attn_logit_softcapping=2.0, router_logit_softcapping=30.0)
    m.ends(tied=True)
    m.norms("blk.0.", "attn_norm", "attn_output_norm", "ffn_norm", "layer_output_norm")
    m.attention("blk.0.", heads=2, kv=2)
    m.keys["attention.head_count_kv"] = 2
    m.experts("blk.0.", 4, 8, selection=False)
    m.dense("blk.0.", n=8)
    return m


def muse_glimmer(w):
    """Embeddings normalised without weights; norms with an epsilon of their own; gated attention."""
    m = Model("muse-glimmer", "muse-glimmer", w, 2, attention__sliding_window=4, attention__sliding_window_pattern=2,
              logit_scale=0.7, final_logit_softcapping=5.0, feed_forward_length=8, attention__layer_norm_rms_epsilon=1e-2)
    m.ends()
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        m.attention(blk)
        m.qk_norms(blk)
        w.matrix(f"{blk}attn_gate", HEADS * D_HEAD, WIDTH)
        m.dense(blk, n=8)
    return m


def cohere2moe(w):
    """A dense first layer with RoPE and without a window; outputs of experts and shared expert averaged."""
    m = Model("cohere2moe", "cohere2moe", w, 2, attention__sliding_window=4,
              attention__sliding_window_pattern=[False, True], logit_scale=0.3, feed_forward_length=8, expert_count=4,
              expert_used_count=2, expert_feed_forward_length=8, expert_shared_feed_forward_length=8,
              expert_shared_count=1, leading_dense_block_count=1, expert_gating_func=2, expert_weights_norm=True)
    del m.keys["attention.layer_norm_rms_epsilon"]
    m.ends(tied=True)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm")
        m.attention(blk)
        if i:
            m.experts(blk, 4, 8, selection=False)
            m.dense(blk, suffix="_shexp", n=8)
        else:
            m.dense(blk, n=8)
    return m


def limited(name, w, n_layer, **keys):
    """Queries and keys normalised, windows, experts whose values are limited; layers are added by the caller."""
    m = Model(name, name, w, n_layer, attention__sliding_window=4, feed_forward_length=8, expert_count=4,
              expert_used_count=2, expert_feed_forward_length=8, **keys)
    m.ends(tied=False)
    for blk in (f"blk.{i}." for i in range(n_layer)):
        m.norms(blk, "attn_norm", "ffn_norm")
        m.qk_norms(blk)
    return m


def step35(w):
    """More heads, a gate per head and RoPE of whole heads in layers with a window; limits after the activation."""
    heads = [HEADS, 2 * HEADS]
    m = limited("step35", w, 2, attention__sliding_window_pattern=[False, True], attention__head_count=heads,
                rope__freq_base_swa=1e3, expert_shared_feed_forward_length=8, leading_dense_block_count=1,
                expert_gating_func=2, expert_weights_norm=True, expert_weights_scale=1.5,
                swiglu_clamp_exp=[0.0, 0.3], swiglu_clamp_shexp=[0.4, 0.2])
    m.keys["attention.head_count_kv"] = [KV_HEADS, KV_HEADS]
    w.put("rope_freqs.weight", 1 + np.arange(D_HEAD // 2) / 4)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.attention(blk, heads=heads[i])
        w.matrix(f"{blk}attn_gate", heads[i], WIDTH)
        if i:
            m.experts(blk, 4, 8)
            m.dense(blk, suffix="_shexp", n=8)
        else:
            m.dense(blk, n=8)
    return m


def maple(w):
    """RoPE only in the layer with a window; limits before the activation."""
    m = limited("maple", w, 2, attention__sliding_window_pattern=[True, False], swiglu_clamp_exp=[0.3, 0.2])
    for blk in (f"blk.{i}." for i in range(2)):
        m.attention(blk)
        m.experts(blk, 4, 8, selection=False)
    return m


def rwkv7(w):
    """Token shifts, a matrix per head as state, values mixed with those of the first layer, squared ReLU.

    llama.cpp needs heads of 64 values. Matrices of equal blocks keep the file small."""
    rank, n, n_ff = 4, 64, 24
    ranks = {f"attention__{part}_lora_rank": rank for part in ("decay", "iclr", "value_residual_mix", "gate")}
    m = Model("rwkv7", "rwkv7", w, 2, feed_forward_length=n_ff, embedding_length=n, wkv__head_size=n, attention__head_count=0,
              token_shift_count=2, **ranks)

    def blocks(name, n_out, n_in):
        """The same columns again after every 16."""
        w.put(f"{name}.weight", np.float16(1.5 * n_in**-0.5 * np.tile(w.noise(n_out, 16), n_in // 16)))

    blocks("token_embd", 99, n)
    blocks("output", 99, n)

    def norms(*parts):
        for part in parts:
            w.norm(part, n)
            w.put(f"{part}.bias", 0.3 * w.noise(n))

    norms("output_norm", "token_embd_norm")
    for blk in (f"blk.{i}." for i in range(2)):
        norms(f"{blk}attn_norm", f"{blk}attn_norm_2", f"{blk}time_mix_ln")
        for part in "wavg":
            blocks(f"{blk}time_mix_{part}1", rank, n)
            w.matrix(f"{blk}time_mix_{part}2", n, rank)
            if part != "g":
                w.put(f"{blk}time_mix_{part}0.weight", w.noise(n))
        w.put(f"{blk}time_mix_lerp_fused.weight", 0.5 + 0.25 * w.noise(6, 1, 1, n))
        w.put(f"{blk}channel_mix_lerp_k.weight", 0.5 + 0.25 * w.noise(1, 1, n))
        for part in ["k_k", "k_a", "r_k"]:
            w.put(f"{blk}time_mix_{part}.weight", 0.5 + 0.5 * w.noise(n))
        for part in ["key", "value", "receptance", "output"]:
            blocks(f"{blk}time_mix_{part}", n, n)
        blocks(f"{blk}channel_mix_key", n_ff, n)
        w.matrix(f"{blk}channel_mix_value", n, n_ff)
    return m


def time_mix(m, blk, rank, decay_rank, n_kv):
    """The time mix of RWKV-6 and QRWKV: a share of the earlier input for each token and channel."""
    w = m.w
    m.norms(blk, "attn_norm")
    w.matrix(f"{blk}time_mix_w1", 5 * rank, WIDTH)
    w.put(f"{blk}time_mix_w2.weight", np.float16(rank**-0.5 * w.noise(5, WIDTH, rank)))
    w.put(f"{blk}time_mix_lerp_x.weight", 0.5 + 0.25 * w.noise(WIDTH))
    w.put(f"{blk}time_mix_lerp_fused.weight", 0.5 + 0.25 * w.noise(5, 1, 1, WIDTH))
    w.put(f"{blk}time_mix_decay.weight", w.noise(WIDTH) - 1)
    w.matrix(f"{blk}time_mix_decay_w1", decay_rank, WIDTH)
    w.matrix(f"{blk}time_mix_decay_w2", WIDTH, decay_rank)
    for part, n in [("key", n_kv), ("value", n_kv), ("receptance", WIDTH), ("gate", WIDTH), ("output", WIDTH)]:
        w.matrix(f"{blk}time_mix_{part}", n, WIDTH)


def rwkv6(w):
    """Token shifts that depend on the token, a gated block with a squared ReLU, residuals halved after each layer."""
    m = Model("rwkv6", "rwkv6", w, 2, wkv__head_size=D_HEAD, attention__head_count=0, attention__head_count_kv=0,
              time_mix_extra_dim=4, time_decay_extra_dim=6, rescale_every_n_layers=1)
    m.ends(bias=True)
    m.norms("", "token_embd_norm", bias=True)
    for blk in (f"blk.{i}." for i in range(2)):
        time_mix(m, blk, 4, 6, WIDTH)
        w.put(f"{blk}attn_norm.bias", 0.3 * w.noise(WIDTH))
        m.norms(blk, "attn_norm_2", "time_mix_ln", bias=True)
        w.put(f"{blk}time_mix_first.weight", w.noise(HEADS, D_HEAD))
        for part in "kr":
            w.put(f"{blk}channel_mix_lerp_{part}.weight", 0.5 + 0.25 * w.noise(WIDTH))
        w.matrix(f"{blk}channel_mix_key", NEURONS, WIDTH)
        w.matrix(f"{blk}channel_mix_value", WIDTH, NEURONS)
        w.matrix(f"{blk}channel_mix_receptance", WIDTH, WIDTH)
    return m


def qrwkv(w):
    """Heads that share keys and values, gated linear attention, blocks of Qwen 2."""
    m = Model("qrwkv", "rwkv6qwen2", w, 2, wkv__head_size=D_HEAD, attention__head_count=0, time_mix_extra_dim=4,
              time_decay_extra_dim=6, token_shift_count=1)
    m.ends()
    for blk in (f"blk.{i}." for i in range(2)):
        time_mix(m, blk, 4, 6, KV_HEADS * D_HEAD)
        m.norms(blk, "ffn_norm")
        for part, n in [("key", D_HEAD), ("value", D_HEAD), ("receptance", WIDTH)]:
            w.put(f"{blk}time_mix_{part}.bias", 0.3 * w.noise(n))
        m.dense(blk)
    return m


def apertus(w):
    """Blocks without a gate; the activation has other numbers in each layer."""
    m = Model("apertus", "apertus", w, 2, xielu__alpha_n=[0.8, -0.4], xielu__alpha_p=[0.3, 1.1], xielu__beta=[0.5, 0.7],
              xielu__eps=[-1e-6, -1e-6])
    m.ends()
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        m.attention(blk)
        m.qk_norms(blk)
        m.dense(blk, gate=False)
    return m


def gemma3n(w):
    """Residual streams, a low-rank residual and a cut-off of the gates. llama.cpp has 4 streams, a rank of 64, per-layer
    embeddings of 256 values, 20 layers with a KV cache of their own and 10 with a cut-off, whatever the file says: repeated
    values keep it small."""
    n_layer, n_own, width, rank, n = 22, 20, 256, 64, 4
    w.step = 1
    pattern = [i % 5 != 4 for i in range(n_layer)]
    m = Model("gemma3n", "gemma3n", w, n_layer, GELU_BOUND, attention__sliding_window=6, final_logit_softcapping=30.0,
              attention__sliding_window_pattern=pattern, attention__shared_kv_layers=n_layer - n_own,
              embedding_length_per_layer_input=width, altup__num_inputs=n, altup__active_idx=0,
              rope__freq_base_swa=1e3, activation_sparsity_scale=[1.6448533535] * 10 + [float("-inf")] * (n_layer - 10))
    m.ends()

    def repeated(name, n_out, n_in, period):
        """The same rows again after every `period`, or the same columns if there are fewer rows than columns."""
        axis = 0 if n_out > n_in else 1
        part = w.noise(*((period, n_in) if axis == 0 else (n_out, period)))
        w.put(f"{name}.weight", np.float16(1.5 * n_in**-0.5 * np.concatenate([part] * (max(n_out, n_in) // period), axis)))

    for part in ["altup_proj", "altup_unembd_proj"]:
        w.put(f"{part}.weight", np.float16(WIDTH**-0.5 * w.noise(n - 1, WIDTH, WIDTH)))
    repeated("per_layer_token_embd", 99, width * n_layer, 16)
    repeated("per_layer_model_proj", width * n_layer, WIDTH, 16)
    w.norm("per_layer_proj_norm", width)
    for i in range(n_layer):
        blk = f"blk.{i}."
        if i > 1:
            # Compression finds what repeats after two layers.
            m.w.tensors |= {name.replace(f"blk.{i - 2}.", blk, 1): values for name, values in m.w.tensors.items()
                            if name.startswith(f"blk.{i - 2}.")}
            continue
        m.norms(blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm", "laurel_post_norm",
                "altup_router_norm")
        # Layers change little, so that rounding errors do not grow over all of them.
        for part in ["post_attention_norm", "post_ffw_norm", "post_norm", "laurel_post_norm"]:
            w.put(f"{blk}{part}.weight", 0.25 * w.tensors[f"{blk}{part}.weight"])
        m.attention(blk)
        m.qk_norms(blk)
        m.dense(blk)
        repeated(f"{blk}inp_gate", width, WIDTH, 16)
        repeated(f"{blk}proj", WIDTH, width, 16)
        repeated(f"{blk}laurel_l", rank, WIDTH, 16)
        repeated(f"{blk}laurel_r", WIDTH, rank, 16)
        w.put(f"{blk}altup_correct_coef.weight", np.float16(0.1 * w.noise(n, n)))
        w.put(f"{blk}altup_correct_scale.weight", 1 + 0.3 * w.noise(WIDTH))
        w.put(f"{blk}altup_predict_coef.weight", np.float16(0.1 * w.noise(n * n, n)))
        w.put(f"{blk}altup_router.weight", np.float16(4 * w.noise(n, WIDTH)))
    return m


def arctic(w):
    """A dense block after attention, beside experts that read the layer's input."""
    m = Model("arctic", "arctic", w, 2, expert_count=4, expert_used_count=2, feed_forward_length=12)
    m.ends()
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm", "ffn_norm_exps")
        m.attention(blk)
        m.dense(blk, n=WIDTH)
        m.experts(blk, 4, 12, selection=False)
    return m


def talkie(w):
    """Norms without weights, factors of queries after RoPE, and the embedding added after each layer."""
    m = Model("talkie", "talkie", w, 2, feed_forward_length=8, attention__head_count_kv=HEADS, logit_scale=0.7)
    w.step, m.n_tokens = 1, 7
    m.ends(norm=False)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.attention(blk, kv=HEADS)
        w.put(f"{blk}attn_q_norm.weight", 1 + 0.3 * w.noise(HEADS, 1))
        w.put(f"{blk}layer_output_scale.weight", np.float32([0.5 - i]))
        m.dense(blk, n=8)
        for part, gain in [("attn_output", 0.75), ("ffn_down", 1.25 + i)]:
            w.put(f"{blk}{part}.scale", np.float32([gain]))
    return m


def hrm_text(w):
    """Two stacks of two layers, the low one run twice before the high one; gated attention."""
    m = Model("hrm_text", "hrm_text", w, 6, feed_forward_length=8, hrm__layers_per_stack=2, hrm__h_cycles=1,
              hrm__l_cycles=2, embedding_scale=1.5)
    w.step, m.n_tokens = 1, 7
    m.ends(norm=False, tied=True)
    w.put("hrm.z_l_init", w.noise(WIDTH))
    for blk in (f"blk.{i}." for i in range(4)):
        m.attention(blk)
        w.matrix(f"{blk}attn_gate", HEADS * D_HEAD, WIDTH)
        m.dense(blk, n=8)
    return m


def grovemoe(w):
    """Chunks of two experts share a block that reads the experts' output."""
    n, n_ff, n_chunk = 6, 8, 4
    m = Model("grovemoe", "grovemoe", w, 1, expert_count=n, expert_used_count=3, expert_feed_forward_length=n_ff,
              expert_chunk_feed_forward_length=n_chunk, experts_per_group=2, expert_group_scale=0.8)
    w.step, m.n_tokens = 1, 7
    m.ends(tied=True)
    m.norms("blk.0.", "attn_norm", "ffn_norm")
    m.attention("blk.0.")
    m.qk_norms("blk.0.")
    m.experts("blk.0.", n, n_ff, selection=False)
    for part, n_out, n_in in [("gate", n_chunk, WIDTH), ("up", n_chunk, WIDTH), ("down", WIDTH, n_chunk)]:
        w.put(f"blk.0.ffn_{part}_chexps.weight", np.float16(1.5 * n_in**-0.5 * w.noise(n // 2, n_out, n_in)))
    return m


def models(weights):
    """Every model; `weights(seed)` makes its random tensors."""
    builders = [mamba, jamba, plamo2, falcon_h1, llama4, grok, muse_glimmer, cohere2moe, rwkv7, step35, maple, apertus, arctic,
                rwkv6, qrwkv, gemma3n, talkie, hrm_text, grovemoe]
    for seed, build in enumerate(builders, start=300):
        yield build(weights(seed))

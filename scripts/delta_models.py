"""Tiny random models with Kimi Delta Attention: a gated delta net with a decay for each value of a key, beside latent
attention.

Tensor names, shapes and keys are those that llama.cpp's converter writes (`conversion/kimi_linear.py`, `kimi_k3.py`,
`bailingmoe3.py`).
"""
import numpy as np

from variant_models import HEADS, NEURONS, WIDTH, Model

# Head size of Kimi Delta Attention; sizes of latent attention.
D, RANK, ROTATED, PLAIN, VALUE = 8, 12, 4, 6, 8
KERNEL = 4


def model(name, weights, heads_kv, **keys):
    return Model(name, name, weights, len(heads_kv), attention__head_count_kv=heads_kv, attention__kv_lora_rank=RANK,
                 attention__key_length=RANK + ROTATED, attention__value_length=RANK,
                 attention__key_length_mla=PLAIN + ROTATED, attention__value_length_mla=VALUE,
                 rope__dimension_count=ROTATED, ssm__conv_kernel=KERNEL, kda__head_dim=D, expert_count=4,
                 expert_used_count=2, expert_feed_forward_length=8, expert_shared_count=1, expert_weights_scale=1.7,
                 expert_gating_func=2, leading_dense_block_count=1, **keys)


def delta(w, blk, low_rank, rate, gate=None):
    """A layer of Kimi Delta Attention; decay and gate have two matrices each if `low_rank`. `gate` is the name of a gate's
    only matrix."""
    n = HEADS * D
    for part in "qkv":
        w.matrix(f"{blk}attn_{part}", n, WIDTH)
        w.put(f"{blk}ssm_conv1d_{part}.weight", 0.75 * w.noise(n, 1, KERNEL))
    for part in "fg":
        if gate and part == "g":
            w.matrix(f"{blk}{gate}", n, WIDTH)
        elif low_rank:
            w.matrix(f"{blk}ssm_{part}_a", D, WIDTH)
            w.matrix(f"{blk}ssm_{part}_b", n, D)
        else:
            w.matrix(f"{blk}ssm_{part}_a", n, WIDTH)
    w.put(f"{blk}ssm_dt.bias", 0.5 * w.noise(n))
    w.put(f"{blk}ssm_a", rate(0.7 * w.noise(HEADS, 1) - 0.7))
    w.matrix(f"{blk}ssm_beta", HEADS, WIDTH)
    w.norm(f"{blk}ssm_norm", D)
    w.matrix(f"{blk}attn_output", WIDTH, n)


def latent(w, blk, low_rank):
    """A layer of latent attention in the absorbed form."""
    n_q = HEADS * (PLAIN + ROTATED)
    if low_rank:
        w.matrix(f"{blk}attn_q_a", 8, WIDTH)
        w.norm(f"{blk}attn_q_a_norm", 8)
        w.matrix(f"{blk}attn_q_b", n_q, 8)
    else:
        w.matrix(f"{blk}attn_q", n_q, WIDTH)
    w.matrix(f"{blk}attn_kv_a_mqa", RANK + ROTATED, WIDTH)
    w.norm(f"{blk}attn_kv_a_norm", RANK)
    for part, n_out, n_in in [("k", RANK, PLAIN), ("v", VALUE, RANK)]:
        w.put(f"{blk}attn_{part}_b.weight", np.float16(1.5 * n_in**-0.5 * w.noise(HEADS, n_out, n_in)))
    w.matrix(f"{blk}attn_output", WIDTH, HEADS * VALUE)


def kimi_linear(w):
    """A recurrent layer, which is dense, and latent attention without RoPE."""
    m = model("kimi-linear", w, [0, 1])
    m.ends()
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        if i:
            latent(w, blk, low_rank=False)
            m.experts(blk, 4, 8)
            m.dense(blk, suffix="_shexp", n=8)
        else:
            delta(w, blk, True, lambda v: -np.exp(v))
            m.dense(blk, n=NEURONS)
    return m


def kimi_k3(w):
    """Recurrent layers with bounded decay around a layer of gated latent attention without RoPE; narrow experts; SiTU; two
    snapshots of the residual."""
    n_latent, w.step = 8, 1
    m = model("kimi-k3", w, [0, 1, 0], feed_forward_length=8, kda__gate_lower_bound=-5.0, expert_weights_norm=True,
              expert_latent_length=n_latent, attn_res__block_size=2, activation__situ_beta=1.5, activation__situ_linear_beta=2.0,
              attention__q_lora_rank=8)
    m.n_tokens = 9
    m.ends()
    score = lambda name: w.put(f"{name}_res_score.weight", 0.25 * w.noise(WIDTH))
    score("output")
    for i, blk in enumerate(f"blk.{i}." for i in range(3)):
        m.norms(blk, "attn_norm", "ffn_norm")
        score(f"{blk}attn")
        score(f"{blk}ffn")
        if i == 1:
            latent(w, blk, low_rank=True)
            w.matrix(f"{blk}attn_gate", HEADS * VALUE, WIDTH)
        else:
            delta(w, blk, True, lambda v: -np.exp(v[:, 0]), gate="ssm_g")
        if i == 0:
            m.dense(blk, n=8)
            continue
        w.matrix(f"{blk}ffn_gate_inp", 4, WIDTH)
        w.put(f"{blk}exp_probs_b.bias", 0.4 * w.noise(4))
        for part, n_out, n_in in [("gate", 8, n_latent), ("up", 8, n_latent), ("down", n_latent, 8)]:
            w.put(f"{blk}ffn_{part}_exps.weight", np.float16(1.5 * n_in**-0.5 * w.noise(4, n_out, n_in)))
        w.matrix(f"{blk}ffn_routed_down", n_latent, WIDTH)
        w.norm(f"{blk}ffn_routed_norm", n_latent)
        w.matrix(f"{blk}ffn_routed_up", WIDTH, n_latent)
        m.dense(blk, suffix="_shexp", n=8)
    return m


def bailingmoe3(w):
    """Latent attention with RoPE and a gate per head; a recurrent layer with bounded decay and experts whose values are
    limited."""
    m = model("bailingmoe3", w, [1, 0], attention__q_lora_rank=8, kda__safe_gate=True, kda__gate_lower_bound=-5.0,
              expert_shared_feed_forward_length=8, expert_weights_norm=True, swiglu_clamp_exp=[0.0, 1.0],
              swiglu_clamp_shexp=[0.0, 1.5])
    m.ends()
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        if i:
            delta(w, blk, False, np.exp)
            m.experts(blk, 4, 8)
            m.dense(blk, suffix="_shexp", n=8)
        else:
            latent(w, blk, low_rank=True)
            w.matrix(f"{blk}attn_gate", HEADS, WIDTH)
            m.dense(blk, n=NEURONS)
    return m


def models(weights):
    """Every model; `weights(seed)` makes its random tensors."""
    # With many other seeds, logits of Kimi K3 depend more on the rounding of the KV cache.
    for seed, build in [(300, kimi_linear), (301, bailingmoe3), (312, kimi_k3)]:
        yield build(weights(seed))

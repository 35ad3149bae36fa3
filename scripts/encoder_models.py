"""Tiny random models of the encoders: BERT and its relatives, and those with decoders' layers. Their weights take few
values, so that a file takes some 3 kB.

Tensor names, shapes and keys are those that llama.cpp's converter writes (`conversion/bert.py`, `conversion/gemma.py`).
"""
from variant_models import HEADS, KV_HEADS, NEURONS, WIDTH, Model

N_TYPES = 2
# llama.cpp rounds GELU to F16, and norms of small sums multiply the error; the bound of four layers is larger.
GELU_BOUND, DEEP_BOUND = 3e-3, 8e-3


def model(name, arch, w, bound=None, n_layer=2, **keys):
    """An encoder without `output.weight`, whose tokens see each other."""
    return Model(name, arch, w, n_layer, bound, attention__causal=False,
                 **{"attention__head_count_kv": HEADS, "pooling_type": 1, **keys})


def embeddings(m, types=True, positions=False, norm_bias=True):
    m.w.matrix("token_embd", 99, WIDTH)
    if types:
        m.keys["tokenizer.ggml.token_type_count"] = N_TYPES
        m.w.matrix("token_types", N_TYPES, WIDTH)
    if positions:
        m.w.matrix("position_embd", 256, WIDTH)
    m.norms("", "token_embd_norm", bias=norm_bias)


def half_biased(m, blk, joint, bias=True):
    """Attention and its norm of a layer with norms after each sum."""
    w = m.w
    parts = {"attn_qkv": 3 * WIDTH} if joint else {f"attn_{part}": WIDTH for part in "qkv"}
    for part, n in {**parts, "attn_output": WIDTH}.items():
        w.matrix(f"{blk}{part}", n, WIDTH)
        if bias:
            w.put(f"{blk}{part}.bias", 0.3 * w.noise(n))
    m.norms(blk, "attn_output_norm", "layer_output_norm", bias=True)


def bert(w):
    """Learned positions, token types, biases everywhere."""
    m = model("bert", "bert", w, GELU_BOUND)
    embeddings(m, positions=True)
    for blk in (f"blk.{i}." for i in range(2)):
        half_biased(m, blk, joint=False)
        m.dense(blk, gate=False, bias=True)
    return m


def nomic_bert(w):
    """RoPE and SwiGLU, no biases."""
    m = model("nomic-bert", "nomic-bert", w, rope__freq_base=1e3)
    embeddings(m)
    for blk in (f"blk.{i}." for i in range(2)):
        half_biased(m, blk, joint=True, bias=False)
        m.dense(blk)
    return m


def nomic_bert_moe(w):
    """Experts in the second layer."""
    m = model("nomic-bert-moe", "nomic-bert-moe", w, GELU_BOUND, expert_count=4, expert_used_count=2,
              moe_every_n_layers=2)
    embeddings(m)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        half_biased(m, blk, joint=True)
        if i:
            m.experts(blk, 4, NEURONS, selection=False, gate=False)
        else:
            m.dense(blk, gate=False, bias=True)
    return m


def jina_bert_v2(w):
    """ALiBi; gate and up in one matrix; norms of queries and keys, and a second norm, in the second layer."""
    m = model("jina-bert-v2", "jina-bert-v2", w, GELU_BOUND)
    embeddings(m)
    for i, blk in enumerate(f"blk.{i}." for i in range(2)):
        half_biased(m, blk, joint=False)
        w.matrix(f"{blk}ffn_up", 2 * NEURONS, WIDTH)
        w.matrix(f"{blk}ffn_down", WIDTH, NEURONS)
        w.put(f"{blk}ffn_down.bias", 0.3 * w.noise(WIDTH))
        if i:
            m.norms(blk, "attn_q_norm", "attn_k_norm", "attn_norm_2", bias=True)
    return m


def modern_bert(w):
    """A window on both sides in two of three layers, with another RoPE base; no norm before the first layer; a head for
    ranking."""
    m = model("modern-bert", "modern-bert", w, DEEP_BOUND, n_layer=4, attention__sliding_window=6,
              attention__sliding_window_pattern=3, rope__freq_base_swa=1e2)
    embeddings(m, types=False, norm_bias=False)
    m.norms("", "output_norm")
    for i, blk in enumerate(f"blk.{i}." for i in range(4)):
        m.norms(blk, *["attn_norm"] * (i > 0), "ffn_norm")
        w.matrix(f"{blk}attn_qkv", 3 * WIDTH, WIDTH)
        w.matrix(f"{blk}attn_output", WIDTH, WIDTH)
        w.matrix(f"{blk}ffn_up", 2 * NEURONS, WIDTH)
        w.matrix(f"{blk}ffn_down", WIDTH, NEURONS)
    w.matrix("cls", WIDTH, WIDTH)
    m.norms("", "cls.norm")
    w.matrix("cls.output", 1, WIDTH)
    w.put("cls.output.bias", 0.3 * w.noise(1))
    return m


def neo_bert(w):
    """RMS norms, joint matrices, adjacent pairs in RoPE."""
    m = model("neo-bert", "neo-bert", w)
    w.matrix("token_embd", 99, WIDTH)
    m.norms("", "enc.output_norm")
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        w.matrix(f"{blk}attn_qkv", 3 * WIDTH, WIDTH)
        w.matrix(f"{blk}attn_output", WIDTH, WIDTH)
        w.matrix(f"{blk}ffn_up", 2 * NEURONS, WIDTH)
        w.matrix(f"{blk}ffn_down", WIDTH, NEURONS)
    return m


def eurobert(w):
    """Llama's layers, with fewer key-value heads."""
    m = model("eurobert", "eurobert", w, attention__head_count_kv=KV_HEADS)
    w.matrix("token_embd", 99, WIDTH)
    m.norms("", "output_norm")
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "ffn_norm")
        m.attention(blk)
        m.dense(blk)
    return m


def gemma_embedding(w):
    """Gemma 3's layers with a window on both sides, in all but the last of every two layers."""
    m = model("gemma-embedding", "gemma-embedding", w, GELU_BOUND, attention__head_count_kv=KV_HEADS,
              attention__sliding_window=6, attention__sliding_window_pattern=2, rope__freq_base=1e6,
              rope__freq_base_swa=1e4)
    w.matrix("token_embd", 99, WIDTH)
    m.norms("", "output_norm")
    for blk in (f"blk.{i}." for i in range(2)):
        m.norms(blk, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        m.attention(blk)
        m.qk_norms(blk)
        m.dense(blk)
    return m


def models(weights):
    """All models; `weights` makes an empty set of weights from a seed."""
    makers = [bert, nomic_bert, nomic_bert_moe, jina_bert_v2, modern_bert, neo_bert, eurobert, gemma_embedding]
    for seed, make in enumerate(makers, 300):
        yield make(weights(seed))

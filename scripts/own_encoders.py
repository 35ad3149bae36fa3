"""Encoders whose code is in the models' own repositories: random checkpoints with the published names, and the states of a
text, computed here from the models' descriptions.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

N, HEADS, N_FF, N_VOCAB, LAYERS = 64, 4, 96, 400, 2
D = N // HEADS
EPS = 1e-5


class Weights:
    """Named tensors, each made when it is first asked for."""

    def __init__(self):
        self.made, self.generator = {}, torch.Generator().manual_seed(1)

    def __call__(self, name, *shape):
        if name not in self.made:
            noise = torch.randn(shape, generator=self.generator)
            if len(shape) > 1:
                noise *= 0.5 if "embed" in name or name.startswith("encoder.weight") else 1.2 / shape[-1] ** 0.5
            else:
                noise = 0.1 * noise + (1.0 if "orm" in name and name.endswith("weight") else 0.0)
            self.made[name] = noise
        return self.made[name]

    def linear(self, x, name, n_out, bias=True):
        return F.linear(x, self(name + ".weight", n_out, x.shape[-1]), self(name + ".bias", n_out) if bias else None)

    def norm(self, x, name):
        n = x.shape[-1]
        return F.layer_norm(x, (n,), self(name + ".weight", n), self(name + ".bias", n), EPS)

    def rms(self, x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self(name + ".weight", x.shape[-1])


def heads(x):
    return x.view(len(x), HEADS, D).transpose(0, 1)


def attend(q, k, v, bias=0.0):
    scores = q @ k.transpose(-1, -2) / D**0.5 + bias
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(q.shape[1], N)


def rope(x, adjacent):
    angles = torch.arange(x.shape[1])[:, None] / 10000.0 ** (torch.arange(0, D, 2) / D)
    pair = (x[..., 0::2], x[..., 1::2]) if adjacent else x.chunk(2, -1)
    a, b = pair[0] * angles.cos() - pair[1] * angles.sin(), pair[0] * angles.sin() + pair[1] * angles.cos()
    return torch.stack((a, b), -1).flatten(-2) if adjacent else torch.cat((a, b), -1)


def embed(w, ids):
    return w("embeddings.word_embeddings.weight", N_VOCAB, N)[ids] + w("embeddings.token_type_embeddings.weight", 2, N)[0]


def jina_2(w, ids, code=False):
    """ALiBi on both sides and GEGLU; for code with norms of queries and keys, and a second norm after attention."""
    x = w.norm(embed(w, ids), "embeddings.LayerNorm")
    positions = torch.arange(len(ids))
    slopes = 2.0 ** (-8.0 / HEADS * torch.arange(1, HEADS + 1))
    alibi = -slopes[:, None, None] * (positions[:, None] - positions).abs()
    for i in range(LAYERS):
        blk = f"encoder.layer.{i}."
        q, k, v = (w.linear(x, f"{blk}attention.self.{part}", N) for part in ("query", "key", "value"))
        if code:
            q, k = w.norm(q, blk + "attention.self.layer_norm_q"), w.norm(k, blk + "attention.self.layer_norm_k")
        out = w.linear(attend(heads(q), heads(k), heads(v), alibi), blk + "attention.output.dense", N)
        out = w.norm(out + x, blk + "attention.output.LayerNorm")
        x = w.norm(x + out, blk + "layer_norm_1") if code else out
        a, b = w.linear(x, blk + ("mlp.up_gated_layer" if code else "mlp.gated_layers"), 2 * N_FF, bias=False).chunk(2, -1)
        y = a * F.gelu(b) if code else F.gelu(a) * b
        y = w.linear(y, blk + ("mlp.down_layer" if code else "mlp.wo"), N)
        x = w.norm(x + y, blk + ("layer_norm_2" if code else "mlp.layernorm"))
    return x


def nomic_2(w, ids):
    """RoPE; experts in every second layer, whose weights are those of the softmax over all experts."""
    x = w.norm(embed(w, ids), "emb_ln")
    for i in range(LAYERS):
        blk = f"encoder.layers.{i}."
        q, k, v = (heads(part) for part in w.linear(x, blk + "attn.Wqkv", 3 * N).chunk(3, -1))
        x = w.norm(w.linear(attend(rope(q, False), rope(k, False), v), blk + "attn.out_proj", N) + x, blk + "norm1")
        if i % 2 == 1:
            weights, chosen = w.linear(x, blk + "mlp.router.layer", 4, bias=False).softmax(-1).topk(2)
            up = w(blk + "mlp.experts.mlp.w1", 4 * N_FF, N).view(4, N_FF, N)
            down = w(blk + "mlp.experts.mlp.w2", 4 * N_FF, N).view(4, N_FF, N)
            # llama.cpp's files have no bias after the experts.
            w.made[blk + "mlp.experts.bias"] = torch.zeros(N)
            y = torch.stack([sum(weight * (F.gelu(up[e] @ x[t]) @ down[e]) for weight, e in zip(weights[t], chosen[t]))
                             for t in range(len(ids))])
        else:
            y = w.linear(F.gelu(w.linear(x, blk + "mlp.fc1", N_FF)), blk + "mlp.fc2", N)
        x = w.norm(x + y, blk + "norm2")
    return x


def neo(w, ids):
    """RMS norms, SwiGLU, RoPE on adjacent values; a head's query, key and value follow each other."""
    x = w("encoder.weight", N_VOCAB, N)[ids]
    for i in range(LAYERS):
        blk = f"transformer_encoder.{i}."
        qkv = w.linear(w.rms(x, blk + "attention_norm"), blk + "qkv", 3 * N, bias=False)
        q, k, v = (part.transpose(0, 1) for part in qkv.view(len(ids), HEADS, 3 * D).chunk(3, -1))
        x = x + w.linear(attend(rope(q, True), rope(k, True), v), blk + "wo", N, bias=False)
        a, b = w.linear(w.rms(x, blk + "ffn_norm"), blk + "ffn.w12", 2 * N_FF, bias=False).chunk(2, -1)
        x = x + w.linear(F.silu(a) * b, blk + "ffn.w3", N, bias=False)
    return w.rms(x, "layer_norm")


BERT = dict(vocab_size=N_VOCAB, hidden_size=N, intermediate_size=N_FF, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            max_position_embeddings=64, type_vocab_size=2, layer_norm_eps=EPS)
JINA = {**BERT, "architectures": ["JinaBertForMaskedLM"], "position_embedding_type": "alibi", "feed_forward_type": "geglu",
        "hidden_act": "gelu"}
MODELS = {
    "jina-bert-v2": (JINA, jina_2),
    "jina-bert-v2-code": (JINA, lambda w, ids: jina_2(w, ids, code=True)),
    "nomic-bert-moe": (dict(
        architectures=["NomicBertModel"], vocab_size=N_VOCAB, n_embd=N, n_inner=N_FF, n_layer=LAYERS, n_head=HEADS,
        n_positions=64, type_vocab_size=2, layer_norm_epsilon=EPS, activation_function="gelu", prenorm=False,
        rotary_emb_base=10000.0, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, moe_every_n_layers=2, num_experts=4,
        moe_top_k=2, moe_normalize_expert_weights=False), nomic_2),
    "neo-bert": (dict(
        architectures=["NeoBERTLMHead"], vocab_size=N_VOCAB, hidden_size=N, intermediate_size=N_FF * 3 // 2,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, max_length=64, norm_eps=EPS, hidden_act="SwiGLU", rope=True,
        rms_norm=True), neo),
}


def write(name, folder, ids):
    """Writes the checkpoint of a model without its tokenizer; returns the states of `ids`."""
    settings, states = MODELS[name]
    weights = Weights()
    with torch.no_grad():
        want = states(weights, torch.tensor(ids))
    prefix = "model." if name == "neo-bert" else ""
    tensors = {prefix + tensor: values.contiguous() for tensor, values in weights.made.items()}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(settings, file)
    return want.numpy()

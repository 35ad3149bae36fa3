"""Tiny random models with experts, as their authors' code computes them.

`transformers` has all of them but SmallThinker, which is written here after its published model code.
"""
import gguf
import numpy as np
import torch
from torch import nn

from family_models import VOCAB, RmsNorm, build, randomize

WIDTH, NEURONS, EXPERTS, USED = 32, 24, 5, 2


class SmallThinkerConfig(dict):
    """Fields of the published config.json."""

    def __getattr__(self, name):
        return self[name]


def apply_rope(x, base):
    """Applies RoPE to x, [heads, tokens, n]: i and i + n/2 are a pair, a token's index is its position."""
    n = x.shape[-1]
    freqs = base ** (-torch.arange(0, n, 2).double() / n)
    angles = torch.arange(x.shape[-2]).double()[:, None] * freqs
    sin, cos = angles.sin().float(), angles.cos().float()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class SmallThinkerExpert(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate = nn.Linear(c.hidden_size, c.moe_ffn_hidden_size, bias=False)
        self.up = nn.Linear(c.hidden_size, c.moe_ffn_hidden_size, bias=False)
        self.down = nn.Linear(c.moe_ffn_hidden_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.gate(x)) * self.up(x))


class SmallThinkerLayer(nn.Module):
    def __init__(self, c, number):
        super().__init__()
        self.config, self.self_attn, self.block_sparse_moe = c, nn.Module(), nn.Module()
        self.window = c.sliding_window_size if c.sliding_window_layout[number] else None
        self.has_rope = bool(c.rope_layout[number])
        n_q, n_kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        for part, n in [("q_proj", n_q), ("k_proj", n_kv), ("v_proj", n_kv)]:
            setattr(self.self_attn, part, nn.Linear(c.hidden_size, n, bias=False))
        self.self_attn.o_proj = nn.Linear(n_q, c.hidden_size, bias=False)
        moe = self.block_sparse_moe
        moe.primary_router = nn.Linear(c.hidden_size, c.moe_num_primary_experts, bias=False)
        moe.experts = nn.ModuleList(SmallThinkerExpert(c) for _ in range(c.moe_num_primary_experts))
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def attend(self, x):
        a, c, n = self.self_attn, self.config, x.shape[0]
        heads = lambda y: y.view(n, -1, c.head_dim).transpose(0, 1)
        q, k, v = heads(a.q_proj(x)), heads(a.k_proj(x)), heads(a.v_proj(x))
        if self.has_rope:
            q, k = apply_rope(q, c.rope_theta), apply_rope(k, c.rope_theta)
        groups = c.num_attention_heads // c.num_key_value_heads
        k, v = (y.repeat_interleave(groups, 0) for y in (k, v))
        distance = torch.arange(n)[:, None] - torch.arange(n)
        hidden = (distance < 0) | (distance >= (self.window or n))
        scores = (q @ k.transpose(1, 2) * c.head_dim**-0.5).masked_fill(hidden, float("-inf"))
        return a.o_proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))

    def choose(self, router_input):
        c = self.config
        scores = self.block_sparse_moe.primary_router(router_input)
        scores, chosen = scores.topk(c.moe_num_active_primary_experts, -1)
        if c.moe_primary_router_apply_softmax:
            return scores.softmax(-1), chosen
        scores = scores.sigmoid()
        return scores / scores.sum(-1, keepdim=True), chosen

    def forward(self, x):
        weights, chosen = self.choose(x)
        x = x + self.attend(self.input_layernorm(x))
        h = self.post_attention_layernorm(x)
        rows = []
        for t in range(x.shape[0]):
            experts = [self.block_sparse_moe.experts[e] for e in chosen[t].tolist()]
            rows.append(sum(w * expert(h[t]) for w, expert in zip(weights[t], experts)))
        return x + torch.stack(rows)


class SmallThinker(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, self.model = c, nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(SmallThinkerLayer(c, i) for i in range(c.num_hidden_layers))
        self.model.norm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, ids):
        x = self.model.embed_tokens(ids[0])
        for layer in self.model.layers:
            x = layer(x)
        return type("Output", (), {"logits": self.lm_head(self.model.norm(x))[None]})


def smallthinker(seed, window):
    """With a window, one layer in four has global attention without RoPE; without, all layers have RoPE."""
    n_layer = 5 if window else 2
    windowed = [int(bool(window) and i % 4 != 0) for i in range(n_layer)]
    config = SmallThinkerConfig(
        architectures=["SmallThinkerForCausalLM"], model_type="smallthinker", vocab_size=VOCAB, hidden_size=WIDTH,
        num_hidden_layers=n_layer, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        moe_ffn_hidden_size=NEURONS if window else 32, moe_num_primary_experts=3 if window else EXPERTS,
        moe_num_active_primary_experts=USED, moe_primary_router_apply_softmax=not window, rms_norm_eps=1e-6,
        rope_theta=10000.0, sliding_window_size=window or 4096, sliding_window_layout=windowed,
        rope_layout=windowed if window else [1] * n_layer, max_position_embeddings=256, tie_word_embeddings=False,
        bos_token_id=97, eos_token_id=98,
    )
    return randomize(SmallThinker(config), seed)


def mixtral(seed):
    return build(
        "Mixtral", seed, hidden_size=WIDTH, intermediate_size=NEURONS, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=EXPERTS, num_experts_per_tok=USED, sliding_window=None, rms_norm_eps=1e-5,
    )


def qwen2moe(seed):
    return build(
        "Qwen2Moe", seed, hidden_size=WIDTH, intermediate_size=56, moe_intermediate_size=NEURONS,
        shared_expert_intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, num_experts=EXPERTS,
        num_experts_per_tok=USED, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6,
        use_sliding_window=False,
    )


def qwen3moe(seed):
    return build(
        "Qwen3Moe", seed, hidden_size=WIDTH, intermediate_size=56, moe_intermediate_size=NEURONS, head_dim=12,
        num_attention_heads=4, num_key_value_heads=2, num_experts=EXPERTS, num_experts_per_tok=USED,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6, tie_word_embeddings=True,
    )


def gpt_oss(seed, mxfp4=False):
    # GGUF has no key for `truncate`, and llama.cpp always truncates.
    rope = dict(
        rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=16,
        rope_theta=10000.0, truncate=True,
    )
    model = build(
        "GptOss", seed, hidden_size=WIDTH, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, num_local_experts=EXPERTS, num_experts_per_tok=USED, sliding_window=6, rms_norm_eps=1e-5,
        rope_parameters=rope, max_position_embeddings=64, num_hidden_layers=2 if mxfp4 else 3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"][: 2 if mxfp4 else 3],
    )
    for layer in model.model.layers:
        experts = layer.mlp.experts
        # Scaled so that the activation clamps some values. Scaling by a power of two is exact in
        # F16.
        experts.gate_up_proj.data *= 8
        if mxfp4:
            for part in (experts.gate_up_proj, experts.down_proj):
                part.data = exact(part.data.transpose(1, 2)).transpose(1, 2).contiguous()
    return model


def exact(w):
    """The values of `w` rounded to MXFP4."""
    kind = gguf.GGMLQuantizationType.MXFP4
    packed = gguf.quants.quantize(np.ascontiguousarray(w.numpy()), kind)
    return torch.from_numpy(gguf.quants.dequantize(packed, kind))


def cases():
    """Name, model, and storage of its experts: one stacked tensor, or MXFP4."""
    yield "mixtral", mixtral(41), "all"
    yield "qwen2moe", qwen2moe(43), "all"
    yield "qwen3moe", qwen3moe(44), "all"
    yield "gpt-oss", gpt_oss(45), "all"
    # With seed 46, llama.cpp's rounding of activations to Q8 chooses other experts than PyTorch for one token.
    yield "gpt-oss-mxfp4", gpt_oss(49, mxfp4=True), "mxfp4"
    yield "smallthinker", smallthinker(47, window=6), "all"
    yield "smallthinker-global", smallthinker(48, window=None), "all"

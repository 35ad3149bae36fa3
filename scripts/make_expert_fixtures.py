#!/usr/bin/env python3
"""Makes the fixtures in tests/families of models with experts, as make_family_fixtures.py does for those without.

    VENV/bin/python scripts/make_expert_fixtures.py [--only NAME] [--out FOLDER]

Which code the logits come from is said in expert_models.py; names and keys are those of the `gguf` package.
"""
import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch

import expert_models
from make_family_fixtures import CHARACTERS, OUT, neighbours, write_vocabulary

ARCHS = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}
N_TOKENS = 21


def write_keys(writer, arch, c):
    get = lambda *names: next((v for v in (getattr(c, n, None) if not isinstance(c, dict) else c.get(n) for n in names)
                               if v is not None), None)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(get("intermediate_size", "moe_ffn_hidden_size"))
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    d_head = get("head_dim") or c.hidden_size // c.num_attention_heads
    writer.add_rope_dimension_count(d_head)
    if d_head != c.hidden_size // c.num_attention_heads:
        writer.add_key_length(d_head)
        writer.add_value_length(d_head)
    rope = get("rope_parameters", "rope_scaling") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or get("rope_theta") or 10000.0)
    writer.add_expert_count(get("num_local_experts", "num_experts", "moe_num_primary_experts"))
    writer.add_expert_used_count(get("num_experts_per_tok", "moe_num_active_primary_experts"))
    if arch != "llama":
        writer.add_expert_feed_forward_length(get("moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size"))
    if arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    if arch == "gpt-oss":
        writer.add_sliding_window(c.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch == "smallthinker":
        if any(c.sliding_window_layout):
            writer.add_sliding_window(c.sliding_window_size)
        softmax = c.moe_primary_router_apply_softmax
        kinds = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(kinds.SOFTMAX if softmax else kinds.SIGMOID)
    write_vocabulary(writer)


def experts_of(arch, layer):
    """Gate, up and down `[n_expert, n_out, n_in]`, with their offsets."""
    if arch == "gpt-oss":
        e = layer.mlp.experts
        joined, bias = e.gate_up_proj.transpose(1, 2), e.gate_up_proj_bias
        yield "ffn_gate", joined[:, ::2], bias[:, ::2]
        yield "ffn_up", joined[:, 1::2], bias[:, 1::2]
        yield "ffn_down", e.down_proj.transpose(1, 2), e.down_proj_bias
        return
    moe = layer.block_sparse_moe if hasattr(layer, "block_sparse_moe") else layer.mlp
    if hasattr(moe.experts, "gate_up_proj"):
        gate, up = moe.experts.gate_up_proj.chunk(2, 1)
        parts = {"ffn_gate": gate, "ffn_up": up, "ffn_down": moe.experts.down_proj}
    else:
        names = [("gate_proj", "up_proj", "down_proj"), ("gate", "up", "down"), ("w1", "w3", "w2")]
        names = next(n for n in names if hasattr(moe.experts[0], n[0]))
        of = lambda name: torch.stack([getattr(e, name).weight for e in moe.experts])
        parts = {part: of(name) for part, name in zip(["ffn_gate", "ffn_up", "ffn_down"], names)}
    for part, w in parts.items():
        yield part, w, None


def write_tensors(writer, arch, model, stored):
    def add(name, w, kind=np.float16):
        w = w.detach().numpy() if isinstance(w, torch.Tensor) else w
        writer.add_tensor(name, np.ascontiguousarray(w, dtype=kind if w.ndim > 1 else np.float32))

    add("token_embd.weight", model.model.embed_tokens.weight)
    add("output_norm.weight", model.model.norm.weight)
    if not model.config.tie_word_embeddings:
        add("output.weight", model.lm_head.weight)
    for i, layer in enumerate(model.model.layers):
        blk, a = f"blk.{i}", layer.self_attn
        add(f"{blk}.attn_norm.weight", layer.input_layernorm.weight)
        ffn_norm = "post_attention_norm" if arch == "gpt-oss" else "ffn_norm"
        add(f"{blk}.{ffn_norm}.weight", layer.post_attention_layernorm.weight)
        heads = {"q": model.config.num_attention_heads, "k": model.config.num_key_value_heads}
        for part in "qkvo":
            linear = getattr(a, f"{part}_proj")
            name = f"{blk}.attn_{'output' if part == 'o' else part}"
            w = linear.weight.detach().numpy()
            add(f"{name}.weight", neighbours(w, heads[part]) if arch == "llama" and part in heads else w)
            if linear.bias is not None:
                add(f"{name}.bias", linear.bias)
        for part in ["q_norm", "k_norm"]:
            if hasattr(a, part):
                add(f"{blk}.attn_{part}.weight", getattr(a, part).weight)
        if hasattr(a, "sinks"):
            add(f"{blk}.attn_sinks.weight", a.sinks)
        moe = layer.block_sparse_moe if hasattr(layer, "block_sparse_moe") else layer.mlp
        router = next(getattr(moe, n) for n in ("gate", "router", "primary_router") if hasattr(moe, n))
        add(f"{blk}.ffn_gate_inp.weight", router.weight, np.float32)
        if getattr(router, "bias", None) is not None:
            add(f"{blk}.ffn_gate_inp.bias", router.bias)
        if hasattr(moe, "shared_expert"):
            add(f"{blk}.ffn_gate_inp_shexp.weight", moe.shared_expert_gate.weight[0])
            for part in ["gate", "up", "down"]:
                add(f"{blk}.ffn_{part}_shexp.weight", getattr(moe.shared_expert, f"{part}_proj").weight)
        for part, w, bias in experts_of(arch, layer):
            w = w.detach().numpy()
            if stored == "each":
                for e, one in enumerate(w):
                    add(f"{blk}.{part}.{e}.weight", one)
            elif stored == "mxfp4":
                kind = gguf.GGMLQuantizationType.MXFP4
                packed = gguf.quants.quantize(np.ascontiguousarray(w), kind)
                writer.add_tensor(f"{blk}.{part}_exps.weight", packed, raw_dtype=kind)
            else:
                add(f"{blk}.{part}_exps.weight", w)
            if bias is not None:
                add(f"{blk}.{part}_exps.bias", bias, np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names that begin so")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    for name, model, stored in expert_models.cases():
        if args.only and not name.startswith(args.only):
            continue
        arch = ARCHS.get(model.config.model_type, model.config.model_type)
        path = args.out / f"{name}.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_name("random " + name)
        write_keys(writer, arch, model.config)
        write_tensors(writer, arch, model, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        ids = torch.randint(0, len(CHARACTERS), (N_TOKENS,), generator=torch.Generator().manual_seed(N_TOKENS))
        with torch.no_grad():
            logits = model(ids[None]).logits[0]
        rows = [[float(f"{v:.7g}") for v in row] for row in logits.tolist()]
        runs = [{"n_ctx": 64, "ids": ids.tolist(), "logits": rows}]
        facts = {"activation": None, "runs": runs}
        if stored == "mxfp4":
            # What meets quantised weights is rounded to Q8 blocks, and not by PyTorch; llama.cpp is 0.08 away.
            facts["bound"] = 0.12
        text = json.dumps(facts, separators=(",", ":"))
        path.with_suffix(".json").write_text(text + "\n")
        print(f"{name}: {path.stat().st_size} bytes, logits from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    main()

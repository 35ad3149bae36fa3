"""Random checkpoints of families whose code is in the models' own repositories: settings and tensors by name.

Tensor names and shapes are those of the published checkpoints, as llama.cpp's converter reads them.
"""
import json

import torch
from safetensors.torch import save_file

N_VOCAB, N, N_FF, HEADS, KV, LAYERS = 512, 64, 96, 4, 2, 3
D = N // HEADS
SIZES = dict(vocab_size=N_VOCAB, hidden_size=N, intermediate_size=N_FF, num_hidden_layers=LAYERS,
             num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=256, rms_norm_eps=1e-5,
             rope_theta=10000.0, hidden_act="silu", bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)


def bailingmoe2():
    settings = {**SIZES, "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "head_dim": D,
                "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 1,
                "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
                "first_k_dense_replace": 1, "partial_rotary_factor": 0.5, "score_function": "sigmoid",
                "num_nextn_predict_layers": 0}
    yield settings
    yield from (("model.word_embeddings.weight", N_VOCAB, N), ("model.norm.weight", N), ("lm_head.weight", N_VOCAB, N))
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from ((blk + "input_layernorm.weight", N), (blk + "post_attention_layernorm.weight", N),
                    (blk + "attention.query_key_value.weight", (HEADS + 2 * KV) * D, N),
                    (blk + "attention.dense.weight", N, N), (blk + "attention.query_layernorm.weight", D),
                    (blk + "attention.key_layernorm.weight", D))
        if i == 0:
            yield from gated(blk + "mlp.", N_FF)
            continue
        yield from ((blk + "mlp.gate.weight", 8, N), (blk + "mlp.gate.expert_bias", 8))
        for e in range(8):
            yield from gated(f"{blk}mlp.experts.{e}.", 32)
        yield from gated(blk + "mlp.shared_experts.", 32)


def delta_net(blk, d, gates):
    """Kimi Delta Attention with heads of `d` values; `gates`: names of the matrices of decay and gate, and their sizes."""
    n = HEADS * d
    for part in "qkv":
        yield from ((f"{blk}{part}_proj.weight", n, N), (f"{blk}{part}_conv1d.weight", n, 1, 4))
    for part, n_out, n_in in gates:
        yield f"{blk}{part}.weight", n_out, n_in
    yield from ((blk + "b_proj.weight", HEADS, N), (blk + "A_log", 1, 1, HEADS, 1), (blk + "dt_bias", n),
                (blk + "o_norm.weight", d), (blk + "o_proj.weight", N, n))


def latent(blk, output):
    """Latent attention without a query of low rank: rank 24, heads of 16 and 8 values and values of 16."""
    yield from ((blk + "q_proj.weight", HEADS * 24, N), (blk + "kv_a_proj_with_mqa.weight", 24 + 8, N),
                (blk + "kv_a_layernorm.weight", 24), (blk + "kv_b_proj.weight", HEADS * 32, 24),
                (f"{blk}{output}.weight", N, HEADS * 16))


LATENT = dict(kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, q_lora_rank=None,
              num_key_value_heads=HEADS, moe_intermediate_size=32, num_experts=8, num_shared_experts=1,
              first_k_dense_replace=1, routed_scaling_factor=2.5)


def kimi_linear():
    d = 16
    yield {**SIZES, **LATENT, "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
           "num_experts_per_token": 3, "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
           "mla_use_nope": True, "head_dim": 24, "linear_attn_config": {
               "full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": d, "num_heads": HEADS,
               "short_conv_kernel_size": 4}}
    yield from llama_ends()
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from ((blk + "input_layernorm.weight", N), (blk + "post_attention_layernorm.weight", N))
        n = HEADS * d
        gates = [("f_a_proj", d, N), ("f_b_proj", n, d), ("g_a_proj", d, N), ("g_b_proj", n, d)]
        yield from (latent(blk + "self_attn.", "o_proj") if i == 1 else delta_net(blk + "self_attn.", d, gates))
        if i == 0:
            yield from gated(blk + "mlp.", N_FF)
            continue
        moe = blk + "block_sparse_moe."
        yield from ((moe + "gate.weight", 8, N), (moe + "gate.e_score_correction_bias", 8))
        for e in range(8):
            yield from ((f"{moe}experts.{e}.w1.weight", 32, N), (f"{moe}experts.{e}.w2.weight", N, 32),
                        (f"{moe}experts.{e}.w3.weight", 32, N))
        yield from gated(moe + "shared_experts.", 32)


def bailingmoe3():
    d = 16
    yield {**SIZES, **LATENT, "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_moe_v3", "head_dim": d,
           "num_experts_per_tok": 3, "score_function": "sigmoid", "norm_topk_prob": True, "layer_group_size": 2,
           "short_conv_kernel_size": 4, "no_kda_lora": True, "kda_safe_gate": True, "kda_lower_bound": -5.0,
           "gated_attention_proj_granularity_type": "head_wise", "moe_shared_expert_intermediate_size": 32,
           "expert_swiglu_limit_list": [None, None, 7.0], "num_nextn_predict_layers": 0}
    yield from llama_ends("model.word_embeddings.weight")
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from ((blk + "input_layernorm.weight", N), (blk + "post_attention_layernorm.weight", N))
        attention = blk + "attention."
        if i == 0:
            yield from delta_net(attention, d, [("f_proj", HEADS * d, N), ("g_proj", HEADS * d, N)])
            yield from gated(blk + "mlp.", N_FF)
            continue
        yield from latent(attention, "dense")
        yield attention + "g_proj.weight", HEADS, N
        yield from ((blk + "mlp.gate.weight", 8, N), (blk + "mlp.gate.expert_bias", 8))
        for e in range(8):
            yield from gated(f"{blk}mlp.experts.{e}.", 32)
        yield from gated(blk + "mlp.shared_experts.", 32)


def gated(start, n):
    return ((start + "gate_proj.weight", n, N), (start + "up_proj.weight", n, N), (start + "down_proj.weight", N, n))


def gpt(names, n_layer=LAYERS):
    """The embedding, norms and head of a family with GPT-2's names."""
    yield from (("transformer.wte.weight", N_VOCAB, N), ("transformer.ln_f.weight", N), ("lm_head.weight", N_VOCAB, N))
    if "ln_f.bias" in names:
        yield "transformer.ln_f.bias", N
    for i in range(n_layer):
        blk = f"transformer.h.{i}."
        for part in ("ln_1", "ln_2"):
            yield f"{blk}{part}.weight", N
            if "ln_f.bias" in names:
                yield f"{blk}{part}.bias", N


def exaone():
    settings = {key: value for key, value in SIZES.items() if key not in ("num_hidden_layers", "rms_norm_eps")}
    yield {**settings, "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "num_layers": LAYERS,
           "layer_norm_epsilon": 1e-5, "activation_function": "silu", "head_dim": D,
           "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 64}}
    yield from gpt(())
    for i in range(LAYERS):
        blk = f"transformer.h.{i}."
        yield from ((blk + "attn.attention.q_proj.weight", N, N), (blk + "attn.attention.k_proj.weight", KV * D, N),
                    (blk + "attn.attention.v_proj.weight", KV * D, N), (blk + "attn.attention.out_proj.weight", N, N),
                    (blk + "mlp.c_fc_0.weight", N_FF, N), (blk + "mlp.c_fc_1.weight", N_FF, N),
                    (blk + "mlp.c_proj.weight", N, N_FF))


def qwen():
    yield {**SIZES, "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "layer_norm_epsilon": 1e-6,
           "num_key_value_heads": HEADS, "rotary_emb_base": 10000, "seq_length": 256, "intermediate_size": 2 * N_FF}
    yield from gpt(())
    for i in range(LAYERS):
        blk = f"transformer.h.{i}."
        yield from ((blk + "attn.c_attn.weight", 3 * N, N), (blk + "attn.c_attn.bias", 3 * N),
                    (blk + "attn.c_proj.weight", N, N), (blk + "mlp.w1.weight", N_FF, N),
                    (blk + "mlp.w2.weight", N_FF, N), (blk + "mlp.c_proj.weight", N, N_FF))


def llama_ends(embedding="model.embed_tokens.weight", head="lm_head.weight"):
    return (embedding, N_VOCAB, N), ("model.norm.weight", N), (head, N_VOCAB, N)


def baichuan():
    yield {**SIZES, "architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "num_key_value_heads": HEADS,
           "num_hidden_layers": 32}
    yield from llama_ends()
    for i in range(32):
        blk = f"model.layers.{i}."
        yield from ((blk + "input_layernorm.weight", N), (blk + "post_attention_layernorm.weight", N),
                    (blk + "self_attn.W_pack.weight", 3 * N, N), (blk + "self_attn.o_proj.weight", N, N),
                    *gated(blk + "mlp.", N_FF))


def internlm2():
    yield {**SIZES, "architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": False}
    yield from llama_ends("model.tok_embeddings.weight", "output.weight")
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from ((blk + "attention_norm.weight", N), (blk + "ffn_norm.weight", N),
                    (blk + "attention.wqkv.weight", (HEADS + 2 * KV) * D, N), (blk + "attention.wo.weight", N, N),
                    (blk + "feed_forward.w1.weight", N_FF, N), (blk + "feed_forward.w3.weight", N_FF, N),
                    (blk + "feed_forward.w2.weight", N, N_FF))


def codeshell():
    yield dict(architectures=["CodeShellForCausalLM"], model_type="codeshell", vocab_size=N_VOCAB, n_embd=N,
               n_layer=LAYERS, n_head=HEADS, n_positions=256, num_query_groups=KV, layer_norm_epsilon=1e-5,
               activation_function="gelu_pytorch_tanh", position_embedding_type="rope")
    yield from gpt(("ln_f.bias",))
    for i in range(LAYERS):
        blk, sizes = f"transformer.h.{i}.", (("attn.c_attn", (HEADS + 2 * KV) * D, N), ("attn.c_proj", N, N),
                                             ("mlp.c_fc", 4 * N, N), ("mlp.c_proj", N, 4 * N))
        for part, n_out, n_in in sizes:
            yield from ((f"{blk}{part}.weight", n_out, n_in), (f"{blk}{part}.bias", n_out))


def refact():
    yield dict(architectures=["GPTRefactForCausalLM"], model_type="gpt_refact", vocab_size=N_VOCAB, n_embd=N,
               n_layer=LAYERS, n_head=HEADS, n_positions=256, layer_norm_epsilon=1e-5, activation_function="silu")
    yield from gpt(())
    for i in range(LAYERS):
        blk = f"transformer.h.{i}."
        yield from ((blk + "attn.q.weight", N, N), (blk + "attn.kv.weight", 2 * D, N), (blk + "attn.c_proj.weight", N, N),
                    (blk + "mlp.gate_up_proj.weight", 512, N), (blk + "mlp.c_proj.weight", N, 256))


def deci():
    # llama.cpp reads no model whose first layer lacks attention, and leaves out attention in layers without a
    # feed-forward block.
    blocks = [{"attention": {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False},
               "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False}}
              for group, factor in ((2, 3.0), (None, 6.0), (None, None), (2, 3.0))]
    settings = {key: value for key, value in SIZES.items() if key not in ("intermediate_size", "num_key_value_heads")}
    yield {**settings, "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "block_configs": blocks,
           "num_hidden_layers": 4}
    yield from llama_ends()
    for i, (n_kv, n_ff) in enumerate(((2, 256), (0, 256), (0, 0), (2, 256))):
        blk = f"model.layers.{i}."
        if n_kv:
            yield from ((blk + "input_layernorm.weight", N), (blk + "self_attn.q_proj.weight", N, N),
                        (blk + "self_attn.k_proj.weight", n_kv * D, N), (blk + "self_attn.v_proj.weight", n_kv * D, N),
                        (blk + "self_attn.o_proj.weight", N, N))
        if n_ff:
            yield from ((blk + "post_attention_layernorm.weight", N), *gated(blk + "mlp.", n_ff))


def minicpm():
    yield {**SIZES, "architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "scale_emb": 12,
           "scale_depth": 1.4, "dim_model_base": 32}
    yield from llama_ends()
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from ((blk + "input_layernorm.weight", N), (blk + "post_attention_layernorm.weight", N),
                    (blk + "self_attn.q_proj.weight", N, N), (blk + "self_attn.k_proj.weight", KV * D, N),
                    (blk + "self_attn.v_proj.weight", KV * D, N), (blk + "self_attn.o_proj.weight", N, N),
                    *gated(blk + "mlp.", N_FF))


def rwkv6():
    yield dict(architectures=["Rwkv6ForCausalLM"], model_type="rwkv6", vocab_size=N_VOCAB, hidden_size=N, head_size=16,
               num_hidden_layers=LAYERS, layer_norm_epsilon=1e-5, intermediate_size=N_FF, rescale_every=0)
    yield from (("rwkv.embeddings.weight", N_VOCAB, N), ("head.weight", N_VOCAB, N))
    for norm in ("rwkv.blocks.0.pre_ln", "rwkv.ln_out"):
        yield from ((norm + ".weight", N), (norm + ".bias", N))
    for i in range(LAYERS):
        blk = f"rwkv.blocks.{i}."
        for norm in ("ln1", "ln2", "attention.ln_x"):
            yield from ((f"{blk}{norm}.weight", N), (f"{blk}{norm}.bias", N))
        for part in ("attention.time_maa_x", "attention.time_maa_w", "attention.time_maa_k", "attention.time_maa_v",
                     "attention.time_maa_r", "attention.time_maa_g", "attention.time_decay", "feed_forward.time_maa_k",
                     "feed_forward.time_maa_r"):
            yield blk + part, 1, 1, N
        yield from ((blk + "attention.time_maa_w1", N, 5 * 32), (blk + "attention.time_maa_w2", 5, 32, N),
                    (blk + "attention.time_decay_w1", N, 64), (blk + "attention.time_decay_w2", 64, N),
                    (blk + "attention.time_faaaa", N // 16, 16), (blk + "feed_forward.key.weight", N_FF, N),
                    (blk + "feed_forward.receptance.weight", N, N), (blk + "feed_forward.value.weight", N, N_FF))
        for part in ("key", "value", "receptance", "gate", "output"):
            yield f"{blk}attention.{part}.weight", N, N


def rwkv7():
    # With smaller heads, llama.cpp gives other logits in each run.
    ranks = dict(decay_low_rank_dim=24, a_low_rank_dim=16, v_low_rank_dim=8, gate_low_rank_dim=40)
    yield dict(architectures=["RWKV7ForCausalLM"], model_type="rwkv7", vocab_size=N_VOCAB, hidden_size=N, head_dim=64,
               num_hidden_layers=LAYERS, norm_eps=1e-5, intermediate_size=N_FF, tie_word_embeddings=False, **ranks)
    yield from (("model.embeddings.weight", N_VOCAB, N), ("lm_head.weight", N_VOCAB, N))
    for norm in ("model.layers.0.pre_norm", "model.norm"):
        yield from ((norm + ".weight", N), (norm + ".bias", N))
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        for norm in ("attn_norm", "ffn_norm", "attn.g_norm"):
            yield from ((f"{blk}{norm}.weight", N), (f"{blk}{norm}.bias", N))
        for part in "rwkvag":
            yield f"{blk}attn.x_{part}", 1, 1, N
        yield from ((blk + "attn.k_k", N), (blk + "attn.k_a", N), (blk + "attn.r_k", 1, 64), (blk + "ffn.x_k", N),
                    (blk + "ffn.key.weight", N_FF, N), (blk + "ffn.value.weight", N, N_FF))
        for part in ("r_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{blk}attn.{part}.weight", N, N
        for part, rank in (("w", 24), ("a", 16), ("g", 40), *([("v", 8)] if i else [])):
            yield from ((f"{blk}attn.{part}_lora.lora.0.weight", rank, N), (f"{blk}attn.{part}_lora.lora.2.weight", N, rank))
            if part != "g":
                yield f"{blk}attn.{part}_lora.lora.2.bias", N


def plamo2():
    yield {**SIZES, "architectures": ["Plamo2ForCausalLM"], "model_type": "plamo2", "hidden_size_per_head": D,
           "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_num_heads": 8, "mamba_step": 2, "num_hidden_layers": 4,
           "tie_word_embeddings": True}
    yield from (("model.embed_tokens.weight", N_VOCAB, N), ("model.norm.weight", N))
    inner, rank = 8 * D, 64
    for i in range(4):
        blk = f"model.layers.layers.{i}."
        for norm in ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm"):
            yield f"{blk}{norm}.weight", N
        yield from ((blk + "mlp.gate_up_proj.weight", 2 * N_FF, N), (blk + "mlp.down_proj.weight", N, N_FF))
        blk += "mixer."
        if i % 2 == 1:
            yield from ((blk + "qkv_proj.weight", (HEADS + 2 * KV) * D, N), (blk + "o_proj.weight", N, HEADS * D),
                        (blk + "q_weight", HEADS, D), (blk + "k_weight", KV, D))
            continue
        yield from ((blk + "in_proj.weight", 2 * inner, N), (blk + "conv1d.weight", inner, 1, 4),
                    (blk + "bcdt_proj.weight", rank + 32, inner), (blk + "dt_proj.weight", 8, rank), (blk + "dt_bias", 8),
                    (blk + "dt_norm_weight", rank), (blk + "B_norm_weight", 16), (blk + "C_norm_weight", 16),
                    (blk + "A_log", 8), (blk + "D", 8), (blk + "out_proj.weight", N, inner))


MODELS = dict(bailingmoe2=bailingmoe2, exaone=exaone, qwen=qwen, baichuan=baichuan, internlm2=internlm2,
              codeshell=codeshell, refact=refact, deci=deci, minicpm=minicpm, rwkv6=rwkv6, rwkv7=rwkv7, plamo2=plamo2,
              kimi_linear=kimi_linear, bailingmoe3=bailingmoe3)


def write(name, folder):
    """Writes the checkpoint of a family to a folder; returns its settings."""
    import llama_like_models
    settings, *tensors = {**MODELS, **llama_like_models.MODELS}[name]()
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for tensor, *shape in tensors:
        noise = torch.randn(shape, generator=generator)
        is_norm = "norm" in tensor or "ln" in tensor
        if len(shape) > 1 and min(shape) > 1:
            noise *= 0.5 if "emb" in tensor else 1.2 / shape[-1] ** 0.5
        else:
            noise = 0.1 * noise + (1.0 if is_norm and tensor.endswith("weight") or tensor.endswith("w_g") else 0.0)
        weights[tensor] = noise
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings))
    return settings

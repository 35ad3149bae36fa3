"""More random checkpoints for check_conversion_peer, as own_code_models: names and shapes as published."""
from own_code_models import D, HEADS, KV, LATENT, LAYERS, N, N_FF, N_VOCAB, SIZES, delta_net, gated, latent, llama_ends

QKV = (HEADS + 2 * KV) * D
ROUTED = dict(num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1, norm_topk_prob=False)


def norms(blk):
    return (blk + "input_layernorm.weight", N), (blk + "post_attention_layernorm.weight", N)


def attention(blk, bias=False):
    for part, n_out in (("q", HEADS * D), ("k", KV * D), ("v", KV * D), ("o", N)):
        yield f"{blk}self_attn.{part}_proj.weight", n_out, N
        if bias:
            yield f"{blk}self_attn.{part}_proj.bias", n_out


def llama(kind, model_type, bias=False, norm_bias=False, qk_norms=False, **more):
    """A model with Llama's names."""
    def made():
        yield {**SIZES, "architectures": [kind], "model_type": model_type, **more}
        yield from llama_ends()
        if norm_bias:
            yield "model.norm.bias", N
        for i in range(LAYERS):
            blk = f"model.layers.{i}."
            yield from norms(blk)
            if norm_bias:
                yield from ((name.replace("weight", "bias"), n) for name, n in norms(blk))
            yield from attention(blk, bias)
            if qk_norms:
                yield from ((blk + "self_attn.q_norm.weight", D), (blk + "self_attn.k_norm.weight", D))
            yield from gated(blk + "mlp.", N_FF)
    return made


def experts(blk, n_shared):
    yield blk + "mlp.gate.weight", 4, N
    for e in range(4):
        yield from gated(f"{blk}mlp.experts.{e}.", 32)
    if n_shared:
        yield from gated(blk + "mlp.shared_experts.", 32 * n_shared)


def deepseek():
    yield {**SIZES, **ROUTED, "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "n_routed_experts": 4,
           "n_shared_experts": 2, "scoring_func": "softmax"}
    yield from llama_ends()
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from (*norms(blk), *attention(blk), *(experts(blk, 2) if i else gated(blk + "mlp.", N_FF)))


def bailingmoe():
    yield {**SIZES, **ROUTED, "architectures": ["BailingMoeForCausalLM"], "model_type": "bailing_moe", "num_experts": 4,
           "num_shared_experts": 1, "norm_topk_prob": True, "norm_head": False, "head_dim": D, "first_k_dense_replace": 0}
    yield from llama_ends("model.word_embeddings.weight")
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from (*norms(blk), (blk + "attention.query_key_value.weight", QKV, N), (blk + "attention.dense.weight", N, N),
                    *experts(blk, 1))


def grovemoe():
    yield {**SIZES, "architectures": ["GroveMoeForCausalLM"], "model_type": "grove_moe", "num_experts": 4, "head_dim": D,
           "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    yield from llama_ends()
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from (*norms(blk), *attention(blk), (blk + "self_attn.q_norm.weight", D),
                    (blk + "self_attn.k_norm.weight", D), *experts(blk, 0))
        for chunk in range(2):
            yield from gated(f"{blk}mlp.chunk_experts.{chunk}.", D)


def phimoe():
    yield {**SIZES, "architectures": ["PhiMoEForCausalLM"], "model_type": "phimoe", "num_local_experts": 4,
           "num_experts_per_tok": 2, "sliding_window": 256, "original_max_position_embeddings": 256, "attention_bias": True,
           "lm_head_bias": True}
    yield from (*llama_ends(), ("model.norm.bias", N), ("lm_head.bias", N_VOCAB))
    for i in range(LAYERS):
        blk = f"model.layers.{i}."
        yield from (*norms(blk), *((name.replace("weight", "bias"), n) for name, n in norms(blk)), *attention(blk, True))
        moe = blk + "block_sparse_moe."
        yield moe + "gate.weight", 4, N
        for e in range(4):
            yield from ((f"{moe}experts.{e}.w1.weight", N_FF, N), (f"{moe}experts.{e}.w2.weight", N, N_FF),
                        (f"{moe}experts.{e}.w3.weight", N_FF, N))


def plamo3():
    yield {**SIZES, "architectures": ["Plamo3ForCausalLM"], "model_type": "plamo3", "head_dim": D, "window_size": 8,
           "sliding_window_pattern": 3, "rope_local_theta": 10000.0}
    yield from llama_ends()
    for i in range(LAYERS):
        blk = f"model.layers.layers.{i}."
        for norm in ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm"):
            yield f"{blk}{norm}.weight", N
        yield from ((blk + "mixer.qkv_proj.weight", QKV, N), (blk + "mixer.o_proj.weight", N, N),
                    (blk + "mixer.q_norm.weight", D), (blk + "mixer.k_norm.weight", D),
                    (blk + "mlp.gate_up_proj.weight", 2 * N_FF, N), (blk + "mlp.down_proj.weight", N, N_FF))


def chatglm():
    yield dict(architectures=["ChatGLMModel"], model_type="chatglm", hidden_size=N, ffn_hidden_size=N_FF, num_layers=LAYERS,
               num_attention_heads=HEADS, multi_query_attention=True, multi_query_group_num=KV, kv_channels=D,
               layernorm_epsilon=1e-5, seq_length=256, padded_vocab_size=N_VOCAB, vocab_size=N_VOCAB, rmsnorm=True,
               add_bias_linear=False, add_qkv_bias=True, post_layer_norm=True, tie_word_embeddings=False)
    yield from (("transformer.embedding.word_embeddings.weight", N_VOCAB, N), ("transformer.output_layer.weight", N_VOCAB, N),
                ("transformer.encoder.final_layernorm.weight", N), ("transformer.rotary_pos_emb.inv_freq", D // 4))
    for i in range(LAYERS):
        blk = f"transformer.encoder.layers.{i}."
        yield from (*norms(blk), (blk + "self_attention.query_key_value.weight", QKV, N),
                    (blk + "self_attention.query_key_value.bias", QKV), (blk + "self_attention.dense.weight", N, N),
                    (blk + "mlp.dense_h_to_4h.weight", 2 * N_FF, N), (blk + "mlp.dense_4h_to_h.weight", N, N_FF))


def jais():
    yield dict(architectures=["JAISLMHeadModel"], model_type="jais", n_embd=N, n_inner=N_FF, n_layer=LAYERS, n_head=HEADS,
               n_positions=256, vocab_size=N_VOCAB, layer_norm_epsilon=1e-5, activation_function="swiglu",
               position_embedding_type="alibi", embeddings_scale=2.0, width_scale=0.5, scale_qk_dot_by_d=True,
               tie_word_embeddings=False)
    yield from (("transformer.wte.weight", N_VOCAB, N), ("lm_head.weight", N_VOCAB, N), ("transformer.ln_f.weight", N),
                ("transformer.ln_f.bias", N))
    for i in range(LAYERS):
        blk = f"transformer.h.{i}."
        for name, n_in, n_out in (("attn.c_attn", N, 3 * N), ("attn.c_proj", N, N), ("mlp.c_fc", N, N_FF),
                                  ("mlp.c_fc2", N, N_FF), ("mlp.c_proj", N_FF, N)):
            yield from ((f"{blk}{name}.weight", n_in, n_out), (f"{blk}{name}.bias", n_out))
        for norm in ("ln_1", "ln_2"):
            yield from ((f"{blk}{norm}.weight", N), (f"{blk}{norm}.bias", N))


def talkie():
    yield {**SIZES, "architectures": ["TalkieForCausalLM"], "model_type": "talkie", "head_dim": D,
           "num_key_value_heads": HEADS}
    yield from (("model.embed.weight", N_VOCAB, N), ("lm_head", N_VOCAB, N), ("lm_head_gain.w_g", 1))
    for i in range(LAYERS):
        blk = f"model.blocks.{i}."
        for part in ("query", "key", "value", "resid"):
            yield f"{blk}attn.attn_{part}.weight", N, N
        yield from ((blk + "attn.head_gain.head_g", HEADS), (blk + "attn_gain.a_g", 1), (blk + "mlp_gain.a_g", 1),
                    (blk + "embed_skip.a_g", 1), (blk + "mlp.mlp_gate.weight", N_FF, N),
                    (blk + "mlp.mlp_linear.weight", N_FF, N), (blk + "mlp.mlp_resid.weight", N, N_FF))


def kimi_k3():
    d, low = 16, 32
    yield {**SIZES, **LATENT, "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
           "num_experts_per_token": 3, "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "head_dim": 24,
           "mla_use_nope": True, "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
           "attn_res_block_size": 2, "routed_expert_hidden_size": low, "linear_attn_config": {
               "full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": d, "num_heads": HEADS,
               "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}}
    start = "language_model."
    yield from ((start + name, *shape) for name, *shape in llama_ends())
    yield from ((start + "model.output_attn_res_norm.weight", N), (start + "model.output_attn_res_proj.weight", 1, N))
    for i in range(LAYERS):
        blk = f"{start}model.layers.{i}."
        yield from norms(blk)
        for part in ("self_attention_res", "mlp_res"):
            yield from ((f"{blk}{part}_norm.weight", N), (f"{blk}{part}_proj.weight", 1, N))
        n = HEADS * d
        if i == 1:
            yield from (*latent(blk + "self_attn.", "o_proj"), (blk + "self_attn.g_proj.weight", HEADS * 16, N))
        else:
            parts = delta_net(blk + "self_attn.", d, [("f_a_proj", d, N), ("f_b_proj", n, d), ("g_proj", n, N)])
            # More rates than heads.
            yield from ((name, HEADS + 2) if name.endswith("A_log") else (name, *shape) for name, *shape in parts)
        if i == 0:
            yield from gated(blk + "mlp.", N_FF)
            continue
        moe = blk + "block_sparse_moe."
        yield from ((moe + "gate.weight", 8, N), (moe + "gate.e_score_correction_bias", 8),
                    (moe + "routed_expert_down_proj.weight", low, N), (moe + "routed_expert_up_proj.weight", N, low),
                    (moe + "routed_expert_norm.weight", low))
        for e in range(8):
            yield from ((f"{moe}experts.{e}.w1.weight", 32, low), (f"{moe}experts.{e}.w2.weight", low, 32),
                        (f"{moe}experts.{e}.w3.weight", 32, low))
        yield from gated(moe + "shared_experts.", 32)


MODELS = dict(
    xverse=llama("XverseForCausalLM", "xverse"), orion=llama("OrionForCausalLM", "orion", norm_bias=True, rope_theta=None),
    pangu=llama("PanguEmbeddedForCausalLM", "PanguEmbedded", bias=True),
    maincoder=llama("MaincoderForCausalLM", "maincoder", qk_norms=True, head_dim=D),
    nanbeige=llama("NanbeigeForCausalLM", "nanbeige"), internlm3=llama("InternLM3ForCausalLM", "internlm3", head_dim=D),
    deepseek=deepseek, bailingmoe=bailingmoe, grovemoe=grovemoe, phimoe=phimoe, plamo3=plamo3, chatglm=chatglm, jais=jais,
    talkie=talkie, kimi_k3=kimi_k3)

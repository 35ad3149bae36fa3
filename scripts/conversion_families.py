"""Cases of check_conversion beside the first families: name, class in `transformers` (without its ending), settings."""
import json
import os

import torch
from safetensors.torch import save_file

# llama.cpp's cut-off of Gemma 3n's neurons divides a variance by one less than PyTorch's.
BOUNDS = {"gemma3n": 2e-2}
# Tokens of greedy text that are compared, where not 16: each of ten layers keeps few neurons, and a rounding error may
# keep another one.
N_TOKENS = {"gemma3n": 8}
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
             linear_conv_kernel_dim=4, head_dim=32, num_hidden_layers=4,
             layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"])
LATENT = dict(q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=24,
              num_key_value_heads=4, first_k_dense_replace=1, moe_intermediate_size=32, n_routed_experts=8,
              n_shared_experts=1, num_experts_per_tok=3)
GROUPS = dict(n_group=4, topk_group=2)
# DeepSeek V3's default of several groups needs many experts.
ONE_GROUP = dict(n_group=1, topk_group=1)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2, mamba_expand=2, mamba_d_conv=4)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)


def dense(s):
    yield "granite", "Granite", {**s, "attention_multiplier": 0.3, "embedding_multiplier": 3.0,
                                 "residual_multiplier": 0.5, "logits_scaling": 2.0}
    yield "olmo", "Olmo", {**s, "clip_qkv": 0.8}
    yield "olmo2", "Olmo2", s
    yield "olmo3", "Olmo3", {**s, "num_hidden_layers": 4, "sliding_window": 6}
    yield "smollm3", "SmolLM3", {**s, "num_hidden_layers": 5, "pad_token_id": 2}
    yield "seed_oss", "SeedOss", {**s, "head_dim": 24, "attention_out_bias": False}
    yield "exaone4", "Exaone4", {**s, "sliding_window": None, "layer_types": ["full_attention"] * 3}
    yield "exaone4-window", "Exaone4", {**s, "sliding_window": 6, "num_hidden_layers": 5}
    yield "command-r", "Cohere", {**s, "use_qk_norm": False}
    yield "command-r-plus", "Cohere", {**s, "use_qk_norm": True, "logit_scale": 0.5}
    yield "cohere2", "Cohere2", {**s, "num_hidden_layers": 4, "sliding_window": 6}
    yield "starcoder2", "Starcoder2", {**s, "sliding_window": None}
    yield "stablelm", "StableLm", {**s, "use_qkv_bias": True, "partial_rotary_factor": 0.25}
    yield "stablelm-12b", "StableLm", {**s, "qk_layernorm": True, "use_parallel_residual": True}
    yield "phi2", "Phi", {**s, "num_key_value_heads": 4}
    yield "chatglm", "Glm", {**s, "head_dim": 16}
    yield "mistral3", "Ministral3", {**s, "head_dim": 16, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}
    yield "minicpm3", "MiniCPM3", {**s, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32,
                                   "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "pad_token_id": 2}
    yield "ernie4_5", "Ernie4_5", {**s, "head_dim": 16}
    yield "hunyuan-dense", "HunYuanDenseV1", {**s, "head_dim": 16}
    yield "hunyuan-alpha", "HunYuanDenseV1", {**s, "head_dim": 16, "rope_parameters": {
        "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0}}
    yield "glm4", "Glm4", {**s, "head_dim": 16}
    vision = dict(depth=1, hidden_size=32, embed_dim=32, num_heads=2, intermediate_size=32, out_hidden_size=64,
                  deepstack_visual_indexes=[0])
    sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    yield "qwen2vl", "Qwen2VLForConditionalGeneration", {
        "text_config": {**s, "rope_parameters": sections}, "vision_config": vision}
    yield "qwen2.5vl", "Qwen2_5_VLForConditionalGeneration", {
        "text_config": {**s, "rope_parameters": sections}, "vision_config": vision}
    yield "qwen3vl", "Qwen3VLForConditionalGeneration", {
        "text_config": {**s, "head_dim": 16, "rope_parameters": sections}, "vision_config": vision}


def newer(s):
    routed = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    yield "mimo2", "MiMoV2Flash", {
        **s, "num_hidden_layers": 4, "head_dim": 24, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "sliding_window": 6, "attention_value_scale": 0.7, "layer_types": [
            "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    laguna = {**s, **routed, "num_hidden_layers": 5, "head_dim": 16, "shared_expert_intermediate_size": 48,
              "layer_types": kinds, "sliding_window": 6, "moe_routed_scaling_factor": 1.5}
    yield "laguna", "Laguna", {**laguna, "num_attention_heads_per_layer": [4, 6, 6, 6, 4]}
    yield "laguna-m", "Laguna", {**laguna, "layer_types": ["full_attention"] * 5, "gating": "per-element"}
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    command = {**s, "num_hidden_layers": 5, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
               "layer_types": kinds, "sliding_window": 6}
    yield "cohere2moe", "Cohere2Moe", {
        **command, "expert_selection_fn": "sigmoid", "num_shared_experts": 1, "prefix_dense_intermediate_size": 80,
        "mlp_layer_types": ["dense"] + ["sparse"] * 4}
    yield "cohere2moe-softmax", "Cohere2Moe", {**command, "expert_selection_fn": "softmax"}
    yield "dbrx", "Dbrx", dict(
        vocab_size=512, d_model=64, n_heads=4, n_layers=3, max_seq_len=256, bos_token_id=0, eos_token_id=1,
        attn_config=dict(kv_n_heads=2, clip_qkv=1.5, rope_theta=10000.0),
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2, hidden_size=64))
    yield "bamba", "Bamba", {**s, **MAMBA, "attn_layer_indices": [1]}
    no_mamba = {**s, **MAMBA, "layer_types": ["attention"] * 3, "shared_intermediate_size": 48,
                "embedding_multiplier": 2.0, "logits_scaling": 2.0}
    yield "granite-4", "GraniteMoeHybrid", {
        **no_mamba, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}
    yield "granite-4-nope", "GraniteMoeHybrid", {
        **no_mamba, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "nope"}
    yield "granitemoe-4", "GraniteMoeHybrid", {
        **no_mamba, "num_local_experts": 4, "num_experts_per_tok": 2, "position_embedding_type": "rope"}


def older(s):
    yield "gpt2", "GPT2LMHeadModel", dict(vocab_size=512, n_embd=64, n_layer=3, n_head=4, n_positions=256,
                                          bos_token_id=0, eos_token_id=1)
    yield "starcoder", "GPTBigCode", dict(vocab_size=512, n_embd=64, n_layer=3, n_head=4, n_positions=256,
                                          bos_token_id=0, eos_token_id=1)
    yield "gptneox", "GPTNeoX", {**s, "num_key_value_heads": 4, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
    yield "gptneox-serial", "GPTNeoX", {**s, "num_key_value_heads": 4, "use_parallel_residual": False}
    yield "bloom", "Bloom", dict(vocab_size=512, hidden_size=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=1)
    yield "mpt", "Mpt", dict(vocab_size=512, d_model=64, n_layers=3, n_heads=4, max_seq_len=256, expansion_ratio=4,
                             bos_token_id=0, eos_token_id=1)


def experts(s):
    yield "granitemoe", "GraniteMoe", {**s, "num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 2.0}
    yield "granitemoe-shared", "GraniteMoeShared", {**s, "num_local_experts": 4, "num_experts_per_tok": 2,
                                                    "shared_intermediate_size": 40, "residual_multiplier": 0.5}
    yield "olmoe", "Olmoe", {**s, "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}
    yield "deepseek-v2", "DeepseekV2", {**s, **LATENT, **ONE_GROUP, "topk_method": "greedy",
                                        "routed_scaling_factor": 2.0}
    yield "deepseek-v2-lite", "DeepseekV2", {**s, **LATENT, **ONE_GROUP, "topk_method": "greedy", "q_lora_rank": None,
                                             "num_hidden_layers": 26}
    yield "deepseek-v3", "DeepseekV3", {**s, **LATENT, **GROUPS, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    yield "deepseek-v3-plain", "DeepseekV3", {**s, **LATENT, **ONE_GROUP, "num_experts_per_tok": 3}
    yield "glm4_moe_lite", "Glm4MoeLite", {**s, **LATENT, **ONE_GROUP, "mlp_layer_types": ["dense", "sparse", "sparse"]}
    # With few heads in an indexer, all of a position's products may be negative. Its score is then 0, as that of others,
    # and PyTorch selects any of them. llama.cpp rotates heads whose size is a multiple of 64.
    yield "deepseek_v32", "DeepseekV32", {**s, **LATENT, **ONE_GROUP, "index_n_heads": 16, "index_head_dim": 64,
                                          "index_topk": 8}
    # Layers with each kind of attention, and with experts from a table and from a router. A text of this check is too short
    # for a block of 128 positions.
    yield "deepseek_v4", "DeepseekV4", {
        **s, "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 32, "partial_rotary_factor": 0.5,
        "q_lora_rank": 24, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                        "compressed_sparse_attention"],
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"], "sliding_window": 6, "o_groups": 2, "o_lora_rank": 16,
        "index_n_heads": 16, "index_head_dim": 64, "index_topk": 3, "swiglu_limit": 1.5, "rope_parameters": YARN}
    yield "glm_moe_dsa", "GlmMoeDsa", {**s, **LATENT, **ONE_GROUP, "index_n_heads": 16, "index_head_dim": 64,
                                       "index_topk": 8, "mlp_layer_types": ["dense", "sparse", "sparse"]}
    # `transformers` saves dense layers of this family under the names of layers with experts, so there is none here.
    yield "kimi_linear", "KimiLinear", {
        **s, **LATENT, **ONE_GROUP, "q_lora_rank": None, "num_key_value_heads": 4, "num_hidden_layers": 4,
        "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 1, "num_expert_group": 1,
        "mlp_layer_types": ["sparse"] * 4, "first_k_dense_replace": 0, "mla_use_nope": True,
        "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 2.0,
        "linear_attn_config": {"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4, "full_attn_layers": [3],
                               "kda_layers": [1, 2, 4]}}
    glm = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, first_k_dense_replace=1,
               head_dim=16, routed_scaling_factor=1.5, **ONE_GROUP)
    yield "glm4moe", "Glm4Moe", {**s, **glm, "use_qk_norm": True, "attention_bias": True}
    yield "glm4moe-air", "Glm4Moe", {**s, **glm, "use_qk_norm": False}
    yield "dots1", "Dots1", {**s, **glm, "num_key_value_heads": 4, "n_shared_experts": 2, "norm_topk_prob": True}
    yield "minimax-m2", "MiniMaxM2", {**s, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32,
                                      "rotary_dim": 16, "rope_parameters": {
                                          "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
    yield "ernie4_5-moe", "Ernie4_5_Moe", {**s, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32,
                                           "moe_layer_start_index": 1, "moe_layer_end_index": 2,
                                           "moe_num_shared_experts": 2}
    yield "hunyuan-moe", "HunYuanMoEV1", {**s, "num_experts": 4, "moe_topk": 2, "head_dim": 16}
    yield "mistral4", "Mistral4", {**s, **LATENT, **ONE_GROUP, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}
    yield "exaone-moe", "ExaoneMoe", {**s, "num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 2,
                                      "moe_intermediate_size": 32, "sliding_window": 6}
    yield "afmoe", "Afmoe", {**s, "num_hidden_layers": 5, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
                             "moe_intermediate_size": 32, "num_dense_layers": 1, "num_shared_experts": 1,
                             "sliding_window": 6, "mup_enabled": True, "route_scale": 1.5}
    yield "hy_v3", "HYV3", {**s, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
                            "moe_intermediate_size": 32}
    yield "llama4", "Llama4", {**s, "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 4,
                               "num_experts_per_tok": 1, "intermediate_size_mlp": 80, "interleave_moe_layer_step": 2}
    vision = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=32, out_hidden_size=64,
                  deepstack_visual_indexes=[0])
    yield "qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration", {
        "text_config": {**s, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}},
        "vision_config": vision}


def hybrid(s):
    shared = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48)
    yield "qwen3next", "Qwen3Next", {**s, **DELTA, **shared}
    yield "qwen35", "Qwen3_5", {**s, **DELTA, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]}}
    yield "qwen35moe", "Qwen3_5Moe", {**s, **DELTA, **shared}
    kinds = ["conv", "full_attention", "conv", "full_attention"]
    yield "lfm2", "Lfm2", {**s, "num_hidden_layers": 4, "layer_types": kinds}
    yield "lfm2moe", "Lfm2Moe", {**s, "num_hidden_layers": 4, "layer_types": kinds, "num_dense_layers": 1,
                                 "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    only = dict(vocab_size=512, hidden_size=64, num_hidden_layers=3, state_size=16, bos_token_id=0, eos_token_id=1,
                pad_token_id=None)
    yield "mamba", "Mamba", only
    yield "falcon-mamba", "FalconMamba", {**only, "mixer_rms_eps": 1e-5}
    yield "mamba2", "Mamba2", {**only, "num_heads": 8, "head_dim": 16, "n_groups": 2}
    mixed = {**s, **MAMBA, "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
             "shared_intermediate_size": 48, "embedding_multiplier": 2.0, "logits_scaling": 2.0}
    yield "granitehybrid", "GraniteMoeHybrid", {**mixed, "num_local_experts": 0, "num_experts_per_tok": 0}
    yield "granitehybrid-moe", "GraniteMoeHybrid", {**mixed, "num_local_experts": 4, "num_experts_per_tok": 2}
    yield "falcon-h1", "FalconH1", {**s, **MAMBA, "mamba_d_ssm": 128, "head_dim": 16, "attention_in_multiplier": 0.8,
                                    "key_multiplier": 0.7, "ssm_multipliers": [0.9, 0.8, 1.1, 1.2, 0.7],
                                    "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.6, "mlp_multipliers": [0.9, 0.8],
                                    "lm_head_multiplier": 0.5, "embedding_multiplier": 2.0}
    yield "jamba", "Jamba", {**s, "num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 2,
                             "attn_layer_period": 4, "attn_layer_offset": 2, "expert_layer_period": 2,
                             "expert_layer_offset": 1}
    nemotron = {**s, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
                "conv_kernel": 4, "chunk_size": 8}
    del nemotron["num_hidden_layers"]
    yield "nemotron_h", "NemotronH", {**nemotron, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]}
    yield "nemotron_h_moe", "NemotronH", {
        **nemotron, "layers_block_type": ["mamba", "attention", "moe", "moe"], "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
        "routed_scaling_factor": 1.5}


def gemma(s):
    layers = lambda n, period: [  # noqa: E731
        "full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(n)]
    # llama.cpp has 256 values per layer, 20 layers with keys and values of their own, and 10 with inactive neurons,
    # which must be many for its cut-off to be near PyTorch's.
    yield "gemma3n", "Gemma3n", {
        **s, "num_hidden_layers": 25, "head_dim": 16, "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 504, "laurel_rank": 64, "num_kv_shared_layers": 5,
        "layer_types": layers(25, 5), "sliding_window": 8,
        "intermediate_size": [4096] * 25, "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15}
    small = {**s, "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "sliding_window": 8,
             "layer_types": layers(6, 3), "final_logit_softcapping": 30.0}
    yield "gemma4", "Gemma4", {**small, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
                               "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    yield "gemma4-e2b", "Gemma4", {**small, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 512,
                                   "num_kv_shared_layers": 3, "use_double_wide_mlp": True}
    yield "gemma4-moe", "Gemma4", {**small, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
                                   "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
                                   "moe_intermediate_size": 32}


def newest(s):
    yield "hrm_text", "HrmText", {**s, "num_key_value_heads": 4, "num_hidden_layers": 2, "head_dim": 16, "H_cycles": 2,
                                  "L_cycles": 2, "prefix_lm": False, "embedding_scale": 3.0}
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    yield "granite_swa", "GraniteSWA", {
        **s, "num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 6, "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0,
        "layer_rope_theta": [10000.0, 0, 10000.0, 10000.0]}
    yield "mellum", "Mellum", {
        **s, "num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 6, "head_dim": 16, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        # llama.cpp has one base for all layers.
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in set(kinds)}}
    yield "muse-glimmer", "MuseGlimmerForConditionalGeneration", {
        "text_config": {**s, "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 6},
        "vision_config": dict(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=32)}
    yield "bailingmoe3", "BailingHybrid", {
        **s, **LATENT, **GROUPS, "num_hidden_layers": 4, "num_local_experts": 8, "head_dim": 16, "layer_group_size": 2,
        "routed_scaling_factor": 2.0, "q_lora_rank": None, "num_mtp_layers": 0}
    yield "glm5_next", "Glm5NextForConditionalGeneration", {
        "text_config": {**s, **LATENT, **ONE_GROUP, "qk_rope_head_dim": 0, "num_hidden_layers": 4, "index_n_heads": 16,
                        "index_head_dim": 32, "index_topk": 8, "index_kpool": 4, "linear_head_dim": 16,
                        "linear_num_heads": 4, "hc_mult": 4, "mlp_layer_types": ["dense"] + ["sparse"] * 3, "layer_types": [
                            "linear_attention", "linear_attention", "indexed_attention", "linear_attention"]},
        "vision_config": dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=32, out_hidden_size=64,
                              projection_intermediate_size=32)}
    # The layer of n-grams must be linear.
    yield "qwen4exp", "Qwen4Exp", {
        **s, **DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "hc_count": 2, "hc_lowrank": 8, "ple_layer_ids": [2], "ngram_size": 3,
        "heads_per_ngram": 2, "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 3, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32,
        "indexer_budget": 32, "indexer_compress_ratio": 4, "output_gate_type": "sigmoid", "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]}}


def complete(name, folder):
    """Adds what published checkpoints of a case have and `transformers` does not store: matrices that are not used."""
    if name != "gemma3n":
        return
    tensors = {}
    for layer in range(20, 25):
        part = f"model.layers.{layer}.self_attn."
        for which, shape in (("k_proj", (32, 64)), ("v_proj", (32, 64)), ("k_norm", (16,))):
            tensors[f"{part}{which}.weight"] = torch.randn(shape)
    save_file(tensors, os.path.join(folder, "model-unused.safetensors"))
    path = os.path.join(folder, "model.safetensors.index.json")
    with open(path) as file:
        index = json.load(file)
    index["weight_map"].update(dict.fromkeys(tensors, "model-unused.safetensors"))
    with open(path, "w") as file:
        json.dump(index, file)


def cases(shape):
    for group in (dense, newer, older, experts, hybrid, gemma, newest):
        yield from group(shape)

"""Writes GGUF models with the layers of published models, fewer of them, and synthetic weights in Q4_0. scripts/compare_llama_cpp
--suite starts this program with a Python that has `gguf`.

    PYTHON shape_models.py NAME FILE

Sizes are those of the published config.json. The vocabulary is smaller, so that the head does not outweigh the few
layers. Tensor names and keys are those that llama.cpp's converter writes (`conversion/`).
"""
import os
import sys

import gguf
import numpy as np

VOCAB = 32768
BLOCK, BLOCK_BYTES = 32, 18  # of Q4_0
# Standard deviation of the weights of matrices. Codes are 1 to 15, so that their mean is a weight of 0 and their standard
# deviation 4.3 steps: a mean other than 0 would add up over layers, until all neurons are active.
STDEV, STEPS = 0.02, 4.32
# Codes of a weight two steps below 0, and of 0. Blocks without a gate have the first in the first column of their up matrices,
# and the first value of all tokens is positive, so that few neurons are active, as in trained models with a squared ReLU.
NEGATIVE, ZERO = 6, 8
# Blocks of random weights, of which each matrix takes a part: making them takes longer than writing them.
POOL_BLOCKS = 1 << 20


class Model:
    """Metadata and tensors of one model."""

    def __init__(self, path, arch, n_layer, width, outputs=STDEV, **keys):
        """`outputs` is the standard deviation of the matrices that add to the residual."""
        self.outputs = outputs
        self.writer = gguf.GGUFWriter(path, arch)
        self.arch, self.width, self.random = arch, width, np.random.default_rng(7)
        low, high = self.random.integers(1, 16, (2, POOL_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
        self.pool = low | high << 4
        self.put_keys(block_count=n_layer, embedding_length=width, context_length=131072, **keys)
        self.vocabulary()

    def put_keys(self, **keys):
        """Adds keys of the architecture; `__` in a name is a point."""
        for name, value in keys.items():
            key = f"{self.arch}.{name.replace('__', '.')}"
            if isinstance(value, bool):
                self.writer.add_bool(key, value)
            elif isinstance(value, int):
                self.writer.add_uint32(key, value)
            elif isinstance(value, float):
                self.writer.add_float32(key, value)
            else:
                self.writer.add_array(key, value)

    def vocabulary(self):
        """Byte tokens, and other tokens that no text has."""
        w, kinds = self.writer, gguf.TokenType
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256]
        more = [f"token{n}" for n in range(VOCAB - len(tokens))]
        w.add_tokenizer_model("llama")
        w.add_token_list(tokens + more)
        w.add_token_types(types + [kinds.NORMAL] * len(more))
        w.add_token_scores([-float(n) for n in range(VOCAB)])
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)

    def matrix(self, name, *shape, first=None, stdev=STDEV):
        """A matrix in Q4_0; `shape` ends with the number of columns. `first` is the code of the first value of each row."""
        n_blocks = int(np.prod(shape)) // BLOCK
        start = self.random.integers(POOL_BLOCKS)
        blocks = np.resize(np.roll(self.pool, -start, axis=0), (n_blocks, BLOCK_BYTES))
        blocks[:, :2] = np.float16(stdev / STEPS).reshape(1).view(np.uint8)
        if first is not None:
            of_rows = blocks[::shape[-1] // BLOCK, 2]
            of_rows &= 0xF0
            of_rows |= first
        blocks = blocks.reshape(*shape[:-1], shape[-1] // BLOCK * BLOCK_BYTES)
        self.writer.add_tensor(f"{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def floats(self, name, *shape, mean=0.0, stdev=STDEV):
        values = mean + stdev * self.random.standard_normal(shape)
        self.writer.add_tensor(name, values.astype(np.float32))

    def norms(self, prefix, **sizes):
        for name, size in sizes.items():
            self.floats(f"{prefix}{name}.weight", *np.atleast_1d(size), mean=1.0)

    def experts(self, blk, n, n_ff, gated=True):
        router = STDEV * self.random.standard_normal((n, self.width))
        # What is the same in all tokens would choose the same experts.
        router[:, 0] = 0
        self.writer.add_tensor(f"{blk}.ffn_gate_inp.weight", router.astype(np.float32))
        for part in ("gate", "up") if gated else ("up",):
            self.matrix(f"{blk}.ffn_{part}_exps", n, n_ff, self.width, first=None if gated else NEGATIVE)
        self.matrix(f"{blk}.ffn_down_exps", n, self.width, n_ff, stdev=self.outputs)

    def block(self, blk, n_ff, suffix="", gated=True):
        """A dense feed-forward block, or a shared expert."""
        for part in ("gate", "up") if gated else ("up",):
            self.matrix(f"{blk}.ffn_{part}{suffix}", n_ff, self.width, first=None if gated else NEGATIVE)
        self.matrix(f"{blk}.ffn_down{suffix}", self.width, n_ff, stdev=self.outputs)

    def attention(self, blk, n_q, n_kv, width_of_heads=None, v=True):
        """`n_q`, `n_kv`: columns of all heads."""
        self.matrix(f"{blk}.attn_q", n_q, self.width)
        for part in ("k", "v") if v else ("k",):
            self.matrix(f"{blk}.attn_{part}", n_kv, self.width)
        self.matrix(f"{blk}.attn_output", self.width, width_of_heads or n_q, stdev=self.outputs)

    def embeddings(self, constant):
        """Embeddings whose first value is `constant` in all tokens."""
        blocks = np.resize(self.pool, (VOCAB, self.width // BLOCK, BLOCK_BYTES))
        blocks[:, :, :2] = np.float16(STDEV / STEPS).reshape(1).view(np.uint8)
        blocks[:, 0, :2] = np.float16(-constant / 8).reshape(1).view(np.uint8)
        blocks[:, 0, 2:] = 0x88
        blocks[:, 0, 2] = 0x80
        self.writer.add_tensor("token_embd.weight", blocks.reshape(VOCAB, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def finish(self, head=True, norm="output_norm", constant=None):
        if constant is None:
            self.matrix("token_embd", VOCAB, self.width)
        else:
            self.embeddings(constant)
        self.norms("", **{norm: self.width})
        if head:
            self.matrix("output", VOCAB, self.width, first=None if constant is None else ZERO)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def qwen35moe(path, n_layer=4):
    """Qwen3.6-35B-A3B: three layers with a gated delta rule, then one with attention; 40 layers."""
    n_key_heads, n_value_heads, d_state = 16, 32, 128
    inner, conv = n_value_heads * d_state, (n_value_heads + 2 * n_key_heads) * d_state
    m = Model(path, "qwen35moe", n_layer, 2048, attention__head_count=16, attention__head_count_kv=2,
              attention__key_length=256, attention__value_length=256, attention__layer_norm_rms_epsilon=1e-6,
              rope__dimension_count=64, rope__dimension_sections=[11, 11, 10, 0], rope__freq_base=1e7,
              ssm__conv_kernel=4, ssm__state_size=d_state, ssm__inner_size=inner, ssm__time_step_rank=n_value_heads,
              ssm__group_count=n_key_heads, full_attention_interval=4, feed_forward_length=512, expert_count=256,
              expert_used_count=8, expert_feed_forward_length=512, expert_shared_feed_forward_length=512)
    for i in range(n_layer):
        blk = f"blk.{i}"
        m.norms(f"{blk}.", attn_norm=2048, post_attention_norm=2048)
        if i % 4 == 3:
            m.attention(blk, 2 * 16 * 256, 2 * 256, width_of_heads=16 * 256)
            m.norms(f"{blk}.", attn_q_norm=256, attn_k_norm=256)
        else:
            m.matrix(f"{blk}.attn_qkv", conv, 2048)
            m.matrix(f"{blk}.attn_gate", inner, 2048)
            m.floats(f"{blk}.ssm_conv1d.weight", conv, 4, stdev=0.3)
            m.floats(f"{blk}.ssm_dt.bias", n_value_heads, mean=-4.0, stdev=1.0)
            m.floats(f"{blk}.ssm_a", n_value_heads, mean=-8.0, stdev=2.0)
            m.matrix(f"{blk}.ssm_alpha", n_value_heads, 2048)
            m.matrix(f"{blk}.ssm_beta", n_value_heads, 2048)
            m.norms(f"{blk}.", ssm_norm=d_state)
            m.matrix(f"{blk}.ssm_out", 2048, inner)
        m.experts(blk, 256, 512)
        m.block(blk, 512, "_shexp")
        m.floats(f"{blk}.ffn_gate_inp_shexp.weight", 2048)
    m.finish()


def gemma4(path, n_layer=6):
    """Gemma 4 26B-A4B: five layers with a sliding window, then one with all keys, which are its values too; 30 layers. A
    dense block beside the experts."""
    slides = [i % 6 != 5 for i in range(n_layer)]
    m = Model(path, "gemma4", n_layer, 2816, attention__head_count=16,
              attention__head_count_kv=[8 if sliding else 2 for sliding in slides], attention__key_length=512,
              attention__value_length=512, attention__key_length_swa=256, attention__value_length_swa=256,
              attention__layer_norm_rms_epsilon=1e-6, attention__sliding_window=1024,
              attention__sliding_window_pattern=slides, attention__shared_kv_layers=0,
              embedding_length_per_layer_input=0, final_logit_softcapping=30.0, rope__dimension_count=512,
              rope__dimension_count_swa=256, rope__freq_base=1e6, rope__freq_base_swa=1e4, feed_forward_length=2112,
              expert_count=128, expert_used_count=8, expert_feed_forward_length=704)
    m.writer.add_tensor("rope_freqs.weight", np.float32([1.0] * 64 + [1e30] * 192))
    for i, sliding in enumerate(slides):
        blk, d, n_kv = f"blk.{i}", 256 if sliding else 512, 8 if sliding else 2
        m.norms(f"{blk}.", **dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "pre_ffw_norm_2",
                                            "post_ffw_norm_1", "post_ffw_norm_2"), 2816), attn_q_norm=d, attn_k_norm=d)
        m.attention(blk, 16 * d, n_kv * d, v=sliding)
        m.block(blk, 2112)
        m.experts(blk, 128, 704)
        m.floats(f"{blk}.ffn_gate_inp.scale", 2816, mean=1.0)
        m.floats(f"{blk}.ffn_down_exps.scale", 128, mean=1.0)
        m.floats(f"{blk}.layer_output_scale.weight", 1, mean=1.0)
    m.finish(head=False)


def glm_flash(path, n_layer=5):
    """GLM-4.7-Flash: latent attention; one dense layer, then experts with a bias for their selection; 47 layers."""
    n_head, q_rank, kv_rank, d_nope, d_rope, d_v = 20, 768, 512, 192, 64, 256
    m = Model(path, "deepseek2", n_layer, 2048, attention__head_count=n_head, attention__head_count_kv=1,
              attention__q_lora_rank=q_rank, attention__kv_lora_rank=kv_rank, attention__key_length=kv_rank + d_rope,
              attention__value_length=kv_rank, attention__key_length_mla=d_nope + d_rope, attention__value_length_mla=d_v,
              attention__layer_norm_rms_epsilon=1e-5, rope__dimension_count=d_rope, rope__freq_base=1e6,
              feed_forward_length=10240, leading_dense_block_count=1, expert_count=64, expert_used_count=4,
              expert_shared_count=1, expert_feed_forward_length=1536, expert_weights_scale=1.8, expert_weights_norm=True,
              expert_gating_func=2)
    for i in range(n_layer):
        blk = f"blk.{i}"
        m.norms(f"{blk}.", attn_norm=2048, ffn_norm=2048, attn_q_a_norm=q_rank, attn_kv_a_norm=kv_rank)
        m.matrix(f"{blk}.attn_q_a", q_rank, 2048)
        m.matrix(f"{blk}.attn_q_b", n_head * (d_nope + d_rope), q_rank)
        m.matrix(f"{blk}.attn_kv_a_mqa", kv_rank + d_rope, 2048)
        m.matrix(f"{blk}.attn_k_b", n_head, kv_rank, d_nope)
        m.matrix(f"{blk}.attn_v_b", n_head, d_v, kv_rank)
        m.matrix(f"{blk}.attn_output", 2048, n_head * d_v)
        if i == 0:
            m.block(blk, 10240)
            continue
        m.experts(blk, 64, 1536)
        m.floats(f"{blk}.exp_probs_b.bias", 64)
        m.block(blk, 1536, "_shexp")
    m.finish()


def nemotron_nano(path, pattern="MEMEM*E"):
    """Nemotron 3 Nano 30B-A3B: the first of its 52 layers; M is a Mamba-2 mixer, E experts with a squared ReLU and without
    a gate, * attention. About one in ten neurons is active."""
    n_head, d_head, n_group, d_state = 64, 64, 8, 128
    inner = n_head * d_head
    conv = inner + 2 * n_group * d_state
    m = Model(path, "nemotron_h_moe", len(pattern), 2688, outputs=STDEV / 256, attention__head_count=32,
              attention__head_count_kv=[2 if kind == "*" else 0 for kind in pattern], attention__key_length=128,
              attention__value_length=128, attention__layer_norm_epsilon=1e-5, attention__layer_norm_rms_epsilon=1e-5,
              rope__dimension_count=84, feed_forward_length=[1856 if kind == "E" else 0 for kind in pattern],
              ssm__conv_kernel=4, ssm__state_size=d_state, ssm__inner_size=inner, ssm__time_step_rank=n_head,
              ssm__group_count=n_group, expert_count=128, expert_used_count=6, expert_feed_forward_length=1856,
              expert_shared_feed_forward_length=3712, expert_shared_count=1, expert_weights_norm=True,
              expert_weights_scale=2.5, expert_gating_func=2)
    for i, kind in enumerate(pattern):
        blk = f"blk.{i}"
        m.norms(f"{blk}.", attn_norm=2688)
        if kind == "*":
            m.attention(blk, 32 * 128, 2 * 128)
        elif kind == "E":
            m.experts(blk, 128, 1856, gated=False)
            m.floats(f"{blk}.exp_probs_b.bias", 128)
            m.block(blk, 3712, "_shexp", gated=False)
        else:
            m.matrix(f"{blk}.ssm_in", 2 * inner + 2 * n_group * d_state + n_head, 2688)
            m.floats(f"{blk}.ssm_conv1d.weight", conv, 4, stdev=0.3)
            m.floats(f"{blk}.ssm_conv1d.bias", conv)
            m.floats(f"{blk}.ssm_dt.bias", n_head, mean=-4.0, stdev=1.0)
            m.floats(f"{blk}.ssm_a", n_head, 1, mean=-8.0, stdev=2.0)
            m.floats(f"{blk}.ssm_d", n_head, 1, mean=1.0)
            m.norms(f"{blk}.", ssm_norm=(n_group, inner // n_group))
            m.matrix(f"{blk}.ssm_out", 2688, inner, stdev=m.outputs)
    m.finish(constant=3.0)


def lfm2moe(path, n_layer=8):
    """LFM2-8B-A1B: short convolutions, attention in layers 2 and 6; two dense layers, then experts; 24 layers."""
    attends = [i in (2, 6) for i in range(n_layer)]
    m = Model(path, "lfm2moe", n_layer, 2048, attention__head_count=32,
              attention__head_count_kv=[8 if attention else 0 for attention in attends],
              attention__layer_norm_rms_epsilon=1e-5, rope__freq_base=1e6, feed_forward_length=7168,
              leading_dense_block_count=2, expert_count=32, expert_used_count=4, expert_feed_forward_length=1792,
              expert_weights_norm=True, expert_gating_func=2, shortconv__l_cache=3, vocab_size=VOCAB)
    for i, attention in enumerate(attends):
        blk = f"blk.{i}"
        m.norms(f"{blk}.", attn_norm=2048, ffn_norm=2048)
        if attention:
            m.attention(blk, 2048, 512)
            m.norms(f"{blk}.", attn_q_norm=64, attn_k_norm=64)
        else:
            m.matrix(f"{blk}.shortconv.in_proj", 3 * 2048, 2048)
            m.floats(f"{blk}.shortconv.conv.weight", 2048, 3, stdev=0.3)
            m.matrix(f"{blk}.shortconv.out_proj", 2048, 2048)
        if i < 2:
            m.block(blk, 7168)
        else:
            m.experts(blk, 32, 1792)
            m.floats(f"{blk}.exp_probs_b.bias", 32)
    m.finish(head=False, norm="token_embd_norm")


SHAPES = {"Qwen3.6-35B-A3B": qwen35moe, "Gemma-4-26B-A4B": gemma4, "GLM-4.7-Flash": glm_flash,
          "Nemotron-3-Nano": nemotron_nano, "LFM2-8B-A1B": lfm2moe}

if __name__ == "__main__":
    name, path = sys.argv[1:]
    SHAPES[name](path + ".part")
    os.replace(path + ".part", path)

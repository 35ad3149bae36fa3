"""Tiny random models of Gemma 4: sliding and global layers with different head sizes, and last
layers that share an earlier layer's KV cache.

Tensor names, shapes and keys are those that llama.cpp's converter writes (conversion/gemma.py). In llama.cpp, of
the layers with a KV cache of their own, sliding layers share that of the last but one, global layers that of the last.
"""
import numpy as np

# Small sizes, because the fixtures are committed.
WIDTH = 16
HEADS = 3
D_SLIDING, D_GLOBAL = 8, 16


class Gemma4:
    """One model: `pattern` says for each layer whether it has a sliding window, `n_ff` its neurons. The last `n_shared` layers
    share an earlier layer's KV cache; layers in `k_as_v` have no V matrix."""

    def __init__(self, weights, pattern, n_ff, n_shared=0, k_as_v=(), n_per_layer=0, experts=None):
        self.w, self.pattern, self.n_ff, self.n_shared = weights, pattern, n_ff, n_shared
        self.k_as_v, self.n_per_layer, self.experts = k_as_v, n_per_layer, experts
        self.n_kv = [1 if slides else 3 for slides in pattern]

    def keys(self):
        keys = {
            "context_length": 256, "embedding_length": WIDTH, "block_count": len(self.pattern),
            "feed_forward_length": self.n_ff, "attention.head_count": HEADS, "attention.head_count_kv": self.n_kv,
            "attention.key_length": D_GLOBAL, "attention.value_length": D_GLOBAL,
            "attention.key_length_swa": D_SLIDING, "attention.value_length_swa": D_SLIDING,
            "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 6,
            "attention.sliding_window_pattern": self.pattern, "attention.shared_kv_layers": self.n_shared,
            "embedding_length_per_layer_input": self.n_per_layer, "final_logit_softcapping": 30.0,
            "rope.dimension_count": D_GLOBAL, "rope.dimension_count_swa": D_SLIDING,
            "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
        }
        if self.experts:
            n, n_used, n_ff = self.experts
            keys.update({"expert_count": n, "expert_used_count": n_used, "expert_feed_forward_length": n_ff})
        return keys

    def attention(self, i):
        w, blk = self.w, f"blk.{i}"
        d = D_SLIDING if self.pattern[i] else D_GLOBAL
        w.matrix(f"{blk}.attn_q", d * HEADS, WIDTH)
        w.norm(f"{blk}.attn_q_norm", d)
        if i < len(self.pattern) - self.n_shared:
            w.matrix(f"{blk}.attn_k", d * self.n_kv[i], WIDTH)
            w.norm(f"{blk}.attn_k_norm", d)
            if i not in self.k_as_v:
                w.matrix(f"{blk}.attn_v", d * self.n_kv[i], WIDTH)
        w.matrix(f"{blk}.attn_output", WIDTH, d * HEADS)

    def expert_block(self, i):
        """The first layer has gate and up in one tensor, the others in a tensor each."""
        w, blk, (n, _, n_ff) = self.w, f"blk.{i}", self.experts
        w.matrix(f"{blk}.ffn_gate_inp", n, WIDTH)
        w.put(f"{blk}.ffn_gate_inp.scale", 4 + w.noise(WIDTH))
        for part in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            w.norm(f"{blk}.{part}", WIDTH)
        up = 1.5 * WIDTH**-0.5 * w.noise(n, 2 * n_ff, WIDTH)
        if i == 0:
            w.put(f"{blk}.ffn_gate_up_exps.weight", np.float16(up))
        else:
            w.put(f"{blk}.ffn_gate_exps.weight", np.float16(up[:, :n_ff]))
            w.put(f"{blk}.ffn_up_exps.weight", np.float16(up[:, n_ff:]))
        w.put(f"{blk}.ffn_down_exps.weight", np.float16(1.5 * n_ff**-0.5 * w.noise(n, WIDTH, n_ff)))
        w.put(f"{blk}.ffn_down_exps.scale", 1 + 0.3 * w.noise(n))

    def layer(self, i):
        w, blk = self.w, f"blk.{i}"
        for part in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            w.norm(f"{blk}.{part}", WIDTH)
        self.attention(i)
        w.matrix(f"{blk}.ffn_gate", self.n_ff[i], WIDTH)
        w.matrix(f"{blk}.ffn_up", self.n_ff[i], WIDTH)
        w.matrix(f"{blk}.ffn_down", WIDTH, self.n_ff[i])
        if self.experts:
            self.expert_block(i)
        if self.n_per_layer:
            w.matrix(f"{blk}.inp_gate", self.n_per_layer, WIDTH)
            w.matrix(f"{blk}.proj", WIDTH, self.n_per_layer)
            w.norm(f"{blk}.post_norm", WIDTH)
        w.put(f"{blk}.layer_output_scale.weight", 0.9 + 0.1 * w.noise(1))

    def tensors(self, n_vocab):
        w, n_layer = self.w, len(self.pattern)
        w.matrix("token_embd", n_vocab, WIDTH)
        w.norm("output_norm", WIDTH)
        # RoPE is applied to a quarter of the pairs of a global head.
        n_rotated = D_GLOBAL // 8
        # 1e30 is the converter's value, and thus not rounded.
        w.tensors["rope_freqs.weight"] = np.float32([1.0] * n_rotated + [1e30] * (D_GLOBAL // 2 - n_rotated))
        if self.n_per_layer:
            all_layers = self.n_per_layer * n_layer
            w.put("per_layer_token_embd.weight", np.float16(0.6 * w.noise(n_vocab, all_layers)))
            w.matrix("per_layer_model_proj", all_layers, WIDTH)
            w.norm("per_layer_proj_norm", self.n_per_layer)
        for i in range(n_layer):
            self.layer(i)
        return w


def models(weights):
    """Names and models; `weights` makes an empty set of weights from a seed."""
    sliding, full = True, False
    # Like E2B: the last sliding and the last global layer share the KV cache of an earlier layer of
    # their kind (not the first one), n_ff differs between layers, and every layer has its own token
    # embeddings. With this seed, a KV cache in F16 instead of F32 changes llama.cpp's logits less than with others.
    shared = [sliding, full, sliding, full, sliding, full]
    n_ff = [16, 16, 32, 16, 32, 32]
    yield "gemma4-shared", Gemma4(weights(72, step=1), shared, n_ff, n_shared=2, k_as_v=(3,), n_per_layer=16)
    # Like the 26B-A4B model: layers have experts and a dense block. Like the 31B model: each layer
    # has its own KV cache, and global layers use the keys as values. Not rounded: the test
    # `experts_are_exchanged_whole` needs a router that makes many exchanges, and nine rounded models have too few.
    w = weights(73, rounds=False)
    yield "gemma4-moe", Gemma4(w, [sliding, sliding, full], [32, 16, 16], k_as_v=(2,), experts=(4, 2, 16))

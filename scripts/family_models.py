"""Tiny random models of every family, as their authors' code computes them.

`transformers` has most of them. Bamboo and PLM are not in it: their blocks are written here after their published
model code (PowerInfer/Bamboo's BambooMLP, PLM-Team/PLM's attention, which is DeepSeek-V2's without a low-rank query).
PowerInfer's predictor is written after the formulas of its paper and its graph: score = fc2 . relu(fc1 . p).
"""
import torch
import transformers
from torch import nn

from fixture_file import rounded_weights

VOCAB = 99
WIDTH, NEURONS, LAYERS = 48, 64, 3
RANK, MIN_SCORE = 7, 0.05


class Case:
    """A model, and the facts of its fixture other than the weights."""

    def __init__(self, name, model, predicted=None, activation=None, runs=((64, 21),)):
        self.name, self.model, self.config = name, model, model.config
        # `predicted`: the predictor of each layer. `activation`: only if it differs from the
        # family's default. `runs`: context size and number of tokens of each run.
        self.predicted, self.activation, self.runs = predicted, activation, runs


def stored(w):
    """`w` as the fixture's file stores it: rounded, and exact in F16."""
    return torch.from_numpy(rounded_weights(w.half().numpy()))


def randomize(model, seed):
    """Random weights that give every tensor an effect; matrices are exact in F16."""
    g = torch.Generator().manual_seed(seed)
    # Models of these families add 1 to a stored norm weight.
    offset = any(word in type(model).__name__ for word in ("Gemma", "Nemotron"))
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=g)
        if p.ndim >= 2:
            deviation = 0.6 if "embed" in name or "wte" in name else 1.5 * p.shape[-1] ** -0.5
            p.data = stored(deviation * noise)
        elif name.endswith("bias"):
            p.data = stored(0.3 * noise)
        else:
            p.data = stored(0.3 * noise + (0.0 if offset else 1.0))
    return model.eval()


def build(kind, seed, **settings):
    config = dict(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=NEURONS, num_hidden_layers=LAYERS,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=256, bos_token_id=97, eos_token_id=98,
        pad_token_id=None, tie_word_embeddings=False, attn_implementation="eager",
    )
    config.update(settings)
    config_class, model_class = getattr(transformers, kind + "Config"), None
    for name in (kind.removesuffix("Text") + "ForCausalLM", kind + "ForCausalLM"):
        model_class = model_class or getattr(transformers, name, None)
    model = model_class(config_class(**config))
    model.config._attn_implementation = "eager"
    return randomize(model, seed)


# --- families that transformers does not have -------------------------------------------------------------------


def bamboo(seed):
    """Mistral's shape with ReLU on gate and on up."""
    model = build("Mistral", seed, sliding_window=None, rms_norm_eps=1e-5, num_attention_heads=3, num_key_value_heads=3)
    for layer in model.model.layers:
        mlp = layer.mlp
        mlp.forward = lambda x, m=mlp: m.down_proj(torch.relu(m.gate_proj(x)) * torch.relu(m.up_proj(x)))
    model.config.model_type, model.config.architectures = "bamboo", ["BambooForCausalLM"]
    return model


class PlmConfig(dict):
    """Fields of the published config.json."""

    def __getattr__(self, name):
        return self[name]


class RmsNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def apply_rope(x, base):
    """Applies RoPE to adjacent pairs of x, [heads, tokens, n]; a token's index is its position."""
    n = x.shape[-1]
    freqs = base ** (-torch.arange(0, n, 2).double() / n)
    angles = torch.arange(x.shape[-2]).double()[:, None] * freqs
    sin, cos = angles.sin().float(), angles.cos().float()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class PlmLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        linear = lambda n_in, n_out: nn.Linear(n_in, n_out, bias=False)
        self.config, self.self_attn, self.mlp = c, nn.Module(), nn.Module()
        self.d_nope, self.d_rope, self.d_value = c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
        d_head, n_head = self.d_nope + self.d_rope, c.num_attention_heads
        a = self.self_attn
        a.q_proj = linear(c.hidden_size, n_head * d_head)
        a.kv_a_proj_with_mqa = linear(c.hidden_size, c.kv_lora_rank + self.d_rope)
        a.kv_a_layernorm = RmsNorm(c.kv_lora_rank, c.rms_norm_eps)
        a.kv_b_proj = linear(c.kv_lora_rank, n_head * (self.d_nope + self.d_value))
        a.o_proj = linear(n_head * self.d_value, c.hidden_size)
        self.mlp.up_proj = linear(c.hidden_size, c.intermediate_size)
        self.mlp.down_proj = linear(c.intermediate_size, c.hidden_size)
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def attend(self, x):
        a, c, n = self.self_attn, self.config, x.shape[0]
        heads = lambda y: y.view(n, c.num_attention_heads, -1).transpose(0, 1)
        q = heads(a.q_proj(x))
        latent, k_rope = a.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, self.d_rope], -1)
        kv = heads(a.kv_b_proj(a.kv_a_layernorm(latent)))
        key, value = kv.split([self.d_nope, self.d_value], -1)
        rope = lambda y: apply_rope(y, c.rope_theta)
        q = torch.cat([q[..., : self.d_nope], rope(q[..., self.d_nope :])], -1)
        k_rope = rope(k_rope[None]).expand(c.num_attention_heads, -1, -1)
        scores = q @ torch.cat([key, k_rope], -1).transpose(1, 2) * q.shape[-1] ** -0.5
        hidden = torch.ones(n, n).triu(1).bool()
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return a.o_proj((weights @ value).transpose(0, 1).flatten(1))

    def forward(self, x):
        x = x + self.attend(self.input_layernorm(x))
        h = torch.relu(self.mlp.up_proj(self.post_attention_layernorm(x))) ** 2
        return x + self.mlp.down_proj(h)


class Plm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, self.model = c, nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(PlmLayer(c) for _ in range(c.num_hidden_layers))
        self.model.norm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, ids):
        x = self.model.embed_tokens(ids[0])
        for layer in self.model.layers:
            x = layer(x)
        logits = self.model.norm(x) @ self.model.embed_tokens.weight.T
        return type("Output", (), {"logits": logits[None]})


def plm(seed):
    config = PlmConfig(
        architectures=["PLMForCausalLM"], model_type="plm", vocab_size=VOCAB, hidden_size=WIDTH,
        intermediate_size=NEURONS, num_hidden_layers=LAYERS, num_attention_heads=3, num_key_value_heads=3,
        q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=6, v_head_dim=10, hidden_act="relu2",
        max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=True,
        attention_bias=False, bos_token_id=97, eos_token_id=98,
    )
    return randomize(Plm(config), seed)


# --- PowerInfer's predictor ------------------------------------------------------------------------------------


def predict(model, layers, seed):
    """Gives every layer a predictor. `layers` lists (module whose input it reads, function that masks the neurons).

    Returns [(fc1, fc2)]. Neurons whose score is below MIN_SCORE are masked.
    """
    g = torch.Generator().manual_seed(seed)
    parts = []
    for norm, mask in layers:
        fc1 = stored(torch.randn(RANK, WIDTH, generator=g).mul(WIDTH**-0.5))
        fc2 = stored(torch.randn(NEURONS, RANK, generator=g).mul(0.7))
        seen = {}
        norm.register_forward_pre_hook(lambda _, args, s=seen: s.update(p=args[0]))
        mask_of = lambda s=seen, a=fc1, b=fc2: (torch.relu(s["p"] @ a.T) @ b.T >= MIN_SCORE).float()
        mask(mask_of)
        parts.append((fc1, fc2))
    return parts


def masked_gated(mlp, both):
    """Masks a gated block with ReLU on the gate, or on gate and up if `both`."""

    def put(mask_of):
        def forward(x):
            up = mlp.up_proj(x)
            h = torch.relu(mlp.gate_proj(x)) * (torch.relu(up) if both else up)
            return mlp.down_proj(h * mask_of().view(h.shape))

        mlp.forward = forward

    return put


def masked_act(owner, name):
    """Masks the activation module `owner.name`, which then returns 0 for skipped neurons."""

    class MaskedRelu(nn.Module):
        def __init__(self, mask_of):
            super().__init__()
            self.mask_of = mask_of

        def forward(self, x):
            return torch.relu(x) * self.mask_of().view(x.shape)

    return lambda mask_of: setattr(owner, name, MaskedRelu(mask_of))


# --- all cases -------------------------------------------------------------------------------------------------


def falcon(seed, new, relu=False):
    extra = dict(new_decoder_architecture=True, num_kv_heads=2) if new else dict(multi_query=True)
    names = dict(num_key_value_heads=None, intermediate_size=None)
    model = build(
        "Falcon", seed, parallel_attn=True, alibi=False, bias=False, ffn_hidden_size=NEURONS, layer_norm_epsilon=1e-5,
        activation="relu" if relu else "gelu", tie_word_embeddings=new, num_attention_heads=6 if new else 3,
        **extra, **names,
    )
    return model


def opt(seed):
    return build(
        "OPT", seed, num_key_value_heads=None, intermediate_size=None, ffn_dim=NEURONS, num_attention_heads=3, word_embed_proj_dim=WIDTH, activation_function="relu",
        do_layer_norm_before=True, max_position_embeddings=64, tie_word_embeddings=True, dropout=0.0,
    )


def llama_relu(seed):
    return build("Llama", seed, hidden_act="relu", rms_norm_eps=1e-5)


def gemma3(seed):
    rope = dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
        sliding_attention=dict(rope_type="default", rope_theta=10000.0),
    )
    return build(
        "Gemma3Text", seed, hidden_size=32, intermediate_size=40, num_hidden_layers=7, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, query_pre_attn_scalar=12, sliding_window=6, rms_norm_eps=1e-6,
        hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, rope_parameters=rope,
    )


def phi3(seed):
    g = torch.Generator().manual_seed(seed)
    factors = lambda low: [round(low + v, 3) for v in torch.rand(4, generator=g).tolist()]
    rope = dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=factors(1.0), long_factor=factors(2.0),
        original_max_position_embeddings=16, factor=4.0,
    )
    return build(
        "Phi3", seed, max_position_embeddings=64, original_max_position_embeddings=16, rope_parameters=rope,
        sliding_window=9, rms_norm_eps=1e-5, hidden_act="silu",
    )


def sparse(name, model, seed):
    """Adds a predictor to each layer, for PowerInfer's container; returns the predictors."""
    if name == "opt":
        places = [(layer.final_layer_norm, masked_act(layer, "activation_fn")) for layer in model.model.decoder.layers]
    elif name.startswith("falcon"):
        norm = lambda layer: layer.ln_attn if hasattr(layer, "ln_attn") else layer.input_layernorm
        places = [(norm(layer), masked_act(layer.mlp, "act")) for layer in model.transformer.h]
    else:
        both = name == "bamboo"
        places = [
            (layer.post_attention_layernorm, masked_gated(layer.mlp, both)) for layer in model.model.layers
        ]
    return predict(model, places, seed)


def cases():
    """Yields every fixture."""
    yield Case("llama-relu", llama_relu(1), activation="relu")
    yield Case("bamboo", bamboo(2))
    yield Case("falcon-7b", falcon(3, new=False))
    yield Case("falcon-relu", falcon(5, new=True, relu=True), activation="relu")
    yield Case("opt", opt(6))
    for name, seed, make in [
        ("llama", 11, llama_relu), ("bamboo", 12, bamboo), ("opt", 13, opt),
        ("falcon-7b", 14, lambda seed: falcon(seed, new=False, relu=True)),
        ("falcon-40b", 15, lambda seed: falcon(seed, new=True, relu=True)),
    ]:
        model = make(seed)
        yield Case(name + "-pwri", model, predicted=sparse(name, model, seed))
    yield Case("arcee", build("Arcee", 21, hidden_act="relu2", rms_norm_eps=1e-5, num_attention_heads=4))
    yield Case(
        "nemotron",
        build("Nemotron", 22, hidden_act="relu2", norm_eps=1e-5, head_dim=8, rope_parameters=dict(
            rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5), partial_rotary_factor=0.5),
    )
    yield Case("jais2", build("Jais2", 23, head_dim=8, layer_norm_eps=1e-5))
    yield Case("plm", plm(24))
    yield Case("qwen2", build("Qwen2", 31, rms_norm_eps=1e-6, tie_word_embeddings=True))
    yield Case("qwen3", build("Qwen3", 32, rms_norm_eps=1e-6, head_dim=12))
    # One run with a context beyond the original one, and one within it.
    yield Case("phi3", phi3(33), runs=((64, 21), (16, 15)))
    gemma = dict(hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, tie_word_embeddings=True)
    yield Case("gemma", build("Gemma", 34, head_dim=12, hidden_act="gelu_pytorch_tanh", **gemma))
    yield Case(
        "gemma2",
        build("Gemma2", 35, head_dim=12, query_pre_attn_scalar=12, sliding_window=5, attn_logit_softcapping=2.0,
              final_logit_softcapping=12.0, **gemma),
    )
    yield Case("gemma3", gemma3(36))

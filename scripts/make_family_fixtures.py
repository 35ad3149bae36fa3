#!/usr/bin/env python3
"""Makes tests/families/*.gguf and *.json: tiny random models, token ids and the logits that PyTorch computes of them.

    python3 -m venv VENV && VENV/bin/pip install torch transformers safetensors tokenizers gguf
    VENV/bin/python scripts/make_family_fixtures.py [--only NAME] [--converter BINARY] [--keep DIR]

Every model is written as a Hugging Face folder first. With --converter that folder is converted by `BINARY convert`,
as those of the repository are; without, by the few lines below, which use the names of the `gguf` package and give the
same bytes of weights. A model with a predictor becomes a file in PowerInfer's container. Which code the logits come
from is said in family_models.py.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import family_models

OUT = Path(__file__).resolve().parent.parent / "tests/families"
# Byte-level: the printable characters, space, newline, one merged token, and two special ones.
CHARACTERS = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"]
TOKENS = CHARACTERS + ["\u0120t", "<s>", "</s>"]
MERGES = [("\u0120", "t")]
OPT_NAMES = {
    "decoder.embed_tokens": "token_embd", "decoder.embed_positions": "position_embd",
    "decoder.final_layer_norm": "output_norm", "self_attn_layer_norm": "attn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
    "final_layer_norm": "ffn_norm", "fc1": "ffn_up", "fc2": "ffn_down",
}


def write_folder(folder, case):
    """The model as its authors would share it."""
    config, model = case.config, case.model
    state = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    settings = config if isinstance(config, dict) else config.to_dict()
    settings = {"architectures": [type(model).__name__], **{k: v for k, v in settings.items() if v is not None}}
    (folder / "config.json").write_text(json.dumps(settings, default=str))
    vocabulary = {token: i for i, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    if case.predicted:
        predictor = folder / "predictor"
        predictor.mkdir(exist_ok=True)
        for i, (fc1, fc2) in enumerate(case.predicted):
            torch.save({"fc1.weight": fc1.half(), "fc2.weight": fc2.half()}, predictor / f"model_{i}.pt")
        (predictor / "config.json").write_text(json.dumps({"sparse_threshold": family_models.LEAST}))


# --- the stand-in for a converter ------------------------------------------------------------------------------


def family(case):
    return {"gemma3_text": "gemma3"}.get(case.config.model_type, case.config.model_type)


def setting(case, *names, default=None):
    for name in names:
        value = getattr(case.config, name, None) if not isinstance(case.config, dict) else case.config.get(name)
        if value is not None:
            return value
    return default


def rope_of(case, kind="full_attention"):
    rope = setting(case, "rope_parameters", "rope_scaling", default={})
    return rope.get(kind, rope)


def write_keys(writer, case):
    arch = family(case)
    heads = setting(case, "num_attention_heads")
    kv = setting(case, "num_kv_heads", "num_key_value_heads", default=heads)
    if arch == "falcon" and not case.config.new_decoder_architecture:
        kv = 1
    width = setting(case, "hidden_size")
    writer.add_name("random")
    writer.add_context_length(setting(case, "max_position_embeddings", default=256))
    writer.add_embedding_length(width)
    writer.add_block_count(setting(case, "num_hidden_layers"))
    writer.add_feed_forward_length(setting(case, "ffn_hidden_size", "ffn_dim", "intermediate_size"))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    eps = setting(case, "rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    if arch in ("falcon", "nemotron", "jais2"):
        writer.add_layer_norm_eps(eps)
    elif arch != "opt":
        writer.add_layer_norm_rms_eps(eps)
    d_head = setting(case, "head_dim", default=width // heads)
    if arch == "plm":
        d_head = case.config.qk_nope_head_dim + case.config.qk_rope_head_dim
        writer.add_kv_lora_rank(case.config.kv_lora_rank)
        writer.add_value_length(case.config.v_head_dim)
        writer.add_rope_dimension_count(case.config.qk_rope_head_dim)
        writer.add_key_length(d_head)
    elif arch != "opt":
        rope = rope_of(case)
        writer.add_rope_dimension_count(int(d_head * rope.get("partial_rotary_factor", 1.0)))
        writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
        if d_head != width // heads or arch.startswith("gemma"):
            writer.add_key_length(d_head)
            writer.add_value_length(d_head)
        if rope.get("rope_type") == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        if rope.get("rope_type") == "longrope":
            orig = rope["original_max_position_embeddings"]
            scale = case.config.max_position_embeddings / orig
            writer.add_rope_scaling_orig_ctx_len(orig)
            writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(orig))))
    if arch in ("phi3", "gemma2", "gemma3"):
        writer.add_sliding_window(case.config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(case.config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(case.config.final_logit_softcapping)
    if case.activation:
        writer.add_string(f"{arch}.hidden_activation", case.activation)
    if case.predicted:
        writer.add_float32("powerinfer.sparse_threshold", family_models.LEAST)
    write_vocabulary(writer)


def write_vocabulary(writer):
    special = [gguf.TokenType.CONTROL] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 2) + special)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(97)
    writer.add_eos_token_id(98)
    writer.add_add_bos_token(False)


def neighbours(w, n_head):
    """Rows of a rotary matrix from halves to neighbours."""
    return w.reshape(n_head, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def converted(case, name, w):
    """A tensor as GGUF has it."""
    arch, config = family(case), case.config
    if name.endswith("norm.weight") and (arch.startswith("gemma") or arch == "nemotron"):
        return w + 1
    if arch in ("llama", "bamboo", "arcee") and name.split(".")[-2] in ("q_proj", "k_proj"):
        return neighbours(w, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
    if arch == "falcon" and "query_key_value" in name:
        n_head = config.num_attention_heads
        kv = config.num_kv_heads if config.new_decoder_architecture else 1
        groups = w.reshape(kv, n_head // kv + 2, -1, w.shape[-1])
        parts = [groups[:, :-2], groups[:, -2:-1], groups[:, -1:]]
        return np.concatenate([part.reshape(-1, w.shape[-1]) for part in parts])
    return w


def gguf_name(case, names, name):
    arch = family(case)
    if arch == "opt":
        stem, kind = name.removeprefix("model.").rsplit(".", 1)
        layer = ""
        if stem.startswith("decoder.layers."):
            _, _, number, stem = stem.split(".", 3)
            layer = f"blk.{number}."
        return f"{layer}{OPT_NAMES[stem]}.{kind}"
    return names.get_name(name, try_suffixes=(".weight", ".bias"))


def stand_in(path, case):
    arch = family(case)
    writer = gguf.GGUFWriter(path, arch)
    write_keys(writer, case)
    known = {"bamboo": "llama", "opt": "llama"}.get(arch, arch)
    by_name = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_name[known], case.config.num_hidden_layers)
    for name, p in case.model.named_parameters():
        w = converted(case, name, p.detach().numpy())
        to = gguf_name(case, names, name)
        if case.predicted and ".ffn_down." in to:
            to = to.replace("ffn_down", "ffn_down_t")
            w = w.T if w.ndim == 2 else w
        writer.add_tensor(to, np.ascontiguousarray(w, dtype=np.float16 if w.ndim == 2 else np.float32))
    for i, pair in enumerate(case.predicted or []):
        for part, w in zip(["fc1", "fc2"], pair):
            writer.add_tensor(f"blk.{i}.{part}.weight", w.numpy().astype(np.float16))
    if arch == "phi3":
        for part in ["long", "short"]:
            factors = np.array(rope_of(case)[f"{part}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{part}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if case.predicted:
        with open(path, "r+b") as file:
            file.write(b"PWRI")


def convert(binary, folder, path, case):
    path.unlink(missing_ok=True)
    command = [binary, "convert", folder, "-o", path]
    if case.predicted:
        command[3:3] = [folder / "predictor"]
        command += ["--container", "pwri"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names that begin so")
    parser.add_argument("--converter", type=Path, help="thermocline's binary")
    parser.add_argument("--keep", type=Path, help="where the Hugging Face folders stay")
    parser.add_argument("--out", type=Path, default=OUT, help="where fixtures go, if not to tests/families")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    for case in family_models.cases():
        if args.only and not case.name.startswith(args.only):
            continue
        path = args.out / f"{case.name}.gguf"
        with tempfile.TemporaryDirectory() as temporary:
            # The model is called as its folder is, and llama.cpp expects the tokens of Phi 3 where it reads that name.
            folder = (args.keep or Path(temporary)) / case.name / "random"
            folder.mkdir(parents=True, exist_ok=True)
            write_folder(folder, case)
            if args.converter:
                convert(args.converter, folder, path, case)
            else:
                stand_in(path, case)
        runs = []
        for n_ctx, n_tokens in case.runs:
            ids = torch.randint(0, len(CHARACTERS), (n_tokens,), generator=torch.Generator().manual_seed(n_tokens))
            with torch.no_grad():
                logits = case.model(ids[None]).logits[0]
            rows = [[float(f"{v:.7g}") for v in row] for row in logits.tolist()]
            runs.append({"n_ctx": n_ctx, "ids": ids.tolist(), "logits": rows})
        text = json.dumps({"activation": case.activation, "runs": runs}, separators=(",", ":"))
        path.with_suffix(".json").write_text(text + "\n")
        print(f"{case.name}: {path.stat().st_size} bytes, logits from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    main()

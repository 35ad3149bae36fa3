"""Converts tiny random models of every family that `transformers` has, and compares logits with llama.cpp's.

  python scripts/check_conversion.py --binary target/release/thermocline [--only qwen2 ...] [--keep DIR] [--own]

Needs torch, transformers, safetensors, tokenizers, gguf and llama-cpp-python. A family that the installed llama.cpp
cannot load is said and counts as no failure. `--own` also runs the file in the engine under test, which fails where it
refuses the file or writes another text than PyTorch; without llama-cpp-python that is the check.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers as T
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
N_VOCAB = 512
SHAPE = dict(vocab_size=N_VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=None)
EXPERTS = dict(num_experts_per_tok=2)


def configs():
    """Name, class of the settings, settings, how it is saved."""
    s = SHAPE
    yield "llama", "Llama", s
    yield "llama-tied-bias", "Llama", {**s, "tie_word_embeddings": True, "attention_bias": True}
    yield "llama3-rope", "Llama", {**s, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 500000.0}, "rope_theta": 500000.0}
    yield "llama-linear", "Llama", {**s, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}
    for name, more in (("yarn", {}), ("yarn-attention", {"attention_factor": 2.0}),
                       ("yarn-mscale", {"mscale": 3.0, "mscale_all_dim": 0.5})):
        yield "llama-" + name, "Llama", {**s, "rope_theta": 10000.0, "rope_scaling": {**yarn, **more}}
    yield "llama-gelu", "Llama", {**s, "hidden_act": "gelu"}
    yield "mistral", "Mistral", {**s, "sliding_window": None, "head_dim": 32}
    yield "mixtral", "Mixtral", {**s, **EXPERTS, "num_local_experts": 4, "sliding_window": None}
    yield "arcee", "Arcee", s
    yield "falcon-7b", "Falcon", dict(vocab_size=N_VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                                      multi_query=True, parallel_attn=True, bias=False, alibi=False,
                                      new_decoder_architecture=False, bos_token_id=0, eos_token_id=1)
    yield "falcon-40b", "Falcon", dict(vocab_size=N_VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=8,
                                       num_kv_heads=2, multi_query=True, parallel_attn=True, bias=False, alibi=False,
                                       new_decoder_architecture=True, bos_token_id=0, eos_token_id=1)
    yield "opt", "OPT", dict(vocab_size=N_VOCAB, hidden_size=64, ffn_dim=96, num_hidden_layers=3,
                             num_attention_heads=4, max_position_embeddings=256, word_embed_proj_dim=64,
                             do_layer_norm_before=True, bos_token_id=0, eos_token_id=1)
    yield "opt-untied", "OPT", dict(vocab_size=N_VOCAB, hidden_size=64, ffn_dim=96, num_hidden_layers=3,
                                    num_attention_heads=4, max_position_embeddings=256, word_embed_proj_dim=64,
                                    do_layer_norm_before=True, bos_token_id=0, eos_token_id=1,
                                    tie_word_embeddings=False)
    yield "nemotron", "Nemotron", {**s, "partial_rotary_factor": 0.5, "hidden_act": "relu2"}
    yield "jais2", "Jais2", s
    yield "qwen2", "Qwen2", s
    yield "qwen3", "Qwen3", {**s, "head_dim": 32}
    yield "qwen3-window", "Qwen3", {**s, "head_dim": 32, "use_sliding_window": True, "sliding_window": 4,
                                    "max_window_layers": 1}
    yield "qwen2moe", "Qwen2Moe", {**s, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 32,
                                   "shared_expert_intermediate_size": 64, "norm_topk_prob": False}
    yield "qwen3moe", "Qwen3Moe", {**s, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16,
                                   "norm_topk_prob": True}
    yield "phi3", "Phi3", {**s, "sliding_window": None, "original_max_position_embeddings": 256}
    yield "phi3-long", "Phi3", {**s, "sliding_window": None, "original_max_position_embeddings": 256,
                            "max_position_embeddings": 512, "rope_scaling": {
        "type": "longrope", "rope_type": "longrope", "rope_theta": 10000.0,
        "long_factor": [1.0 + i / 4 for i in range(8)], "short_factor": [1.0 + i / 8 for i in range(8)]}}
    yield "gemma", "Gemma", {**s, "head_dim": 16}
    yield "gemma2", "Gemma2", {**s, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
    yield "gemma3", "Gemma3Text", {**s, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8,
                                   "num_hidden_layers": 7}
    yield "gpt-oss", "GptOss", {**s, **EXPERTS, "num_local_experts": 4, "head_dim": 16, "sliding_window": 8,
                                "num_hidden_layers": 4}
    yield "gpt-oss-layers", "GptOss", {**s, **EXPERTS, "num_local_experts": 4, "head_dim": 16, "sliding_window": 4,
                                       "layer_types": ["full_attention", "full_attention", "sliding_attention"]}


# What llama.cpp does without: another GELU, windows in this family, other layers with one, another output.
NOT_IN_LLAMA_CPP = ("llama-gelu", "opt-untied", "qwen3-window", "gpt-oss-layers")


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            is_norm = "norm" in name or ".ln_" in name or "ln_f" in name
            if is_norm and name.endswith("weight"):
                p.copy_(p + 0.1 * noise)
            elif p.dim() < 2 or name.endswith("bias"):
                p.copy_(0.1 * noise)
            else:
                p.copy_(noise * (0.5 if "embed" in name else 1.2 / p.shape[-1] ** 0.5))


def tokenizer(folder):
    tk = Tokenizer(models.BPE())
    tk.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tk.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=N_VOCAB - 8, special_tokens=["<|begin|>", "<|end|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    here = os.path.dirname(os.path.abspath(__file__))
    tk.train([os.path.join(here, "..", "assets", "reference", "eval.txt")], trainer)
    tk.save(os.path.join(folder, "tokenizer.json"))
    json.dump({"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": False,
               "chat_template": "{{ messages }}"}, open(os.path.join(folder, "tokenizer_config.json"), "w"))
    return tk


def greedy(model, tk, ids, n, end):
    """The text of the `n` likeliest tokens after `ids`, or up to the end token."""
    with torch.no_grad():
        new = []
        for _ in range(n):
            new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
            if new[-1] == end:
                new.pop()
                break
    return tk.decode(new)


def llama_cpp(path, ids):
    """Logits of the tokens."""
    import llama_cpp
    m = llama_cpp.Llama(path, n_ctx=64, logits_all=True, verbose=False, n_threads=2, n_gpu_layers=0)
    m.eval(ids)
    return np.array(m.scores[:len(ids)])


def own(binary, path, text, n, theirs):
    """A verdict on what the engine under test writes after `text`, where PyTorch writes `theirs`."""
    run = subprocess.run([binary, "run", "-m", path, "-p", text, "-n", str(n), "--temp", "0", "--no-perf",
                          "--no-display-prompt", "-c", "64", "-ctk", "f32", "-ctv", "f32"], capture_output=True)
    if run.returncode:
        return "FAILED in the engine: " + run.stderr.decode(errors="replace").strip().replace("\n", "; ")[:120]
    ours = run.stdout.decode(errors="replace")
    # Bytes that are no text are shown in one way or another.
    plain = lambda t: t.replace("\ufffd", "").strip()  # noqa: E731
    return "same greedy text" if plain(ours) == plain(theirs) else f"FAILED, another text: {ours!r}, PyTorch {theirs!r}"


def check(a, name, kind, settings, folder):
    config_class = getattr(T, kind + "Config", None)
    if config_class is None:
        return "not in transformers " + T.__version__
    model_name = ("Gemma3" if kind == "Gemma3Text" else kind) + "ForCausalLM"
    config = config_class(**settings)
    config._attn_implementation = "eager"
    model = getattr(T, model_name)(config).eval()
    randomise(model, 1)
    hf = os.path.join(folder, name)
    as_pickle = name in ("opt", "falcon-7b")
    model.save_pretrained(hf, safe_serialization=not as_pickle, max_shard_size="200KB")
    if as_pickle and not any(f.endswith(".bin") for f in os.listdir(hf)):
        for f in os.listdir(hf):
            if f.endswith(".safetensors") or f.endswith("index.json"):
                os.remove(os.path.join(hf, f))
        torch.save(model.state_dict(), os.path.join(hf, "pytorch_model.bin"))
    tk = tokenizer(hf)
    text = "Once upon a time, there was a little dog."
    all_ids = tk.encode(text).ids
    ids = all_ids[:24]
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0].float().numpy()
    np.save(os.path.join(hf, "logits.npy"), want)
    json.dump(ids, open(os.path.join(hf, "ids.json"), "w"))
    path = os.path.join(folder, name + ".gguf")
    run = subprocess.run([a.binary, "convert", hf, "-o", path, "--outtype", "f32", "--force",
                          "--model-name", "tiny"], capture_output=True, text=True)
    if run.returncode:
        return "FAILED to convert: " + run.stderr.strip().replace("\n", "; ")
    said = ""
    if a.own:
        said = "; " + own(a.binary, path, text, 16, greedy(model, tk, all_ids, 16, 1))
    if name in NOT_IN_LLAMA_CPP:
        return "llama.cpp does without it" + said
    try:
        have = llama_cpp(path, ids)
    except Exception as e:  # noqa: BLE001, whatever llama.cpp cannot load
        return f"llama.cpp cannot load it ({e})" + said
    have = have[:, :want.shape[1]]
    worst = float(np.abs(have - want).max() / np.abs(want).max())
    same = (have.argmax(1) == want.argmax(1)).mean()
    verdict = "ok" if worst < 5e-3 else "FAILED"
    return f"{verdict}: worst difference {worst:.2e} of the logits' scale, same choice for {same:.0%} of tokens" + said


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--binary", default="target/release/thermocline")
    ap.add_argument("--only", nargs="*")
    ap.add_argument("--keep", help="folder for the models")
    ap.add_argument("--own", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(2)
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = a.keep or scratch
        os.makedirs(folder, exist_ok=True)
        for name, kind, settings in configs():
            if a.only and name not in a.only:
                continue
            try:
                verdict = check(a, name, kind, settings, folder)
            except Exception as e:  # noqa: BLE001, one family's trouble is not the others'
                verdict = f"FAILED in the script: {type(e).__name__}: {e}"
            failed |= "FAILED" in verdict
            print(f"{name:18} {verdict}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

"""Shared by all fixtures of tests/families: the vocabulary in the model file, the files of token ids and logits."""
import json
from pathlib import Path

import gguf
import numpy as np

from byte_planes import pack

OUT = Path(__file__).resolve().parent.parent / "tests/families"
# A byte-level vocabulary: the printable characters, space, newline, one merged token, and two special tokens.
CHARACTERS = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"]
TOKENS = CHARACTERS + ["\u0120t", "<s>", "</s>"]
MERGES = [("\u0120", "t")]


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


def interleave_halves(w, n_head):
    """Reorders the rows of a RoPE matrix from pairs of halves to adjacent pairs."""
    return w.reshape(n_head, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def run_of(n_ctx, ids, logits):
    """A run; `logits` is `[len(ids)][n_vocab]`."""
    return {"n_ctx": n_ctx, "ids": ids, "logits": logits}


def rounded(values, n_bits):
    """`values` as F32, rounded to `n_bits` significant bits."""
    zeros = 24 - n_bits
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + (1 << zeros - 1)) >> zeros << zeros).astype("<u4").view("<f4")


def rounded_weights(w):
    """Random weights for a fixture: `w` as F32 with 3 significant bits, or 8 (BF16's precision) in a vector.

    Random mantissas do not compress: with F16's 11 bits, the files would take twice the space. The reference computes
    with the rounded weights, so its logits are as exact as with any others."""
    w = np.asarray(w)
    return rounded(w, 3 if w.ndim > 1 else 8)


def write_runs(path, runs, **facts):
    """Writes token ids and facts to `path` and the logits of all runs to NAME.logits (F32, little-endian); compresses the
    logits and the model file."""
    # The error of 18 bits is a sixth of what the tests allow, or less.
    np.concatenate([rounded(run["logits"], 18) for run in runs]).tofile(path.with_suffix(".logits"))
    runs = [{"n_ctx": run["n_ctx"], "ids": run["ids"]} for run in runs]
    text = json.dumps({**facts, "runs": runs}, separators=(",", ":"))
    path.write_text(text + "\n")
    for file in [path.with_suffix(".gguf"), path.with_suffix(".logits")]:
        pack(file)

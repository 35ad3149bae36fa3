"""Measures llama.cpp. scripts/compare_llama_cpp starts this program with the Python that has llama-cpp-python.

    PYTHON llama_cpp_peer.py about
    PYTHON llama_cpp_peer.py speed MODEL N_PROMPT N_GEN N_DEPTH THREADS_GEN,THREADS_PROMPT ...
    PYTHON llama_cpp_peer.py perplexity MODEL TEXT N_CTX N_CHUNKS THREADS

Prints one JSON value. A count of 0 skips its test; N_DEPTH tokens are in the context before each test. Weights are
repacked, the KV cache is F16, and speed is measured with flash attention, which llama-bench's default enables on the CPU.
"""
import json
import os
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np


def about():
    """Version, and the CPU features that this build uses."""
    words = llama_cpp.llama_print_system_info().decode().replace("CPU :", "").split("|")
    return {
        "version": llama_cpp.__version__,
        "features": [word.split("=")[0].strip() for word in words if word.strip().endswith("= 1")],
    }


def load(path, n_ctx, threads=1, **options):
    return llama_cpp.Llama(path, n_ctx=n_ctx, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
                           verbose=False, **options)


def decode(model, batches):
    for ids in batches:
        array = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(model.ctx, llama_cpp.llama_batch_get_one(array, len(ids))) != 0:
            raise SystemExit("llama_decode failed")
    llama_cpp.llama_synchronize(model.ctx)


def rate(model, batches, n_depth):
    """Tokens per second after `n_depth` tokens, which stay in the cache. No logits are copied and nothing is sampled, as
    in llama-bench; an untimed run comes first."""
    for _ in range(2):
        if not llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(model.ctx), 0, n_depth, -1):
            raise SystemExit("llama_memory_seq_rm failed")
        begin = time.perf_counter()
        decode(model, batches)
        seconds = time.perf_counter() - begin
    return sum(map(len, batches)) / seconds


def in_batches(ids):
    return [ids[i : i + 512] for i in range(0, len(ids), 512)]


def speed(path, n_prompt, n_gen, n_depth, pairs):
    """Rates for each pair of thread counts. The token ids do not matter: the run is dense."""
    model = load(path, n_depth + n_prompt + n_gen + 8, flash_attn=True)
    ids = [5 + (i * 7919) % (model.n_vocab() - 10) for i in range(n_depth + n_prompt + n_gen)]
    depth, prompt, rest = ids[:n_depth], ids[n_depth : n_depth + n_prompt], ids[n_depth + n_prompt :]
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    llama_cpp.llama_set_n_threads(model.ctx, n_cpus, n_cpus)
    decode(model, in_batches(depth))
    rates = []
    for pair in pairs:
        llama_cpp.llama_set_n_threads(model.ctx, *map(int, pair.split(",")))
        rates.append({
            "pp": rate(model, in_batches(prompt), n_depth) if prompt else None,
            "tg": rate(model, [[i] for i in rest], n_depth) if rest else None,
        })
    return rates


def perplexity(model, text, n_ctx, n_chunks=None):
    """The chunk protocol of llama-perplexity: the perplexity, and the number of predicted tokens."""
    ids = model.tokenize(text.encode(), add_bos=True)
    starts = range(0, len(ids) - n_ctx + 1, n_ctx)[:n_chunks]
    total, count = 0.0, 0
    for start in starts:
        chunk = [model.token_bos()] + ids[start + 1 : start + n_ctx]
        model.reset()
        model.eval(chunk)
        for i in range(n_ctx // 2, n_ctx - 1):
            row = model.scores[i].astype(np.float64)
            row -= row.max()
            total += np.log(np.exp(row).sum()) - row[chunk[i + 1]]
            count += 1
    return float(np.exp(total / count)), count


def main(command, *words):
    if command == "about":
        return about()
    if command == "speed":
        path, n_prompt, n_gen, n_depth, *pairs = words
        return speed(path, int(n_prompt), int(n_gen), int(n_depth), pairs)
    path, text, n_ctx, n_chunks, threads = words
    model = load(path, int(n_ctx), int(threads), logits_all=True)
    value, count = perplexity(model, Path(text).read_text(encoding="utf-8"), int(n_ctx), int(n_chunks))
    return {"ppl": value, "n_predicted": count}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

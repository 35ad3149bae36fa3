#!/usr/bin/env python3
"""Prompt and decode speed of thermocline and llama.cpp on the same file, in turn.

    python3 -m venv VENV && CMAKE_ARGS=-DGGML_NATIVE=ON VENV/bin/pip install llama-cpp-python
    cargo build --release
    VENV/bin/python scripts/compare_llama_cpp.py MODEL.gguf [--rounds 7] [--threads 1,2] [-p 128] [-n 32]

Every run is a process of its own; rounds alternate the engines and the thread counts, so that a machine that
drifts does so for both. Each engine is quoted at its best thread count. Prints medians, the ratio round by round,
and what the weights of a token over the bandwidth measured by `thermocline bench` would allow.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

BINARY = Path(__file__).resolve().parent.parent / "target/release/thermocline"

PEER = """
import ctypes, json, sys, time, llama_cpp
path, threads, n_prompt, n_gen = sys.argv[1], *map(int, sys.argv[2:])
m = llama_cpp.Llama(path, n_ctx=n_prompt + n_gen + 8, n_threads=threads, n_threads_batch=threads,
                    n_batch=512, verbose=False)
ids = [5 + (i * 7919) % (m.n_vocab() - 10) for i in range(n_prompt + n_gen)]
def go(ids):
    # The low-level call: no logits are copied, nothing is sampled, as in llama-bench.
    array = (llama_cpp.llama_token * len(ids))(*ids)
    llama_cpp.llama_decode(m.ctx, llama_cpp.llama_batch_get_one(array, len(ids)))
    llama_cpp.llama_synchronize(m.ctx)
def clear():
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(m.ctx), True)
go(ids[:8]); clear()
t = time.perf_counter(); go(ids[:n_prompt]); pp = n_prompt / (time.perf_counter() - t)
clear()
go(ids[:1])
t = time.perf_counter()
for i in ids[n_prompt:]: go([i])
tg = n_gen / (time.perf_counter() - t)
print(json.dumps({"pp": pp, "tg": tg}))
"""


def run(words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{words[0]}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def ours(args, model, threads):
    rows = run([BINARY, "bench", "-m", model, "-p", args.p, "-n", args.n, "-r", 1, "-t", threads, "-o", "json"])
    pp = next(r for r in rows if r["n_prompt"] and not r["n_gen"])
    tg = next(r for r in rows if r["n_gen"] and not r["n_prompt"])
    return {"pp": pp["avg_ts"], "tg": tg["avg_ts"], "gb_s": tg["read_bandwidth_gb_s"],
            "mb": tg["bytes_per_token"] / 1e6, "density": tg["density"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-model", type=Path, help="the file llama.cpp runs (a dense twin of ours)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("-p", type=int, default=128)
    parser.add_argument("-n", type=int, default=32)
    args = parser.parse_args()
    threads = [int(t) for t in args.threads.split(",")]
    results = {}
    for _ in range(args.rounds):
        for t in threads:
            results.setdefault(("ours", t), []).append(ours(args, args.model, t))
            peer = args.peer_model or args.model
            results.setdefault(("peer", t), []).append(run([sys.executable, "-c", PEER, peer, t, args.p, args.n]))
    median = lambda who, t, test: statistics.median(r[test] for r in results[who, t])
    for test, name in (("tg", f"decode {args.n}"), ("pp", f"prompt {args.p}")):
        best = {who: max(threads, key=lambda t: median(who, t, test)) for who in ("ours", "peer")}
        mine, theirs = results["ours", best["ours"]], results["peer", best["peer"]]
        ratios = sorted(a[test] / b[test] for a, b in zip(mine, theirs))
        print(f"{name}: ours {median('ours', best['ours'], test):.2f} t/s on {best['ours']} threads, "
              f"llama.cpp {median('peer', best['peer'], test):.2f} t/s on {best['peer']}; ratio by round "
              f"{ratios[0]:.2f} / {statistics.median(ratios):.2f} / {ratios[-1]:.2f} (least, median, most)")
        if test == "tg":
            gb_s = statistics.median(r["gb_s"] for r in mine)
            mb = statistics.median(r["mb"] for r in mine)
            share = median("ours", best["ours"], test) * mb / 1e3 / gb_s
            print(f"  {mb:.0f} MB a token at density {mine[0]['density']:.3f}, {gb_s:.1f} GB/s read: "
                  f"the bound is {1e3 * gb_s / mb:.1f} t/s, ours is {share:.2f} of it")


if __name__ == "__main__":
    main()

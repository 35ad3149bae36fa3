#!/usr/bin/env python3
"""Decode, prompt and perplexity of thermocline and llama.cpp on the same GGUF files, in turn.

    cargo build --release
    python3 scripts/compare_llama_cpp.py MODEL.gguf ... [--quick] [--threads 1,2] [--only tg,pp,ppl] [--sparsity off]

llama.cpp comes as llama-cpp-python in a virtual environment (--venv DIR, else one in the user's cache folder), which is
built for this processor when it is not there, or anew with --install. Where the processor has AMX and llama.cpp's code
for it crashes, which one machine of ours did, it is built again without.

Every thread count is tried first, for each engine; each then runs at its best. Rounds alternate the engines, every other
round in the other order, so that a machine that drifts does so for both. Every test comes after an untimed run of itself,
with the same number of tokens for both. Only ratios of one run mean something where memory is shared with neighbours.

Printed in Markdown, as docs/measurements.md has it: medians, ratios by round, density, bytes per token, the bandwidth that
`thermocline bench` measured beside each test, the least time that this allows a token, and how far both are from it.

llama.cpp computes every neuron, and all files of the llama architecture with SiLU. A ReLU file's speed is therefore
compared with its dense run of the same weights, and its perplexity with our own dense run of the file as it is.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import compare_report
import llama_cpp_venv

ROOT = Path(__file__).resolve().parent.parent
PEER = Path(__file__).resolve().parent / "llama_cpp_peer.py"
TESTS = ("tg", "pp", "ppl")
# What thread counts are tried on: tokens of a prompt, tokens decoded.
SWEEP = {"pp": 128, "tg": 16}


class Failed(Exception):
    """A program ended with an error; `code` as subprocess has it."""

    def __init__(self, words, done):
        super().__init__(f"{shlex.join(map(str, words))}: exit {done.returncode}\n{done.stderr[-2000:]}")
        self.code = done.returncode


def run(*words):
    """The JSON value that a program prints."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failed(words, done)
    return json.loads(done.stdout)


class Ours:
    name = "thermocline"

    def __init__(self, args, model):
        self.args, self.model = args, model

    def speed(self, test, threads, n, *flags):
        """The row of `bench`, with the rate as `rate`."""
        counts = ["-p", n, "-n", 0] if test == "pp" else ["-p", 0, "-n", n]
        sparsity = [] if "--sparsity" in flags else ["--sparsity", self.args.sparsity]
        row = run(self.args.binary, "bench", "-m", self.model, *counts, "-r", 1, "-t", threads, "-o", "json", *sparsity,
                  *flags)[0]
        return dict(row, rate=row["avg_ts"])

    def sweep(self, test):
        return {t: self.speed(test, t, SWEEP[test])["rate"] for t in self.args.threads}

    def perplexity(self, threads, *flags):
        flags = flags or ("--sparsity", self.args.sparsity)
        return run(self.args.binary, "perplexity", "-m", self.model, "-f", self.args.text, "-c", self.args.ctx,
                   "--chunks", self.args.chunks, "-t", threads, "--json", *flags)


class Peer:
    name = "llama.cpp"

    def __init__(self, args, model, python):
        self.args, self.model, self.python = args, model, python

    def rates(self, test, threads, n):
        pairs = [f"{t},{t}" for t in threads]
        rows = run(self.python, PEER, "speed", self.model, n if test == "pp" else 0, n if test == "tg" else 0, *pairs)
        return [row[test] for row in rows]

    def speed(self, test, threads, n):
        return {"rate": self.rates(test, [threads], n)[0]}

    def sweep(self, test):
        return dict(zip(self.args.threads, self.rates(test, self.args.threads, SWEEP[test])))

    def perplexity(self, threads):
        return run(self.python, PEER, "perplexity", self.model, self.args.text, self.args.ctx, self.args.chunks, threads)


def say(text):
    print(text, file=sys.stderr, flush=True)


def peer_python(args):
    """The Python with llama.cpp, which is built again without AMX where its code for that crashes."""
    python, built = llama_cpp_venv.ensure(args.venv, args.install)
    try:
        run(python, PEER, "speed", args.peer_model or args.models[0], 64, 2, "1,1")
    except Failed as failure:
        if not (built and llama_cpp_venv.crashed(failure.code) and llama_cpp_venv.has_amx()):
            raise
        say("llama.cpp crashed, and this processor has AMX")
        llama_cpp_venv.install(args.venv, amx=False)
    return python


def best_threads(engine, test, sweeps):
    """The thread count with the best rate of `sweeps` tries."""
    if len(engine.args.threads) == 1:
        return engine.args.threads[0]
    tries = [engine.sweep(test) for _ in range(sweeps)]
    rates = {t: max(rates[t] for rates in tries) for t in engine.args.threads}
    say(f"{engine.name}, {test}: " + ", ".join(f"{t} threads {rate:.2f} t/s" for t, rate in rates.items()))
    return max(rates, key=rates.get)


def in_turn(rounds, ours, theirs):
    """What both gave, round by round; every other round begins with theirs."""
    results = []
    for i in range(rounds):
        say(f"round {i + 1} of {rounds}")
        if i % 2 == 0:
            mine = ours()
            results.append((mine, theirs()))
        else:
            peer = theirs()
            results.append((ours(), peer))
    return results


def measure(args, model, python):
    """All that the report needs of one file."""
    ours, peer = Ours(args, model), Peer(args, args.peer_model or model, python)
    info = run(args.binary, "info", "-m", model, "--json")
    # Whether llama.cpp computes what the file means.
    same = info["model"].get("activation", "silu") == "silu" and args.peer_model is None
    found = {"info": info, "args": args, "same": same, "tests": {}, "threads": {}}
    for test in args.only:
        kind = "pp" if test == "ppl" else test
        if kind not in found["threads"]:
            found["threads"][kind] = {e.name: best_threads(e, kind, 1 if args.quick else 2) for e in (ours, peer)}
        mine, theirs = found["threads"][kind].values()
        say(f"{model.name}: {test}")
        if test == "ppl":
            as_it_is = ("--sparsity", "off", "--no-repack")
            other = (lambda: peer.perplexity(theirs)) if same else (lambda: ours.perplexity(mine, *as_it_is))
            found["tests"][test] = in_turn(args.rounds, lambda: ours.perplexity(mine), other)
        else:
            n = args.p if test == "pp" else args.n
            found["tests"][test] = in_turn(args.rounds, lambda: ours.speed(test, mine, n),
                                           lambda: peer.speed(test, theirs, n))
    if "tg" in args.only:
        # What a run that skips nothing reads: llama.cpp's bytes.
        threads = found["threads"]["tg"][ours.name]
        found["dense"] = ours.speed("tg", threads, args.n, "--sparsity", "off", "--no-warmup")
    return found


def tests_of(text):
    wanted = text.split(",")
    if not set(wanted) <= set(TESTS):
        raise argparse.ArgumentTypeError(f"these are known: {', '.join(TESTS)}")
    return [test for test in TESTS if test in wanted]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--peer-model", type=Path, help="a dense twin of the same shapes, where llama.cpp cannot load the file")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/thermocline")
    parser.add_argument("--venv", type=Path, default=llama_cpp_venv.default_folder())
    parser.add_argument("--install", action="store_true", help="build llama-cpp-python anew")
    parser.add_argument("--rounds", type=int, help="default 7, or 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and tries: no result, a look")
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--threads", type=lambda t: [int(n) for n in t.split(",")], default=list(range(1, n_cpus + 1)),
                        metavar="LIST", help="thread counts to try; default 1 to the CPUs of this process")
    parser.add_argument("--only", type=tests_of, default=list(TESTS), metavar="TESTS", help="some of tg,pp,ppl")
    parser.add_argument("--sparsity", default="predicted", help="ours: predicted, exact or off")
    parser.add_argument("-p", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("-n", type=int, default=64, help="tokens decoded")
    parser.add_argument("--text", type=Path, default=ROOT / "assets/reference/eval.txt")
    parser.add_argument("--ctx", type=int, default=512, help="context of perplexity")
    parser.add_argument("--chunks", type=int, default=2, help="chunks of perplexity")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 7)
    return args


def main():
    args = arguments()
    try:
        python = peer_python(args)
        about = run(python, PEER, "about")
        for model in args.models:
            print(compare_report.report(measure(args, model, python), about), flush=True)
    except Failed as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()

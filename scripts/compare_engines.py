"""The two engines of scripts/compare_llama_cpp as programs: their speeds and perplexities, run in turn."""
import json
import shlex
import subprocess
import sys
from pathlib import Path

import llama_cpp_venv

PEER = Path(__file__).resolve().parent / "llama_cpp_peer.py"
# Number of tokens in the runs that choose the thread counts, for prefill and decode.
SWEEP = {"pp": 128, "tg": 16}


class CommandError(Exception):
    """A program ended with an error; `code` is its exit code, or minus the signal that ended it."""

    def __init__(self, words, result):
        super().__init__(f"{shlex.join(map(str, words))}: exit {result.returncode}\n{result.stderr[-2000:]}")
        self.code = result.returncode


def run(*words):
    """Runs a program; returns the JSON value that it prints."""
    result = subprocess.run([str(w) for w in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise CommandError(words, result)
    return json.loads(result.stdout)


class Ours:
    name = "thermocline"

    def __init__(self, args, model):
        self.args, self.model = args, model

    def speed(self, test, threads, n, *flags, depth=0):
        """The row of `bench`, with the rate as `rate`; `depth` is the number of tokens in the context before the test."""
        counts = ["-p", n, "-n", 0] if test == "pp" else ["-p", 0, "-n", n]
        sparsity = [] if "--sparsity" in flags else ["--sparsity", self.args.sparsity]
        row = run(self.args.binary, "bench", "-m", self.model, *counts, "-r", 1, "-d", depth, "-t", threads, "-o", "json",
                  *sparsity, *flags)[0]
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

    def rates(self, test, threads, n, depth=0):
        pairs = [f"{t},{t}" for t in threads]
        rows = run(self.python, PEER, "speed", self.model, n if test == "pp" else 0, n if test == "tg" else 0, depth,
                   *pairs)
        return [row[test] for row in rows]

    def speed(self, test, threads, n, depth=0):
        return {"rate": self.rates(test, [threads], n, depth)[0]}

    def sweep(self, test):
        return dict(zip(self.args.threads, self.rates(test, self.args.threads, SWEEP[test])))

    def perplexity(self, threads):
        return run(self.python, PEER, "perplexity", self.model, self.args.text, self.args.ctx, self.args.chunks, threads)


def say(text):
    print(text, file=sys.stderr, flush=True)


def peer_python(args, model):
    """The Python with llama.cpp, tried on `model`, and rebuilt without AMX if its AMX code crashes."""
    if args.archs_build:
        return llama_cpp_venv.use_archs_build(args.archs_build)
    python, built = llama_cpp_venv.ensure(args.venv, args.install)
    try:
        run(python, PEER, "speed", model, 64, 2, 0, "1,1")
    except CommandError as failure:
        if not (built and llama_cpp_venv.crashed(failure.code) and llama_cpp_venv.has_amx()):
            raise
        say("llama.cpp crashed, and this processor has AMX")
        llama_cpp_venv.install(args.venv, amx=False)
    return python


def in_turn(rounds, ours, theirs):
    """Results of both, round by round; every other round begins with llama.cpp."""
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

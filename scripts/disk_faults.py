"""Random faults of the reads of weights on disk, for inject_faults --from-disk."""

import os
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path


def resident(pid):
    """Anonymous memory of a process in MiB; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0)
    except OSError:
        return 0


def generate(args, seed, budget, **variables):
    """Text of a run, its messages, and samples of its memory."""
    words = ["run", "-m", args.from_disk, "-p", "Once upon a time", "-n", str(args.tokens), "-c", str(args.tokens + 64)]
    words += ["-no-cnv", "--ignore-eos", "--temp", "0.8", "--seed", str(seed), "--json", "--no-auto-profile"]
    words += ["--backend", "cpu"] + (["--ram-budget", budget] if budget else [])
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as messages:
        running = subprocess.Popen([args.program, *words], stdout=out, stderr=messages, env={**os.environ, **variables})
        samples = []
        while running.poll() is None:
            time.sleep(0.5)
            samples.append(resident(running.pid))
        out.seek(0), messages.seek(0)
        assert running.returncode == 0, f"exit {running.returncode}: {messages.read()[-2000:]}"
        return out.read(), messages.read(), samples[:-1]


def faults_from_disk(args, library, folder):
    """Generates with random faults of reads until the time is over."""
    whole, sums, n, wrong = {}, Counter(), 0, []
    spent = 0.0
    while spent < 60 * args.minutes:
        seed = n % 2
        if seed not in whole:
            whole[seed] = generate(args, seed, None)[0]
        counts, begin = folder / "counts", time.monotonic()
        faulty = {"LD_PRELOAD": str(library), "FAULT_RANDOM": str(n), "FAULT_RANDOM_COUNTS": str(counts)}
        text, messages, samples = generate(args, seed, args.ram_budget, **faulty)
        spent, n = spent + time.monotonic() - begin, n + 1
        sums.update(dict(zip(("reads", "EIO", "EINTR", "short", "late"), map(int, counts.read_text().split()))))
        quarter = len(samples) // 4
        middle, end = max(samples[quarter : 2 * quarter] or [0]), max(samples[-quarter:] or [0])
        if text != whole[seed]:
            wrong.append(f"run {n}: the text differs from that in memory")
        if "panicked" in messages:
            wrong.append(f"run {n}: {messages[-300:]}")
        if end > middle + 8:
            wrong.append(f"run {n}: memory grew from {middle:.0f} to {end:.0f} MiB")
        print(f"run {n}: {len(text)} bytes of text, {middle:.0f} MiB after a quarter, {end:.0f} MiB at the end", flush=True)
    print(f"{spent / 60:.1f} minutes with faults: " + ", ".join(f"{n} {what}" for what, n in sums.items()))
    print("\n".join(wrong) or "every text is that of the model in memory")
    return 1 if wrong else 0

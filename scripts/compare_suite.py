"""The suite of scripts/compare_llama_cpp: rows of work with their aims, the synthetic models they need, and one table.

Both engines run each row with the same number of threads. llama.cpp computes every neuron: a row with a sparse model
runs a dense model of the same shapes on llama.cpp.
"""
import argparse
import datetime
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import compare_report
import llama_cpp_venv
from compare_engines import CommandError, Ours, PEER, Peer, in_turn, peer_python, run, say

GB = 1e9
# Disk that stays free after a model and its repacked copy are written.
SPARE_DISK = 2 * GB
# A row needs this many times its largest file in memory: the file in the page cache and the engine's repacked copy, with a
# tenth for all else. With less, the file would be read from the disk in every round.
MEMORY_OF_FILE = 2.2


@dataclass(frozen=True)
class Model:
    file: str
    spec: str  # of `bench --synthetic`, or a name of shape_models.py
    size: float  # bytes, about
    has_shape: bool = False  # of a published model
    chosen: float = 0.0  # share of neurons that routers choose, in a model whose activation has zeros


Q4_0 = Model("1b-q4_0-silu.gguf", "1b:Q4_0:silu", 0.62 * GB)
Q4_K = Model("1b-q4_k-silu.gguf", "1b:Q4_K:silu", 0.62 * GB)
Q8_0 = Model("1b-q8_0-silu.gguf", "1b:Q8_0:silu", 1.17 * GB)
F16 = Model("1b-f16-silu.gguf", "1b:F16:silu", 2.21 * GB)
DENSE_7B = Model("7b-q4_0-silu.gguf", "7b:Q4_0:silu", 3.79 * GB)
RELU_7B = Model("7b-q4_0-relu.gguf", "7b:Q4_0:relu", 3.79 * GB)
PWRI_7B = Model("7b-q4_0-relu.pwri.gguf", "7b:Q4_0:relu:pwri", 4.4 * GB)
# The width and experts of Qwen3-30B-A3B, with half of its experts and a quarter of its layers.
EXPERTS = Model("experts-q4_0-silu.gguf", "2048x12x768x32/4*64/8:Q4_0:silu", 2.25 * GB)
# Layers of published models, with the sparsity that is in them: see shape_models.py.
SHAPES = [Model(f"{name}.gguf", name, size * GB, has_shape=True) for name, size in (
    ("Qwen3.6-35B-A3B", 1.9), ("Gemma-4-26B-A4B", 2.8), ("GLM-4.7-Flash", 1.6), ("LFM2-8B-A1B", 1.4))]
# Squared ReLU: 6 of 128 experts, and a shared one that is twice as wide.
NEMOTRON = Model("Nemotron-3-Nano.gguf", "Nemotron-3-Nano", 2.4 * GB, has_shape=True, chosen=(6 + 2) / (128 + 2))


@dataclass(frozen=True)
class Row:
    name: str
    test: str  # "tg" or "pp"
    n: int  # tokens
    model: Model
    aim: float | None  # ratio to llama.cpp
    depth: int = 0
    peer_model: Model | None = None  # if llama.cpp runs another model
    sparsity: str = "off"

    @property
    def id(self):
        return self.name.replace(" ", "-")

    def models(self):
        return [model for model in (self.model, self.peer_model) if model]


ROWS = [
    Row("decode 1B Q4_0", "tg", 64, Q4_0, 1.15),
    Row("decode 7B Q4_0", "tg", 24, DENSE_7B, 1.15),
    Row("decode 1B Q4_K", "tg", 64, Q4_K, 1.15),
    Row("decode 1B Q8_0", "tg", 48, Q8_0, 1.15),
    Row("decode 1B F16", "tg", 32, F16, 1.0),
    Row("decode 1B Q4_0 at depth 4096", "tg", 48, Q4_0, 1.5, depth=4096),
    Row("decode 64 experts Q4_0", "tg", 64, EXPERTS, 1.15),
    Row("prefill 512 64 experts Q4_0", "pp", 512, EXPERTS, None),
    Row("prefill 512 1B Q4_0", "pp", 512, Q4_0, 2.2),
    Row("prefill 512 1B Q8_0", "pp", 512, Q8_0, 2.2),
    Row("prefill 512 1B Q4_K", "pp", 512, Q4_K, 1.8),
    Row("prefill 512 1B F16", "pp", 512, F16, 1.3),
    Row("decode 7B Q4_0 ReLU exact", "tg", 24, RELU_7B, 2.0, peer_model=DENSE_7B, sparsity="exact"),
    Row("decode 7B Q4_0 PWRI predictor", "tg", 24, PWRI_7B, 2.3, peer_model=DENSE_7B, sparsity="predicted"),
    *[Row(f"{work} {model.spec}", test, n, model, 1.0, sparsity="exact")
      for model in SHAPES for work, test, n in (("decode", "tg", 48), ("prefill 512", "pp", 512))],
    Row("decode Nemotron-3-Nano", "tg", 48, NEMOTRON, 1.3, sparsity="exact"),
    Row("prefill 512 Nemotron-3-Nano", "pp", 512, NEMOTRON, 1.0, sparsity="exact"),
]


class SkippedRow(Exception):
    """A row cannot be measured on this machine; the message is the reason."""


# --- models and limits -------------------------------------------------------------------------------------------


def available_memory():
    """Bytes of memory that programs can get, or None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def check_memory(row):
    needed, available = MEMORY_OF_FILE * max(model.size for model in row.models()), available_memory()
    if available is not None and available < needed:
        raise SkippedRow(f"needs {needed / GB:.1f} GB of memory, {available / GB:.1f} GB are available")


def ensure(args, model):
    """The path of the model, which is generated if missing."""
    path = args.models / model.file
    if not path.exists():
        free = shutil.disk_usage(args.models).free
        if free < model.size + SPARE_DISK:
            raise SkippedRow(f"{model.file} needs {(model.size + SPARE_DISK) / GB:.1f} GB of disk in {args.models}, "
                             f"{free / GB:.1f} GB are free; free some, or name another folder with --models")
        say(f"writing {path}")
        if model.has_shape:
            return write_shape(args, model, path)
        # The bandwidth is not needed: a small probe saves time.
        run(args.binary, "bench", "--synthetic", model.spec, "--write", path, "-p", 0, "-n", 1, "-r", 1, "--no-warmup",
            "--probe-size", 1, "-o", "json")
    return path


def write_shape(args, model, path):
    """Writes a model of shape_models.py."""
    python = (llama_cpp_venv.use_archs_build(args.archs_build) if args.archs_build
              else llama_cpp_venv.ensure(args.venv, False)[0])
    if subprocess.run([python, "-c", "import gguf"], capture_output=True).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "gguf"], stdout=sys.stderr, check=True)
    subprocess.run([python, Path(__file__).with_name("shape_models.py"), model.spec, path], check=True)
    return path


# --- measuring ---------------------------------------------------------------------------------------------------


def measure(args, python, row, threads):
    """Rounds of a row with this thread count, and the bytes that llama.cpp reads per token."""
    path, peer_path = (ensure(args, model) for model in (row.model, row.peer_model or row.model))
    ours = Ours(argparse.Namespace(**{**vars(args), "sparsity": row.sparsity}), path)
    peer = Peer(args, peer_path, python)
    say(f"{row.name}, {'1 thread' if threads == 1 else f'{threads} threads'}")
    rounds = in_turn(args.rounds, lambda: ours.speed(row.test, threads, row.n, depth=row.depth),
                     lambda: peer.speed(row.test, threads, row.n, row.depth))
    peer_bytes = rounds[0][0]["bytes_per_token"]
    if row.peer_model and row.test == "tg":
        dense = Ours(args, peer_path)
        peer_bytes = dense.speed("tg", threads, row.n, "--sparsity", "off", "--no-warmup", depth=row.depth)["bytes_per_token"]
    return rounds, peer_bytes


# --- the table ---------------------------------------------------------------------------------------------------

HEADER = """\
| work | threads | ours, tok/s | llama.cpp | ratio by round: median (min to max) | MB per token | read, GB/s | our share | \
llama.cpp's | aim | |
| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |"""


POWERINFER = """
PowerInfer's README gives 2.08 times the speed of llama.cpp on the CPU alone: Bamboo 7B (dReLU, about 85 % of the neurons
idle), 8 threads of an i9-13900K, the llama.cpp of early 2024, whose products were slower than today's. The rows with a
predictor here have synthetic weights of that size with the activity that the table states, and today's llama.cpp."""


def number(value):
    """A rate with four significant digits at most."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def traffic_cells(rounds, peer_bytes):
    """Bytes per token, read bandwidth, and the shares of it of both engines. Prefill has no bytes per token."""
    read = [mine["read_bandwidth_gb_s"] for mine, _ in rounds]
    if not all(read):
        return ["", "not measured", "", ""]
    if not peer_bytes:
        return ["", f"{median(read):.1f}", "", ""]
    own = median(mine["bytes_per_token"] for mine, _ in rounds)
    shares = [median(1e-9 * mine["bytes_per_token"] * mine["rate"] / gb_s for (mine, _), gb_s in zip(rounds, read)),
              median(1e-9 * peer_bytes * theirs["rate"] / gb_s for (_, theirs), gb_s in zip(rounds, read))]
    return [f"{own / 1e6:.0f}", f"{median(read):.1f}", *(f"{share:.2f}" for share in shares)]


def table_row(row, threads, rounds, peer_bytes):
    mine, theirs = ([r["rate"] for r in side] for side in zip(*rounds))
    ratios = [m / t for m, t in zip(mine, theirs)]
    density = median(r["density"] if r["density"] is not None else 1.0 for r, _ in rounds)
    name = row.name + (f", {100 * density:.1f} % active" if row.peer_model else "")
    if row.model.chosen:
        name += f", {100 * density / row.model.chosen:.1f} % of the chosen neurons active"
    if row.aim is None:
        aim = ["", "no aim"]
    else:
        aim = [f"{row.aim:.2f}", "met" if median(ratios) >= row.aim else "**missed**"]
    cells = [name, str(threads), number(median(mine)), number(median(theirs)),
             f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", *traffic_cells(rounds, peer_bytes), *aim]
    return f"| {' | '.join(cells)} |"


def facts(args, about):
    models = ", ".join(f"{model.file.removesuffix('.gguf')} = {model.spec}" for model in
                       dict.fromkeys(model for row in rows(args) for model in row.models()))
    unfinished = ", fewer than a result needs" if args.rounds < 7 else ""
    return [
        f"machine   {compare_report.machine(args)}",
        f"models    synthetic weights; thermocline bench --synthetic SPEC --write FILE, or shape_models.py: {models}",
        f"peer      {compare_report.peer(about)}; flash attention on, repacked weights, F16 KV cache",
        f"command   scripts/compare_llama_cpp {shlex.join(compare_report.without_folders(sys.argv[1:]))}",
        f"rounds    {args.rounds}, in turn, each after an untimed run of itself{unfinished}; both engines with the same threads",
    ]


def rows(args):
    return [row for row in ROWS if re.search(args.only_rows, row.id, re.IGNORECASE)]


def main(args):
    """Measures and prints; returns the exit code."""
    wanted, lines, skipped = rows(args), [], []
    if not wanted:
        raise SystemExit(f"no row matches {args.only_rows!r}; the rows are {', '.join(row.id for row in ROWS)}")
    args.models.mkdir(parents=True, exist_ok=True)
    try:
        python = peer_python(args, ensure(args, wanted[0].model))
    except SkippedRow as reason:
        raise SystemExit(f"{wanted[0].name}: {reason}") from None
    about = run(python, PEER, "about")
    for row in wanted:
        for threads in args.threads:
            try:
                check_memory(row)
                lines.append(table_row(row, threads, *measure(args, python, row, threads)))
                say(lines[-1])
            except (SkippedRow, CommandError) as reason:
                skipped.append(f"- {row.name}, threads {threads}: not measured: {' '.join(str(reason).split())}")
                say(skipped[-1])
    title = f"## Suite against llama.cpp on {compare_report.processor()} ({datetime.date.today()}, {compare_report.commit()})"
    notes = [POWERINFER] if any("predictor" in line for line in lines) else []
    print("\n".join([title, "", "```text", *facts(args, about), "```", "", HEADER, *lines, *notes, *([""] + skipped if skipped else [])]))
    return 1 if skipped else 0

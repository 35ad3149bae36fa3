"""Which units of kernels there are (kernels-cuda/UNITS), and tools that pip can bring."""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels-cuda"
# Beside the formats of the files: what a transposed matrix is stored as.
TRANSPOSED = ["transposed_nibbles", "transposed_bytes"]


def weight_formats():
    """Formats that weights are stored in, as the contract's table has them."""
    table = (ROOT / "backends/hal/src/format/mod.rs").read_text().split("formats! {")[1].split("\n}")[0]
    return [name.lower() for name in re.findall(r"^\s*(\w+)\s*=> \w+,.*Some\(", table, re.M)]


def cache_formats():
    return sorted(path.stem for path in (KERNELS / "cache").glob("*.cuh") if path.stem != "cache")


def files():
    """Name and kind of each file; every file there is has to be listed."""
    lines = [line.split() for line in (KERNELS / "UNITS").read_text().splitlines()]
    listed = {words[0]: words[1] for words in lines if words and not words[0].startswith("#")}
    there = {path.stem for path in KERNELS.glob("*.cu")}
    if there != set(listed):
        sys.exit(f"kernels-cuda/UNITS and the files do not agree: {sorted(there ^ set(listed))}")
    return listed


def units(weights=None, caches=None):
    """Unit, file and what is defined for it, for these formats or for all."""
    weights, caches = weights or weight_formats(), caches or cache_formats()
    for file, kind in sorted(files().items()):
        if kind == "plain":
            yield file, file, []
            continue
        variants = {
            "weight": [[("FORMAT", name)] for name in weights],
            "down": [[("FORMAT", name)] for name in weights + TRANSPOSED],
            "half": [[("FORMAT", name)] for name in caches],
            "cache": [[("K_FORMAT", k), ("V_FORMAT", v)] for k in caches for v in caches],
        }
        if kind not in variants:
            sys.exit(f"kernels-cuda/UNITS: {file} has the unknown kind {kind}")
        for names in variants[kind]:
            variant = "_".join(value for _, value in names)
            yield f"{file}.{variant}", file, [f"-D{name}={value}" for name, value in names]


def environment(name, packages):
    """The site-packages of a virtual environment below target/ with exactly these packages, made where it is missing."""
    folder = ROOT / "target" / name
    mark = folder / "packages"
    wanted = "\n".join(packages)
    if not mark.is_file() or mark.read_text() != wanted:
        print(f"installing {' '.join(packages)} into {folder.relative_to(ROOT)}", file=sys.stderr)
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", folder])
        if made.returncode != 0:
            sys.exit("no virtual environment could be made: on Debian, apt-get install python3-venv")
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        mark.write_text(wanted)
    (site,) = folder.glob("lib/python3*/site-packages")
    return site


def workers():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

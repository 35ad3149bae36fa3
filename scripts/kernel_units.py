"""The kernel units (kernels-cuda/*.cu and VARIANTS), and the tools that compile them."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels-cuda"
# AMD's dialect, flags, and files that replace files in KERNELS.
OVERRIDES = ROOT / "kernels-hip"
# Storage formats of transposed matrices, in addition to the file formats.
TRANSPOSED = ["transposed_nibbles", "transposed_bytes"]
DEBIAN = ["clang-19", "lld-19", "llvm-19", "libamdhip64-dev", "rocm-device-libs"]
LIBRARIES = ROOT / "target/rocm-device-libs"
# LLVM IR of an architecture's device library, which contains only the ISA number.
ISA = """target datalayout = "e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7"
target triple = "amdgcn-amd-amdhsa"
@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 {number}, align 4
"""


def weight_formats():
    """Formats that weights are stored in, from the table in backends/hal."""
    table = (ROOT / "backends/hal/src/format/mod.rs").read_text().split("formats! {")[1].split("\n}")[0]
    return [name.lower() for name in re.findall(r"^\s*(\w+)\s*=> \w+,.*Some\(", table, re.M)]


def cache_formats():
    """Formats of the KV cache that kernels are compiled for: files that declare a struct of their name."""
    paths = (KERNELS / "cache").glob("*.cuh")
    return sorted(path.stem for path in paths if re.search(rf"^struct {path.stem}\b", path.read_text(), re.M))


def files():
    """The kind of variants of each kernel file; `plain` for a file that VARIANTS does not list."""
    lines = [line.split() for line in (KERNELS / "VARIANTS").read_text().splitlines()]
    listed = {words[0]: words[1] for words in lines if words and not words[0].startswith("#")}
    existing = {path.stem for path in KERNELS.glob("*.cu")}
    if missing := sorted(set(listed) - existing):
        sys.exit(f"kernels-cuda/VARIANTS lists files that do not exist: {missing}")
    return {name: listed.get(name, "plain") for name in existing}


def units(weights=None, caches=None):
    """Yields each unit's name, its file and its macro definitions, for the given formats or for all."""
    weights, caches = weights or weight_formats(), caches or cache_formats()
    for file, kind in sorted(files().items()):
        if kind == "plain":
            yield file, file, []
            continue
        variants = {
            "weight": [[("FORMAT", name)] for name in weights],
            "down": [[("FORMAT", name)] for name in weights + TRANSPOSED],
            "cache": [[("FORMAT", name)] for name in caches],
        }
        if kind not in variants:
            sys.exit(f"kernels-cuda/VARIANTS: {file} has the unknown kind {kind}")
        for names in variants[kind]:
            variant = "_".join(value for _, value in names)
            yield f"{file}.{variant}", file, [f"-D{name}={value}" for name, value in names]


def environment(name, packages):
    """The site-packages of a virtual environment below target/ with exactly these packages; creates it if necessary."""
    folder = ROOT / "target" / name
    mark = folder / "packages"
    wanted = "\n".join(packages)
    if not mark.is_file() or mark.read_text() != wanted:
        print(f"installing {' '.join(packages)} into {folder.relative_to(ROOT)}", file=sys.stderr)
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", folder])
        if made.returncode != 0:
            sys.exit("cannot create a virtual environment; on Debian, run: apt-get install python3-venv")
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        mark.write_text(wanted)
    (site,) = folder.glob("lib/python3*/site-packages")
    return site


def clang(archs):
    """Installs Debian's clang if missing, and creates ISA libraries that Debian's ROCm is too old to have."""
    have = shutil.which("clang++-19") and shutil.which("llvm-as-19") and shutil.which("ld.lld-19")
    if not have or not Path("/usr/include/hip/hip_runtime.h").is_file() or not device_libraries():
        root = [] if os.geteuid() == 0 else ["sudo"]
        subprocess.run([*root, "apt-get", "update", "-q"], check=True)
        install = ["apt-get", "install", "--yes", "-q", "--no-install-recommends", *DEBIAN]
        subprocess.run([*root, *install], check=True)
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    for path in device_libraries():
        link = LIBRARIES / path.name
        if not link.is_symlink():
            link.symlink_to(path)
    for arch in archs:
        name = arch.removeprefix("gfx")
        path = LIBRARIES / f"oclc_isa_version_{name}.bc"
        if not path.exists():
            major, minor, step = int(name[:-2]), int(name[-2], 16), int(name[-1], 16)
            text = ISA.format(number=major * 1000 + minor * 100 + step)
            subprocess.run(["llvm-as-19", "-o", path, "-"], input=text.encode(), check=True)


def device_libraries():
    listed = subprocess.run(["dpkg", "-L", "rocm-device-libs"], capture_output=True, text=True)
    return [Path(line) for line in listed.stdout.splitlines() if line.endswith(".bc")]


def for_hip(file, names, arch, out):
    """The command that compiles a file for an AMD architecture, to be run in OVERRIDES, and its standard input."""
    own = OVERRIDES / f"{file}.cu"
    source = (own if own.is_file() else KERNELS / f"{file}.cu").read_text()
    flags = [line.strip() for line in (OVERRIDES / "FLAGS").read_text().splitlines()]
    command = ["clang++-19", "-x", "hip", f"--offload-arch={arch}", "--cuda-device-only", "--no-gpu-bundle-output"]
    command += [flag for flag in flags if flag and not flag.startswith("#")]
    command += ["-I.", f"-I{KERNELS}", *names, "--rocm-path=/usr", f"--rocm-device-lib-path={LIBRARIES}", "-", "-o", out]
    # The compiler reads the source from standard input, so that quoted includes are searched in the
    # working folder, OVERRIDES, first: HIP's dialect.h replaces CUDA's.
    return command, source


def fnv(data, sum=0xcbf29ce484222325):
    """FNV-1a with 64 bits, as 16 hexadecimal digits."""
    for byte in data:
        sum = (sum ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{sum:016x}"


def stamp(texts):
    """FNV-1a over names and contents, each after its length (8 bytes, little-endian)."""
    parts = (part for name, text in texts for part in (name.encode(), text))
    return fnv(b"".join(len(part).to_bytes(8, "little") + part for part in parts))


def hip_stamp():
    """A hash of all sources compiled for AMD, as backends/hip/src/stored.rs computes it."""
    files = {}
    for folder, prefix in [(KERNELS, ""), (KERNELS / "cache", "cache/"), (KERNELS / "lib", "lib/"),
                           (KERNELS / "formats", "formats/"), (OVERRIDES, "")]:
        for path in folder.iterdir():
            if path.suffix in (".cu", ".cuh", ".h") and path != KERNELS / "dialect.h":
                files[prefix + path.name] = path
    listed = [*sorted(files.items()), ("FLAGS", OVERRIDES / "FLAGS")]
    return stamp((name, path.read_bytes()) for name, path in listed)


def workers():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

#!/usr/bin/env python3
"""Compares number formats with ggml's: writes the vectors that backends/hal/src/format/tests.rs reads, or compares on
many random blocks.

    pip install gguf llama-cpp-python
    python3 scripts/check_formats.py                     # writes the vectors
    python3 scripts/check_formats.py --blocks 1000000    # prints a table of all formats, or of those named after it

Blocks are random bytes (in the vectors with odd scales); what they stand for is computed by the `gguf` package. Bytes
and errors of quantisation come from ggml itself (the library inside `llama-cpp-python`). The vectors depend on the seed
only. The table compares bits; two values that are no number are taken as equal.
"""

import argparse
import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Kind
from gguf.quants import dequantize

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "backends/hal/src/format/fixtures"
N_BLOCKS = 6
# Byte offsets of the f16 fields of a block.
F16_AT = {
    Kind.Q4_0: [0], Kind.Q4_1: [0, 2], Kind.Q8_0: [0], Kind.Q4_K: [0, 2], Kind.Q5_K: [0, 2], Kind.Q6_K: [208],
}
# Those that came later, drawn after all else.
LATER = {
    Kind.Q5_0: [0], Kind.Q5_1: [0, 2], Kind.Q2_K: [80, 82], Kind.Q3_K: [108], Kind.IQ2_XXS: [0], Kind.IQ2_XS: [0],
    Kind.IQ3_XXS: [0], Kind.IQ1_S: [0], Kind.IQ4_NL: [0], Kind.IQ3_S: [0], Kind.IQ2_S: [0], Kind.IQ4_XS: [0],
    Kind.IQ1_M: [], Kind.MXFP4: [],
}
PLAIN = [Kind.F16, Kind.BF16]
ODD_SCALES = np.array([0.0123, -1.75, 0.0, 6.1e-5, 5.96e-8, 65504.0], np.float16)


def write(name, *parts):
    (OUT / name).write_bytes(b"".join(np.ascontiguousarray(p).tobytes() for p in parts))


def ggml():
    import llama_cpp

    lib = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [
        ctypes.c_int64] * 3 + [ctypes.c_void_p]
    return lib


def quantize(lib, kind, values):
    out = np.zeros(values.size * 4, np.uint8)
    n = lib.ggml_quantize_chunk(
        int(kind), values.ctypes.data, out.ctypes.data, 0, 1, values.size, None)
    return out[:n].copy()


def write_blocks(rng, formats):
    for kind, fields in formats.items():
        blocks = rng.integers(0, 256, (N_BLOCKS, GGML_QUANT_SIZES[kind][1]), np.uint8)
        for k, at in enumerate(fields):
            blocks[:, at:at + 2] = np.roll(ODD_SCALES, k).view(np.uint8).reshape(-1, 2)
        if kind == Kind.MXFP4:
            blocks[:, 0] = [0, 1, 2, 127, 254, 255]
        if kind == Kind.IQ1_M:
            words = ODD_SCALES.view(np.uint16)
            for i in range(4):
                blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (words >> (4 * i) & 15) << 4
        write(f"{kind.name.lower()}.bin", blocks, dequantize(blocks, kind).astype(np.float32))


def write_vectors():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    write_blocks(rng, F16_AT)
    halves = rng.integers(0, 1 << 16, 256).astype(np.uint16)
    halves[:8] = [0, 0x8000, 1, 0x7BFF, 0x7C00, 0xFC00, 0x3C00, 0x03FF]
    write("f16.bin", halves, halves.view(np.float16).astype(np.float32))
    write("bf16.bin", halves, (halves.astype(np.uint32) << 16).view(np.float32))

    values = rng.standard_normal(2048).astype(np.float32) * np.float32(0.02)
    values[:32] = 0
    values[40] = 1.5
    lib = ggml()
    rounded = PLAIN + [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q5_0, Kind.Q5_1, Kind.MXFP4]
    write("quantized.bin", values, *[quantize(lib, kind, values) for kind in rounded])
    errors = []
    for kind in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        blocks = quantize(lib, kind, values).reshape(-1, GGML_QUANT_SIZES[kind][1])
        errors.append(((dequantize(blocks, kind).ravel() - values) ** 2).sum())
    write("k_errors.bin", np.array(errors, np.float32))
    print("squared errors of Q4_K, Q5_K, Q6_K:", errors)
    write_blocks(np.random.default_rng(2), LATER)
    write_signs(lib)


def write_signs(lib):
    """Q1_0, which the `gguf` package cannot read yet."""
    blocks = np.random.default_rng(1).integers(0, 256, (N_BLOCKS, 18), np.uint8)
    blocks[:, :2] = ODD_SCALES.view(np.uint8).reshape(-1, 2)
    values = np.zeros(128 * N_BLOCKS, np.float32)
    lib.dequantize_row_q1_0.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    lib.dequantize_row_q1_0(blocks.ctypes.data, values.ctypes.data, values.size)
    write("q1_0.bin", blocks, values)


def expected(kind, blocks):
    """What `blocks` `[n, bytes]` stand for."""
    if kind == Kind.BF16:
        return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32).ravel()
    return dequantize(blocks, kind).astype(np.float32).ravel()


class Ours:
    """The values that this repository's formats make of blocks."""

    def __init__(self):
        build = ["cargo", "build", "--release", "-q", "-p", "thermocline-hal", "--example", "dequantize"]
        subprocess.run(build, cwd=ROOT, check=True)
        self.program = ROOT / "target/release/examples/dequantize"

    def values(self, kind, blocks):
        given = kind.name.encode() + b"\n" + blocks.tobytes()
        done = subprocess.run([self.program], input=given, stdout=subprocess.PIPE, check=True)
        return np.frombuffer(done.stdout, np.float32)


def compare(n_blocks, names):
    ours, rng, failed = Ours(), np.random.default_rng(3), False
    print("| format | blocks | values | no numbers | different bits |")
    print("|---|---:|---:|---:|---:|")
    for kind in PLAIN + sorted([*F16_AT, *LATER]):
        if names and kind.name not in names:
            continue
        n_values, size = GGML_QUANT_SIZES[kind]
        left, nan, different = n_blocks, 0, 0
        while left > 0:
            n = min(left, max(1, (1 << 22) // n_values))
            blocks = rng.integers(0, 256, (n, size), np.uint8)
            wanted, found = expected(kind, blocks), ours.values(kind, blocks)
            assert wanted.shape == found.shape, (wanted.shape, found.shape)
            none = np.isnan(wanted)
            nan += int(none.sum())
            same = (wanted.view(np.uint32) == found.view(np.uint32)) | (none & np.isnan(found))
            different += int((~same).sum())
            left -= n
        failed |= different > 0
        print(f"| {kind.name} | {n_blocks} | {n_blocks * n_values} | {nan} | {different} |", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, help="compare on so many random blocks of each format")
    parser.add_argument("formats", nargs="*", help="only these")
    given = parser.parse_args()
    np.seterr(all="ignore")
    if given.blocks is None:
        return write_vectors()
    sys.exit(compare(given.blocks, given.formats))


if __name__ == "__main__":
    main()

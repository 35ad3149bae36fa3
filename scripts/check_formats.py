#!/usr/bin/env python3
"""Writes the vectors that backends/hal/src/format/tests.rs compares against.

    pip install gguf llama-cpp-python && python3 scripts/check_formats.py

Blocks are random bytes with odd scales; what they stand for is computed by the `gguf` package. Bytes
and errors of quantisation come from ggml itself (the library inside `llama-cpp-python`). The output
depends on the seed only.
"""

import ctypes
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
import llama_cpp

OUT = Path(__file__).resolve().parent.parent / "backends/hal/src/format/fixtures"
N_BLOCKS = 6
# Byte offsets of the f16 fields of a block.
F16_AT = {
    Kind.Q4_0: (18, [0]), Kind.Q4_1: (20, [0, 2]), Kind.Q8_0: (34, [0]),
    Kind.Q4_K: (144, [0, 2]), Kind.Q5_K: (176, [0, 2]), Kind.Q6_K: (210, [208]),
}
ODD_SCALES = np.array([0.0123, -1.75, 0.0, 6.1e-5, 5.96e-8, 65504.0], np.float16)


def write(name, *parts):
    (OUT / name).write_bytes(b"".join(np.ascontiguousarray(p).tobytes() for p in parts))


def ggml():
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


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    np.seterr(all="ignore")
    for kind, (size, fields) in F16_AT.items():
        blocks = rng.integers(0, 256, (N_BLOCKS, size), np.uint8)
        for k, at in enumerate(fields):
            blocks[:, at:at + 2] = np.roll(ODD_SCALES, k).view(np.uint8).reshape(-1, 2)
        write(f"{kind.name.lower()}.bin", blocks, dequantize(blocks, kind).astype(np.float32))
    halves = rng.integers(0, 1 << 16, 256).astype(np.uint16)
    halves[:8] = [0, 0x8000, 1, 0x7BFF, 0x7C00, 0xFC00, 0x3C00, 0x03FF]
    write("f16.bin", halves, halves.view(np.float16).astype(np.float32))
    write("bf16.bin", halves, (halves.astype(np.uint32) << 16).view(np.float32))

    values = rng.standard_normal(2048).astype(np.float32) * np.float32(0.02)
    values[:32] = 0
    values[40] = 1.5
    lib = ggml()
    plain = [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0]
    write("quantized.bin", values, *[quantize(lib, kind, values) for kind in plain])
    errors = []
    for kind in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        blocks = quantize(lib, kind, values).reshape(-1, F16_AT[kind][0])
        errors.append(((dequantize(blocks, kind).ravel() - values) ** 2).sum())
    write("k_errors.bin", np.array(errors, np.float32))
    print("squared errors of Q4_K, Q5_K, Q6_K:", errors)


if __name__ == "__main__":
    main()

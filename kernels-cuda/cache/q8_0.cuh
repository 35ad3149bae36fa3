#pragma once
#include "lib/sums.cuh"

namespace cache {

/// Blocks of 34 bytes: a 16-bit scale, then 32 codes. Blocks are therefore aligned to 2 bytes only.
struct q8_0 {
    static constexpr bool WHOLE = true;

    static DEVICE unsigned threads(unsigned n) { return n; }

    static DEVICE void store(const float* x, unsigned, unsigned i, unsigned* row, bool live) {
        const float v = live ? x[i] : 0.0f;
        const float scale = divide(max_near(fabsf(v), 32), 127.0f);
        const float inverse = scale != 0.0f ? divide(1.0f, scale) : 0.0f;
        const unsigned own = code(v * inverse), next = shfl_xor(own, 1);
        unsigned short* block = reinterpret_cast<unsigned short*>(row) + 17 * (i / 32);
        if (live && i % 32 == 0) block[0] = float_to_half(scale);
        if (live && i % 2 == 0) block[1 + i % 32 / 2] = static_cast<unsigned short>(own | next << 8);
    }

    /// The nearest integer as a byte, with ties away from zero; 0 for NaN.
    static DEVICE unsigned code(float v) {
        const float size = floorf(fabsf(v));
        const float rounded = fabsf(v) - size >= 0.5f ? size + 1.0f : size;
        if (!(rounded >= 0.0f)) return 0;
        return unsigned(int(v < 0.0f ? -fminf(rounded, 128.0f) : fminf(rounded, 127.0f))) & 0xffu;
    }

    static DEVICE float one(const unsigned* row, unsigned i) {
        const unsigned short* block = reinterpret_cast<const unsigned short*>(row) + 17 * (i / 32);
        const unsigned pair = block[1 + i % 32 / 2];
        return half_to_float(block[0]) * float(signed_byte(pair, i % 2));
    }

    static DEVICE void eight(const unsigned* row, unsigned i, float* out) {
        const unsigned short* block = reinterpret_cast<const unsigned short*>(row) + 17 * (i / 32);
        const unsigned short* codes = block + 1 + i % 32 / 2;
        const float scale = half_to_float(block[0]);
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const unsigned pair = codes[j];
            out[2 * j] = scale * float(signed_byte(pair, 0));
            out[2 * j + 1] = scale * float(signed_byte(pair, 1));
        }
    }

    static DEVICE int signed_byte(unsigned pair, unsigned which) { return int(pair << (24 - 8 * which)) >> 24; }
};

}  // namespace cache

#pragma once
#include "dialect.h"

namespace cache {

/// Blocks of 34 bytes: a scale in 16 bits, then 32 codes. So they begin at half words only.
struct q8_0 {
    /// Two blocks are 17 words.
    static constexpr unsigned PIECE = 64;

    static DEVICE void store(const float* x, unsigned n, unsigned piece, unsigned* row) {
        // Half words of the row, put together two by two.
        unsigned held = 0;
        const unsigned n_blocks = n / 32;
        for (unsigned block = 2 * piece; block < 2 * piece + 2 && block < n_blocks; block++) {
            const float* from = x + 32 * block;
            float farthest = 0.0f;
            for (unsigned i = 0; i < 32; i++) farthest = fmaxf(farthest, fabsf(from[i]));
            const float scale = divide(farthest, 127.0f);
            const float inverse = scale != 0.0f ? divide(1.0f, scale) : 0.0f;
            for (unsigned h = 0; h < 17; h++) {
                const unsigned half = h == 0 ? unsigned(float_to_half(scale))
                                             : code(from[2 * h - 2] * inverse) | code(from[2 * h - 1] * inverse) << 8;
                const unsigned at = 17 * block + h;
                if (at % 2 == 0) held = half;
                // A row of an odd number of blocks ends in half a word.
                if (at % 2 == 1) row[at / 2] = held | half << 16;
                else if (at + 1 == 17 * n_blocks) row[at / 2] = held;
            }
        }
    }

    /// To the nearest, halves away from zero, as a byte; 0 for what is no number.
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

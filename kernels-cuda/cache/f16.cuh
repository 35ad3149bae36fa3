#pragma once
#include "dialect.h"

namespace cache {

struct f16 {
    static constexpr unsigned PIECE = 2;

    static DEVICE void store(const float* x, unsigned n, unsigned piece, unsigned* row) {
        const unsigned i = 2 * piece;
        unsigned word = float_to_half(x[i]);
        if (i + 1 < n) word |= unsigned(float_to_half(x[i + 1])) << 16;
        row[piece] = word;
    }

    static DEVICE float one(const unsigned* row, unsigned i) {
        return half_to_float(static_cast<unsigned short>(row[i / 2] >> (16 * (i % 2))));
    }

    static DEVICE void eight(const unsigned* row, unsigned i, float* out) {
        const uint4 words = *reinterpret_cast<const uint4*>(row + i / 2);
        two(words.x, out);
        two(words.y, out + 2);
        two(words.z, out + 4);
        two(words.w, out + 6);
    }

    static DEVICE void two(unsigned word, float* out) {
        out[0] = half_to_float(static_cast<unsigned short>(word & 0xffffu));
        out[1] = half_to_float(static_cast<unsigned short>(word >> 16));
    }
};

}  // namespace cache

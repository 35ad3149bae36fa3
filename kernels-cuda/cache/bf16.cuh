#pragma once
#include "dialect.h"

namespace cache {

struct bf16 {
    static constexpr unsigned PIECE = 2;

    static DEVICE void store(const float* x, unsigned n, unsigned piece, unsigned* row) {
        const unsigned i = 2 * piece;
        unsigned word = to_bf16(x[i]);
        if (i + 1 < n) word |= to_bf16(x[i + 1]) << 16;
        row[piece] = word;
    }

    static DEVICE float one(const unsigned* row, unsigned i) {
        return from_bits(i % 2 ? row[i / 2] & 0xffff0000u : row[i / 2] << 16);
    }

    static DEVICE void eight(const unsigned* row, unsigned i, float* out) {
        const uint4 words = *reinterpret_cast<const uint4*>(row + i / 2);
        two(words.x, out);
        two(words.y, out + 2);
        two(words.z, out + 4);
        two(words.w, out + 6);
    }

    static DEVICE void two(unsigned word, float* out) {
        out[0] = from_bits(word << 16);
        out[1] = from_bits(word & 0xffff0000u);
    }
};

}  // namespace cache

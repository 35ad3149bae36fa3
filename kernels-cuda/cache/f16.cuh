#pragma once
#include "dialect.h"

namespace cache {

struct f16 {
    static constexpr bool WHOLE = false;

    static DEVICE unsigned threads(unsigned n) { return (n + 1) / 2; }

    static DEVICE void store(const float* x, unsigned n, unsigned i, unsigned* row, bool live) {
        if (!live) return;
        const unsigned upper = 2 * i + 1 < n ? unsigned(float_to_half(x[2 * i + 1])) : 0;
        row[i] = unsigned(float_to_half(x[2 * i])) | upper << 16;
    }

    static DEVICE float one(const unsigned* row, unsigned i) {
        return half_to_float(reinterpret_cast<const unsigned short*>(row)[i]);
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

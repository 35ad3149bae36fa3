#pragma once
#include "dialect.h"

namespace cache {

struct f32 {
    static constexpr bool WHOLE = false;

    static DEVICE unsigned threads(unsigned n) { return n; }

    static DEVICE void store(const float* x, unsigned, unsigned i, unsigned* row, bool live) {
        if (live) row[i] = bits(x[i]);
    }

    static DEVICE float one(const unsigned* row, unsigned i) { return from_bits(row[i]); }

    static DEVICE void eight(const unsigned* row, unsigned i, float* out) {
        const float4* at = reinterpret_cast<const float4*>(row + i);
        const float4 low = at[0], high = at[1];
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
    }
};

}  // namespace cache

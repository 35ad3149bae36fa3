// A float as two numbers with the 10 mantissa bits that matrix instructions use (TF32): together
// they are exact to 2^-22. A product of two floats is then three products, with the product of the
// lower halves omitted.
#pragma once
#include "dialect.h"

struct Split {
    unsigned upper, lower;
};

// SHORT: the number has at most 10 mantissa bits.
template <bool SHORT>
DEVICE Split split(float v) {
    if constexpr (SHORT) return {bits(v), 0};
    const unsigned upper = bits(v) & 0xffffe000u;
    // The difference is exact; adding half of its last remaining bit rounds it.
    return {upper, (bits(v - from_bits(upper)) + 0x1000u) & 0xffffe000u};
}

#if HAS_MMA_FLOATS
// d (16 x 8) += a (16 x 8) * b (8 x 8), in the layout of mma_tf32; products with a lower half come first.
template <bool SHORT>
DEVICE void mma_split(float d[4], const Split (&a)[4], const Split (&b)[2]) {
    const unsigned upper[4] = {a[0].upper, a[1].upper, a[2].upper, a[3].upper};
    const unsigned right[2] = {b[0].upper, b[1].upper}, right_lower[2] = {b[0].lower, b[1].lower};
    if constexpr (!SHORT) {
        const unsigned lower[4] = {a[0].lower, a[1].lower, a[2].lower, a[3].lower};
        mma_tf32(d, lower, right);
    }
    mma_tf32(d, upper, right_lower);
    mma_tf32(d, upper, right);
}
#endif

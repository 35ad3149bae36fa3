#pragma once
// Sums and maxima over neighbours and over blocks: the same bits for all callers, in an order that
// depends only on the sizes.
#include "dialect.h"

/// Over `lanes` neighbours, a power of two up to 32.
DEVICE float sum_near(float v, unsigned lanes) {
    for (unsigned o = 1; o < lanes; o <<= 1) v += shfl_xor(v, o);
    return v;
}

DEVICE float max_near(float v, unsigned lanes) {
    for (unsigned o = 1; o < lanes; o <<= 1) v = fmaxf(v, shfl_xor(v, o));
    return v;
}

/// Over a block of up to 1024 threads, all of which call this.
DEVICE float sum_block(float v) {
    SHARED(float, parts, 32);
    v = sum_near(v, 32);
    if (thread() % 32 == 0) parts[thread() / 32] = v;
    barrier();
    float sum = parts[0];
    for (unsigned i = 1; i < block_size().x / 32; i++) sum += parts[i];
    barrier();
    return sum;
}

DEVICE float max_block(float v) {
    SHARED(float, parts, 32);
    v = max_near(v, 32);
    if (thread() % 32 == 0) parts[thread() / 32] = v;
    barrier();
    float most = parts[0];
    for (unsigned i = 1; i < block_size().x / 32; i++) most = fmaxf(most, parts[i]);
    barrier();
    return most;
}

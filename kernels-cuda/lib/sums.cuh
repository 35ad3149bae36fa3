#pragma once
// Sums and maxima over neighbouring lanes and over blocks. All callers get the same bits, since the
// order of additions depends only on the sizes.
#include "dialect.h"

/// The sum over `lanes` neighbouring lanes, a power of two up to 32.
DEVICE float sum_near(float v, unsigned lanes) {
    for (unsigned o = 1; o < lanes; o <<= 1) v += shfl_xor(v, o);
    return v;
}

DEVICE float max_near(float v, unsigned lanes) {
    for (unsigned o = 1; o < lanes; o <<= 1) v = fmaxf(v, shfl_xor(v, o));
    return v;
}

/// The sum over a block of up to 1024 threads, all of which call this.
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

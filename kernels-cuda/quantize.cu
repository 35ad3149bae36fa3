// Quantises rows of floats to Q8 blocks, eight lanes per block; also initialises words that a
// later launch counts in or writes only in part.
#include "dialect.h"
#include "lib/quantize.cuh"

KERNEL(quantize)(const float* x, unsigned* q, unsigned* clear, unsigned n_blocks, unsigned n_clear, unsigned cleared,
                 unsigned n_zero) {
    const unsigned at = block_index().x * block_size().x + thread();
    for (unsigned i = at; i < n_clear; i += block_size().x * grid_size().x) {
        // The first words are counters, the others mark skipped neurons.
        clear[i] = i < n_zero ? 0 : cleared;
    }
    const unsigned block = at >> 3;
    const bool inside = block < n_blocks;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (inside) v = reinterpret_cast<const float4*>(x)[at];
    quantize_block(v, q + (size_t)block * Q8_WORDS, inside);
}
EXPORT(quantize)

#pragma once
// While a short launch runs, memory would idle. Its blocks beyond the first `n_blocks` bring the
// beginning of a weight that a later launch reads into the L2 cache; no result depends on them.
#include "dialect.h"

constexpr unsigned LINE = 128;

// Whether this block only prefetches. `n_lines` lines from `weight` on; with n_lines = 0 the launch
// has no such blocks.
DEVICE bool prefetches(const unsigned char* weight, unsigned n_lines, unsigned n_blocks) {
    if (block_index().x < n_blocks) return false;
    const unsigned line = (block_index().x - n_blocks) * block_size().x + thread();
    if (block_index().y == 0 && line < n_lines) prefetch_l2(weight + (size_t)line * LINE);
    return true;
}

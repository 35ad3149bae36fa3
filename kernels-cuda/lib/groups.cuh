#pragma once
// Finds the experts that a few tokens use.

#include "dialect.h"

// Maximum number of experts in a block's list.
constexpr unsigned MAX_LISTED_GROUPS = 1024;

// Lists the entries e below `n` for which `uses(e)`, in ascending order, in `list` (shared memory,
// with capacity for all); returns their number. `masks` is shared memory of 32 words. Called by
// all threads of a block of at most 1024.
template <class Uses>
DEVICE unsigned list_used(unsigned n, unsigned* list, unsigned* masks, Uses uses) {
    const unsigned t = thread();
    unsigned listed = 0;
    for (unsigned base = 0; base < n; base += block_size().x) {
        const bool used = base + t < n && uses(base + t);
        const unsigned long long mine = ballot(used);
        if (lane() % 32 == 0) masks[t / 32] = (unsigned)(mine >> (lane() & 32u));
        barrier();
        unsigned before = popc(masks[t / 32] & ((1u << (t % 32)) - 1u)), here = 0;
        for (unsigned w = 0; w < block_size().x / 32; w++) {
            const unsigned some = popc(masks[w]);
            if (w < t / 32) before += some;
            here += some;
        }
        if (used) list[listed + before] = base + t;
        listed += here;
        barrier();
    }
    return listed;
}

// Whether one of `n_tokens` tokens uses expert `g`.
DEVICE bool is_used(const float* weight, unsigned n_group, unsigned n_tokens, unsigned g) {
    bool used = false;
    for (unsigned token = 0; token < n_tokens; token++) used = used || weight[(size_t)token * n_group + g] != 0.0f;
    return used;
}

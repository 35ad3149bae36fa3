// Lists the active neurons by their scores: resident ones in one list, absent ones in another. Each
// block first counts those among its 256 neurons; a second launch writes them after those of earlier
// blocks.
#include "dialect.h"

constexpr unsigned PREDICT_BLOCK = 256;
constexpr unsigned PREDICT_WORDS = PREDICT_BLOCK / 32;

// NaN scores count as active.
DEVICE bool wants(const float* scores, unsigned n_ff, unsigned token, unsigned neuron, float threshold) {
    const float score = scores[(size_t)token * n_ff + neuron];
    return score >= threshold || score != score;
}

// Membership bits of this block's neurons, resident and absent; the slot of this thread's neuron
// and whether it is active.
DEVICE void mask_wanted(const float* scores, const unsigned* slots, unsigned n_ff, unsigned n_tokens, float threshold,
                        unsigned* masks, unsigned& slot, bool& wanted) {
    const unsigned neuron = block_index().x * PREDICT_BLOCK + thread();
    slot = 0;
    wanted = false;
    if (neuron < n_ff) {
        slot = slots[neuron];
        for (unsigned t = 0; t < n_tokens && !wanted; t++) wanted = wants(scores, n_ff, t, neuron, threshold);
    }
#pragma unroll
    for (unsigned side = 0; side < 2; side++) {
        const unsigned long long all = ballot(wanted && slot >> 31 == side);
        if (lane() % 32 == 0) masks[side * PREDICT_WORDS + thread() / 32] = (unsigned)(all >> lane());
    }
    barrier();
}

DEVICE unsigned count_side(const unsigned* masks, unsigned side) {
    unsigned n = 0;
    for (unsigned w = 0; w < PREDICT_WORDS; w++) n += popc(masks[side * PREDICT_WORDS + w]);
    return n;
}

KERNEL(predict_count)(const float* scores, const unsigned* slots, unsigned* counts, unsigned n_ff, unsigned n_tokens,
                      float threshold) {
    SHARED(unsigned, masks, 2 * PREDICT_WORDS);
    unsigned slot;
    bool wanted;
    mask_wanted(scores, slots, n_ff, n_tokens, threshold, masks, slot, wanted);
    if (thread() < 2) counts[2 * block_index().x + thread()] = count_side(masks, thread());
}
EXPORT(predict_count)

// A list has room for `capacity` neurons, with `words` membership words each; if a list is not
// requested, its `capacity` is 0.
KERNEL(predict_list)(const float* scores, const unsigned* slots, const unsigned* counts, unsigned* here_ids,
                     unsigned* here_count, unsigned* here_members, unsigned* there_ids, unsigned* there_count,
                     unsigned* there_members, unsigned n_ff, unsigned n_tokens, float threshold, unsigned here_capacity,
                     unsigned here_words, unsigned there_capacity, unsigned there_words) {
    SHARED(unsigned, masks, 2 * PREDICT_WORDS);
    SHARED(unsigned, before, 2);
    if (thread() < 2) before[thread()] = 0;
    barrier();
    unsigned mine = 0;
    for (unsigned i = thread(); i < 2 * block_index().x; i += PREDICT_BLOCK) mine += counts[i];
    // Blocks have an even number of threads, so a thread adds up counts of one list only.
    if (mine != 0) atomic_add(&before[thread() & 1], mine);
    unsigned slot;
    bool wanted;
    mask_wanted(scores, slots, n_ff, n_tokens, threshold, masks, slot, wanted);
    if (wanted) {
        const unsigned side = slot >> 31;
        const unsigned word = thread() / 32;
        unsigned at = before[side];
        for (unsigned w = 0; w < word; w++) at += popc(masks[side * PREDICT_WORDS + w]);
        at += popc(masks[side * PREDICT_WORDS + word] & ((1u << (thread() % 32)) - 1));
        const unsigned neuron = block_index().x * PREDICT_BLOCK + thread();
        const unsigned words = side == 0 ? here_words : there_words;
        if (at < (side == 0 ? here_capacity : there_capacity)) {
            (side == 0 ? here_ids : there_ids)[at] = slot & 0x7fffffffu;
            unsigned* members = (side == 0 ? here_members : there_members) + (size_t)at * words;
            for (unsigned w = 0; w < words; w++) {
                unsigned all = 0;
                for (unsigned b = 0; b < 32 && 32 * w + b < n_tokens; b++) {
                    if (wants(scores, n_ff, 32 * w + b, neuron, threshold)) all |= 1u << b;
                }
                members[w] = all;
            }
        }
    }
    if (block_index().x == grid_size().x - 1 && thread() < 2) {
        const unsigned n = before[thread()] + count_side(masks, thread());
        if (thread() == 0) *here_count = n < here_capacity ? n : here_capacity;
        if (thread() == 1 && there_capacity != 0) *there_count = n < there_capacity ? n : there_capacity;
    }
}
EXPORT(predict_list)

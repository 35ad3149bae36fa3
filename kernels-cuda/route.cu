// Selects the top experts of each token and computes their weights; a block per token.
#include "lib/sums.cuh"

static constexpr unsigned MOST_GROUPS = 4096;

// Maps floats to words with the same order.
static DEVICE unsigned order_of(float x) {
    const unsigned word = bits(x);
    return word >> 31 ? ~word : word | 0x80000000u;
}

static DEVICE float score_part(float score, float best, unsigned scoring) {
    return scoring == 1 ? 1.0f / (1.0f + expf(-score)) : expf(score - best);
}

// Scoring: 0 softmax, 1 sigmoid, 2 softmax over the selected experts.
KERNEL(route)(const float* scores, float* weights, unsigned n_group, unsigned n_used, unsigned scoring, unsigned renormalise,
    float scale) {
    SHARED(float, own, MOST_GROUPS);
    SHARED(unsigned, chosen_bits, MOST_GROUPS / 32);
    const unsigned n = block_size().x;
    scores += size_t(block_index().x) * n_group;
    weights += size_t(block_index().x) * n_group;
    float best = scores[0];
    for (unsigned g = thread(); g < n_group; g += n) {
        own[g] = scores[g];
        best = fmaxf(best, own[g]);
    }
    for (unsigned i = thread(); i < MOST_GROUPS / 32; i += n) chosen_bits[i] = 0;
    best = max_block(best);
    float all = 0.0f, chosen = 0.0f;
    for (unsigned g = thread(); g < n_group; g += n) {
        // The rank of an expert; of equal scores, the lower id ranks first.
        const unsigned mine = order_of(own[g]);
        unsigned place = 0;
        for (unsigned other = 0; other < n_group; other++) {
            const unsigned theirs = order_of(own[other]);
            place += theirs > mine || (theirs == mine && other < g);
        }
        const float part = score_part(own[g], best, scoring);
        all += part;
        if (place < n_used) {
            chosen += part;
            atomic_or(&chosen_bits[g / 32], 1u << (g % 32));
        }
    }
    const float sum_chosen = sum_block(chosen);
    const float sum_all = sum_block(all);
    float divisor = sum_chosen;
    if (scoring != 2 && !renormalise) divisor = scoring == 1 ? 1.0f : sum_all;
    for (unsigned g = thread(); g < n_group; g += n) {
        const bool used = chosen_bits[g / 32] >> (g % 32) & 1u;
        weights[g] = used ? score_part(own[g], best, scoring) / divisor * scale : 0.0f;
    }
}
EXPORT(route)

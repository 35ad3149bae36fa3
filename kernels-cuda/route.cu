// Selects the top experts of each token and computes their weights; a block per token.
#include "lib/gate.cuh"
#include "lib/sums.cuh"

static constexpr unsigned MOST_EXPERTS = 4096, MOST_GROUPS = 64;
static constexpr float LOW = -3.0e38f, MIN_WEIGHT_SUM = 1.0f / 16384.0f;

// Maps floats to words with the same order.
static DEVICE unsigned order_of(float x) {
    const unsigned word = bits(x);
    return word >> 31 ? ~word : word | 0x80000000u;
}

// The number of keys before key `i`; of equal keys, the lower index is before.
static DEVICE unsigned place_of(const float* keys, unsigned n, unsigned i) {
    const unsigned mine = order_of(keys[i]);
    unsigned place = 0;
    for (unsigned other = 0; other < n; other++) {
        const unsigned theirs = order_of(keys[other]);
        place += theirs > mine || (theirs == mine && other < i);
    }
    return place;
}

static DEVICE float score_part(float score, float best, unsigned scoring) {
    if (scoring == 3) return sqrtf(softplus(score));
    return scoring == 1 ? 1.0f / (1.0f + expf(-score)) : expf(score - best);
}

// Scoring: 0 softmax, 1 sigmoid, 2 softmax over the selected experts, 3 root of the softplus. `selection`, `groups` and
// `given`, `[n_tokens, n_used]` experts, may be null. A weight is that of `n_per_chunk` experts.
KERNEL(route)(const float* scores, const float* selection, const float* groups, const float* given, float* weights,
    unsigned n_expert, unsigned n_used, unsigned n_per_chunk, unsigned n_group, unsigned n_group_used, unsigned scoring,
    unsigned renormalise, float scale) {
    SHARED(float, keys, MOST_EXPERTS);
    SHARED(float, qualities, MOST_GROUPS);
    SHARED(unsigned, chosen_bits, MOST_EXPERTS / 32);
    const unsigned n = block_size().x;
    scores += size_t(block_index().x) * n_expert;
    weights += size_t(block_index().x) * (n_expert / n_per_chunk);
    float best = scores[0];
    for (unsigned g = thread(); g < n_expert; g += n) best = fmaxf(best, scores[g]);
    for (unsigned i = thread(); i < MOST_EXPERTS / 32; i += n) chosen_bits[i] = 0;
    best = max_block(best);
    float all = 0.0f, chosen = 0.0f;
    for (unsigned g = thread(); g < n_expert; g += n) all += score_part(scores[g], best, scoring);
    const bool alone = scoring == 1 || scoring == 3;
    const float total = alone ? 1.0f : sum_block(all);
    for (unsigned g = thread(); g < n_expert; g += n) {
        float key = scores[g];
        if ((selection || groups) && scoring != 2) key = score_part(key, best, scoring) / total;
        keys[g] = selection ? key + selection[g] : key;
    }
    barrier();
    if (groups) {
        for (unsigned i = thread(); i < n_group; i += n) {
            // A group is as good as its two best experts.
            float first = LOW, second = LOW;
            for (unsigned g = 0; g < n_expert; g++) {
                if (unsigned(groups[g]) != i) continue;
                second = fmaxf(second, fminf(first, keys[g]));
                first = fmaxf(first, keys[g]);
            }
            qualities[i] = second == LOW ? first : first + second;
        }
        barrier();
        for (unsigned g = thread(); g < n_expert; g += n) {
            if (place_of(qualities, n_group, unsigned(groups[g])) >= n_group_used) keys[g] = LOW;
        }
        barrier();
    }
    if (given) {
        given += size_t(block_index().x) * n_used;
        for (unsigned i = thread(); i < n_used; i += n) {
            const unsigned expert = unsigned(given[i]), g = expert < n_expert ? expert : n_expert - 1;
            chosen += score_part(scores[g / n_per_chunk], best, scoring);
            atomic_or(&chosen_bits[g / 32], 1u << (g % 32));
        }
    } else {
        for (unsigned g = thread(); g < n_expert; g += n) {
            if (place_of(keys, n_expert, g) < n_used) {
                chosen += score_part(scores[g / n_per_chunk], best, scoring);
                atomic_or(&chosen_bits[g / 32], 1u << (g % 32));
            }
        }
    }
    const float sum_chosen = sum_block(chosen);
    float divisor = renormalise ? fmaxf(sum_chosen, total * MIN_WEIGHT_SUM) : total;
    if (scoring == 2) divisor = sum_chosen;
    for (unsigned c = thread(); c < n_expert / n_per_chunk; c += n) {
        unsigned n_chosen = 0;
        for (unsigned g = c * n_per_chunk; g < (c + 1) * n_per_chunk; g++) n_chosen += chosen_bits[g / 32] >> (g % 32) & 1u;
        const float weight = score_part(scores[c], best, scoring) / divisor * scale;
        weights[c] = n_chosen ? float(n_chosen) * weight : 0.0f;
    }
}
EXPORT(route)

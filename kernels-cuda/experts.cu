// Feed-forward blocks with experts in prefill: finds the tokens of each expert, and runs the steps
// between and after the products. It works on pairs of a token and an expert.

#include "dialect.h"
#include "lib/ffn.cuh"

// Finds the tokens that use each expert that has rows: pairs of a token and an expert, sorted by expert and
// then by token, at most `n_used` per token. A single block of 256 threads does this for up to 1024 experts and
// 65536 tokens.
//
// `pairs` receives the index of each expert's first pair, and the end of the last expert's pairs; `of_pairs`
// one word per pair, with the token in the lower half and the expert in the upper half; `of_tokens` the pairs
// of each token, all bits set if missing. `flags` is scratch memory: a word per token and expert.
KERNEL(experts_pairs)(const float* group_weight, const unsigned* starts, unsigned* pairs, unsigned* of_pairs,
                      unsigned* of_tokens, unsigned* flags, unsigned* counts, unsigned n_group, unsigned n_tokens,
                      unsigned n_used) {
    SHARED(unsigned, ends, 1024);
    const unsigned t = thread(), n_waves = block_size().x / WAVE;
    for (unsigned token = t; token < n_tokens; token += block_size().x) {
        unsigned n = 0;
        for (unsigned g = 0; g < n_group; g++) {
            // An expert without rows adds nothing.
            const bool some = starts[g] < starts[g + 1] && group_weight[(size_t)token * n_group + g] != 0.0f;
            const bool used = some && n < n_used;
            flags[(size_t)token * n_group + g] = used ? 1u : 0u;
            n += used ? 1u : 0u;
        }
        counts[token] = 0;
    }
    barrier();
    // A warp processes an expert: first it counts the pairs, then it writes them.
    for (unsigned pass = 0; pass < 2; pass++) {
        for (unsigned g = t / WAVE; g < n_group; g += n_waves) {
            unsigned pair = pass == 0 || g == 0 ? 0u : ends[g - 1];
            for (unsigned base = 0; base < n_tokens; base += WAVE) {
                const unsigned token = base + lane();
                const size_t at = (size_t)token * n_group + g;
                const bool used = token < n_tokens && flags[at] != 0;
                const unsigned long long all = ballot(used);
                if (used && pass == 1) {
                    const unsigned mine = pair + popcll(all & ((1ull << lane()) - 1));
                    of_pairs[mine] = token | g << 16;
                    flags[at] = mine + 1;
                }
                pair += popcll(all);
            }
            if (pass == 0 && lane() == 0) ends[g] = pair;
        }
        barrier();
        if (pass == 0 && t == 0) {
            unsigned n = 0;
            for (unsigned g = 0; g < n_group; g++) ends[g] = n += ends[g];
        }
        barrier();
    }
    for (unsigned g = t; g <= n_group; g += block_size().x) pairs[g] = g == 0 ? 0u : ends[g - 1];
    for (unsigned token = t; token < n_tokens; token += block_size().x) {
        unsigned n = 0;
        for (unsigned first = 0; first < n_group; first += 8) {
            unsigned some[8];
#pragma unroll
            for (unsigned k = 0; k < 8; k++) {
                some[k] = first + k < n_group ? flags[(size_t)token * n_group + first + k] : 0u;
            }
#pragma unroll
            for (unsigned k = 0; k < 8; k++) {
                if (some[k] != 0) of_tokens[(size_t)token * n_used + n++] = some[k] - 1;
            }
        }
        for (; n < n_used; n++) of_tokens[(size_t)token * n_used + n] = 0xffffffffu;
    }
}
EXPORT(experts_pairs)

// Computes neuron values from finished products, and writes them over the gate's products. A block
// of 256 threads processes 1024 rows of a pair.
KERNEL(experts_hidden)(float* tests, const float* ups, const float* threshold, const float* group_weight,
                       const unsigned* starts, const unsigned* pairs, const unsigned* of_pairs, unsigned* counts,
                       unsigned h_cols, unsigned n_group, unsigned kind, unsigned activation, unsigned skip, float alpha,
                       float slope, float cap) {
    SHARED(unsigned, n_carried, 1);
    const unsigned t = thread(), pair = block_index().y;
    if (pair >= pairs[n_group]) return;
    if (t == 0) n_carried[0] = 0;
    barrier();
    const FfnRule rule = {kind, activation, skip, alpha, slope, cap};
    const unsigned token = of_pairs[pair] & 0xffffu, g = of_pairs[pair] >> 16;
    const float by = group_weight[(size_t)token * n_group + g];
    for (unsigned k = 0; k < 4; k++) {
        const unsigned column = (4 * block_index().x + k) * 256 + t;
        if (column >= h_cols) break;
        const unsigned row = starts[g] + column;
        const size_t at = (size_t)pair * h_cols + column;
        unsigned word = DROPPED;
        if (row < starts[g + 1]) {
            const float test = tests[at];
            if (!is_dropped(rule, test, threshold != nullptr ? threshold[row] : 0.0f, 0.0f)) {
                word = carried_word(by * neuron(rule, test, ups[at]));
                atomic_add(n_carried, 1u);
            }
        }
        tests[at] = from_bits(word);
    }
    barrier();
    if (t == 0) atomic_add(counts + token, n_carried[0]);
}
EXPORT(experts_hidden)

// y = the sums of each token's pairs in order, plus biases; also counts active neurons. A block of
// 256 threads processes 256 columns of a token.
KERNEL(experts_reduce)(const float* partial, const float* bias, const float* group_weight, const unsigned* of_tokens,
                       const unsigned* counts, float* y, float* active, unsigned n_out, unsigned n_group, unsigned n_used,
                       unsigned accumulate) {
    const unsigned token = block_index().y, column = 256 * block_index().x + thread();
    if (column == 0) active[token] += (float)counts[token];
    if (column >= n_out) return;
    float sum = 0.0f;
    for (unsigned k = 0; k < n_used; k++) {
        const unsigned pair = of_tokens[(size_t)token * n_used + k];
        if (pair == 0xffffffffu) break;
        sum += partial[(size_t)pair * n_out + column];
    }
    for (unsigned g = 0; bias != nullptr && g < n_group; g++) {
        sum = fmaf(group_weight[(size_t)token * n_group + g], bias[(size_t)g * n_out + column], sum);
    }
    const size_t to = (size_t)token * n_out + column;
    y[to] = accumulate != 0 ? sum + y[to] : sum;
}
EXPORT(experts_reduce)

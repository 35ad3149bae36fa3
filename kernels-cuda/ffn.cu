// Feed-forward blocks: the steps between and after the products.

#include "dialect.h"
#include "lib/ffn.cuh"

// Scatters the membership bits of a row list to their rows. An earlier launch set the mask to 0.
KERNEL(ffn_mask)(const unsigned* ids, const unsigned* count, const unsigned* members, unsigned* mask, unsigned capacity,
                 unsigned words, unsigned n_rows) {
    const unsigned i = block_index().x * block_size().x + thread();
    const unsigned listed = *count < capacity ? *count : capacity;
    if (i >= listed * words) return;
    const unsigned row = ids[i / words];
    if (row < n_rows) mask[(size_t)row * words + i % words] = members[i];
}
EXPORT(ffn_mask)

// The sum over a block of 256 threads, returned to every thread.
static DEVICE float block_total(float mine) {
    SHARED(float, parts, 256);
    const unsigned t = thread();
    parts[t] = mine;
    barrier();
    for (unsigned step = 128; step > 0; step /= 2) {
        if (t < step) parts[t] += parts[t + step];
        barrier();
    }
    const float sum = parts[0];
    barrier();
    return sum;
}

// mean + factor * standard deviation of the test values of each token, over the rows of the experts
// that it uses. One block of 256 threads per token.
KERNEL(ffn_cut)(const float* tests, const float* group_weight, const unsigned* starts, float* cuts, unsigned n_rows,
                unsigned n_group, float factor) {
    const unsigned token = block_index().x, t = thread();
    tests += (size_t)token * n_rows;
    float sum = 0.0f, count = 0.0f, squares = 0.0f, mean = 0.0f;
    for (unsigned pass = 0; pass < 2; pass++) {
        for (unsigned g = 0; g < (n_group ? n_group : 1u); g++) {
            if (n_group && group_weight[(size_t)token * n_group + g] == 0.0f) continue;
            const unsigned begin = n_group ? starts[g] : 0u, end = n_group ? starts[g + 1] : n_rows;
            for (unsigned row = begin + t; row < end; row += 256) {
                const float apart = tests[row] - mean;
                if (pass == 0) {
                    sum += apart;
                    count += 1.0f;
                } else {
                    squares = fmaf(apart, apart, squares);
                }
            }
        }
        if (pass == 0) {
            count = fmaxf(block_total(count), 1.0f);
            mean = divide(block_total(sum), count);
        }
    }
    squares = block_total(squares);
    if (t == 0) cuts[token] = fmaf(factor, sqrtf(divide(squares, count)), mean);
}
EXPORT(ffn_cut)

// Computes neuron values from finished products, and writes them over the gate's products: in prefill,
// and if the skip threshold depends on all test values of a token. A block of 256 threads processes
// 1024 rows of one token. The mask has `words` words per row; 0 if all rows count for all tokens.
KERNEL(ffn_hidden)(float* tests, const float* ups, const unsigned* mask, const float* threshold,
                   const float* group_weight, const unsigned* starts, const float* cuts, unsigned* counts,
                   unsigned n_rows, unsigned words, unsigned first_token, unsigned n_group, unsigned kind,
                   unsigned activation, unsigned skip, float alpha, float slope, float cap) {
    SHARED(unsigned, n_carried, 1);
    const unsigned t = thread(), token = block_index().y, member = first_token + token;
    if (t == 0) n_carried[0] = 0;
    barrier();
    const FfnRule rule = {kind, activation, skip, alpha, slope, cap};
    const float cut = skip == 3 ? cuts[token] : 0.0f;
    for (unsigned k = 0; k < 4; k++) {
        const unsigned row = (4 * block_index().x + k) * 256 + t;
        if (row >= n_rows) break;
        const size_t at = (size_t)token * n_rows + row;
        const float test = tests[at];
        float by = 1.0f;
        if (words) by = (float)(mask[(size_t)row * words + member / 32] >> (member % 32) & 1u);
        if (n_group) by *= group_weight[(size_t)token * n_group + group_of(starts, n_group, row)];
        unsigned word = DROPPED;
        if (by != 0.0f && !is_dropped(rule, test, threshold ? threshold[row] : 0.0f, cut)) {
            word = carried_word(by * neuron(rule, test - cut, ups[at]));
            atomic_add(n_carried, 1u);
        }
        tests[at] = from_bits(word);
    }
    barrier();
    if (t == 0) atomic_add(counts + token, n_carried[0]);
}
EXPORT(ffn_hidden)

// y = partial sums in order, plus biases. Also counts active neurons and, if `hits` is given, adds to
// it the number of tokens for which each row was active. A block of 256 threads processes 32 columns
// of a token, eight partial sums at a time.
KERNEL(ffn_reduce)(const float* partial, const float* bias, const float* group_weight, const unsigned* counts,
                   const unsigned* h, float* y, float* active, float* hits, unsigned n_out, unsigned n_tokens,
                   unsigned n_slices, unsigned n_group, unsigned n_rows, unsigned accumulate) {
    SHARED(float, parts, 256);
    const unsigned t = thread(), token = block_index().y;
    const unsigned column = 32 * block_index().x + t % 32, first = t / 32;
    float sum = 0.0f;
    if (column < n_out) {
#pragma unroll 4
        for (unsigned s = first; s < n_slices; s += 8) sum += partial[((size_t)s * n_tokens + token) * n_out + column];
    }
    parts[t] = sum;
    barrier();
    if (first == 0 && column < n_out) {
        for (unsigned k = 1; k < 8; k++) sum += parts[32 * k + t];
        for (unsigned g = 0; bias && g < (n_group ? n_group : 1u); g++) {
            const float by = n_group ? group_weight[(size_t)token * n_group + g] : 1.0f;
            sum = fmaf(by, bias[(size_t)g * n_out + column], sum);
        }
        const size_t to = (size_t)token * n_out + column;
        y[to] = accumulate ? sum + y[to] : sum;
    }
    if (block_index().x == 0 && t == 0) active[token] += (float)counts[token];
    if (!hits || token != 0) return;
    for (unsigned row = 256 * block_index().x + t; row < n_rows; row += 256 * grid_size().x) {
        unsigned n = 0;
        for (unsigned k = 0; k < n_tokens; k++) n += h[(size_t)k * n_rows + row] != DROPPED;
        if (n) hits[row] += (float)n;
    }
}
EXPORT(ffn_reduce)

// y[t] = sum over groups g that a token uses of down_g . h[t, rows of g], where down lies across neurons: one matrix for
// each group that has rows, one below the other. For few tokens, a fixed number of lanes to an output, two outputs to a
// group of lanes.

#include "dialect.h"
#include "lib/dots.cuh"
#include "lib/groups.cuh"

typedef FORMAT W;

// `filled` has the groups of the `n_filled` matrices, of `n_cols` columns each.
template <unsigned T>
static DEVICE void across_few_tokens(const unsigned* weight, const unsigned* tables, const unsigned* x,
                                     const float* group_weight, const unsigned* filled, float* y, unsigned row_words,
                                     unsigned n_cols, unsigned n_out, unsigned n_filled, unsigned n_group,
                                     unsigned n_tokens, unsigned lanes) {
    SHARED(unsigned, masks, 32);
    SHARED(unsigned, used, MAX_LISTED_GROUPS);
    const unsigned n_used = list_used(n_filled, used, masks, [=](unsigned m) {
        return is_used(group_weight, n_group, n_tokens, filled[m]);
    });
    const unsigned per = 2 * (block_size().x / lanes), lane = thread() & (lanes - 1);
    const unsigned matrix_words = W::FLOAT ? n_cols : n_cols / 32 * Q8_WORDS, x_words = n_filled * matrix_words;
    for (unsigned first = per * block_index().x; first < n_out; first += per * grid_size().x) {
        const unsigned begin = first + 2 * (thread() / lanes);
        const unsigned outputs[2] = {begin < n_out ? begin : n_out - 1, begin + 1 < n_out ? begin + 1 : n_out - 1};
        for (unsigned token = 0; token < n_tokens; token += T) {
            float sums[2][T] = {};
            for (unsigned k = 0; k < n_used; k++) {
                const unsigned m = used[k];
                const unsigned* matrix = weight + (size_t)m * n_out * row_words;
                const unsigned* const rows[2] = {matrix + (size_t)outputs[0] * row_words,
                                                 matrix + (size_t)outputs[1] * row_words};
                const Rows some = {x + (size_t)token * x_words + (size_t)m * matrix_words, x_words, n_tokens - token};
                row_dots<W, 2, T>(sums, rows, n_cols, lane, lanes, some, tables);
            }
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
#pragma unroll
                for (unsigned t = 0; t < T; t++) {
                    const float value = lanes_sum(sums[r][t], lanes);
                    if (lane == t % lanes && begin + r < n_out && token + t < n_tokens) {
                        y[(size_t)(token + t) * n_out + begin + r] = value;
                    }
                }
            }
        }
    }
}

// One token.
KERNEL(across_one)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* group_weight,
                   const unsigned* filled, float* y, unsigned row_words, unsigned n_cols, unsigned n_out,
                   unsigned n_filled, unsigned n_group, unsigned n_tokens, unsigned lanes) {
    across_few_tokens<1>(weight, tables, x, group_weight, filled, y, row_words, n_cols, n_out, n_filled, n_group, n_tokens,
                         lanes);
}
EXPORT(across_one)

// Up to 16.
KERNEL(across_few)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* group_weight,
                   const unsigned* filled, float* y, unsigned row_words, unsigned n_cols, unsigned n_out,
                   unsigned n_filled, unsigned n_group, unsigned n_tokens, unsigned lanes) {
    across_few_tokens<4>(weight, tables, x, group_weight, filled, y, row_words, n_cols, n_out, n_filled, n_group, n_tokens,
                         lanes);
}
EXPORT(across_few)

// y[t] = sum, over the experts g that token t uses, of down_g . h[t, rows of g]. A down matrix has
// one row per output, and the matrices of all experts that have rows are stacked. For decode: a fixed
// number of lanes together compute two outputs at once. The experts are dealt to the slices of the
// grid's second dimension, so that a device has enough blocks; each slice has sums of its own.

#include "dialect.h"
#include "lib/dots.cuh"
#include "lib/groups.cuh"

typedef FORMAT W;

// The matrices of a block, and the neuron values that they are multiplied with.
struct AcrossStep {
    const unsigned* weight;
    const unsigned* tables;
    const unsigned* x;
    const unsigned* used;
    unsigned n_used, row_words, n_cols, n_out, matrix_words;

    DEVICE const unsigned* row(unsigned k, unsigned output) const {
        return weight + ((size_t)used[k] * n_out + output) * row_words;
    }
    DEVICE const unsigned* values(unsigned k) const { return x + (size_t)used[k] * matrix_words; }
};

// Adds up a lane's units of two outputs of one token, over all matrices. It does not stop between
// matrices, so that the loads of the next matrix overlap with the sums of the last. The order of
// additions is that of one matrix after the other.
static DEVICE void across_one_token(float (&sums)[2][1], const AcrossStep& p, const unsigned (&outputs)[2], unsigned lane,
                                    unsigned lanes) {
    constexpr unsigned U = 4;
    const unsigned n = Units<W>::count(p.n_cols);
    unsigned k = lane < n ? 0 : p.n_used, i = lane;
    while (k < p.n_used) {
        typename Units<W>::Raw raw[2][U];
        unsigned matrices[U], units[U];
#pragma unroll
        for (unsigned u = 0; u < U; u++) {
            matrices[u] = k;
            units[u] = i;
            if (u > 0 && k >= p.n_used) continue;
#pragma unroll
            for (unsigned r = 0; r < 2; r++) raw[r][u] = Units<W>::load(p.row(k, outputs[r]), n, i);
            i += lanes;
            if (i >= n) {
                i = lane;
                k++;
            }
        }
#pragma unroll
        for (unsigned u = 0; u < U; u++) {
            if (u > 0 && matrices[u] >= p.n_used) continue;
            const Rows x = {p.values(matrices[u]), 0, 1};
            Units<W>::template add<2, 1, U>(sums, raw, u, units[u], x, p.tables);
        }
    }
}

// `filled` lists the experts of the `n_filled` matrices, of `n_cols` columns each.
template <unsigned T>
static DEVICE void across_few_tokens(const unsigned* weight, const unsigned* tables, const unsigned* x,
                                     const float* group_weight, const unsigned* filled, float* y, unsigned row_words,
                                     unsigned n_cols, unsigned n_out, unsigned n_filled, unsigned n_group,
                                     unsigned n_tokens, unsigned lanes) {
    SHARED(unsigned, masks, 32);
    SHARED(unsigned, used, MAX_LISTED_GROUPS);
    // By the expert alone, so that a token's sums do not depend on the other tokens.
    const unsigned slice = block_index().y, n_slices = grid_size().y;
    const unsigned n_used = list_used(n_filled, used, masks, [=](unsigned m) {
        return m % n_slices == slice && is_used(group_weight, n_group, n_tokens, filled[m]);
    });
    y += (size_t)slice * n_tokens * n_out;
    const unsigned per = 2 * (block_size().x / lanes), lane = thread() & (lanes - 1);
    const unsigned matrix_words = W::FLOAT ? n_cols : n_cols / 32 * Q8_WORDS, x_words = n_filled * matrix_words;
    for (unsigned first = per * block_index().x; first < n_out; first += per * grid_size().x) {
        const unsigned begin = first + 2 * (thread() / lanes);
        const unsigned outputs[2] = {begin < n_out ? begin : n_out - 1, begin + 1 < n_out ? begin + 1 : n_out - 1};
        for (unsigned token = 0; token < n_tokens; token += T) {
            float sums[2][T] = {};
            const AcrossStep step = {weight, tables, x + (size_t)token * x_words, used, n_used,
                                     row_words, n_cols, n_out, matrix_words};
            bool is_done = false;
            if constexpr (T == 1) {
                is_done = has_whole_units<W>(n_cols);
                if (is_done) across_one_token(sums, step, outputs, lane, lanes);
            }
            for (unsigned k = 0; !is_done && k < n_used; k++) {
                const unsigned* const rows[2] = {step.row(k, outputs[0]), step.row(k, outputs[1])};
                const Rows some = {step.values(k), x_words, n_tokens - token};
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

KERNEL(across_one)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* group_weight,
                   const unsigned* filled, float* y, unsigned row_words, unsigned n_cols, unsigned n_out,
                   unsigned n_filled, unsigned n_group, unsigned, unsigned lanes) {
    across_few_tokens<1>(weight, tables, x, group_weight, filled, y, row_words, n_cols, n_out, n_filled, n_group, 1, lanes);
}
EXPORT(across_one)

// For up to 16 tokens.
KERNEL(across_few)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* group_weight,
                   const unsigned* filled, float* y, unsigned row_words, unsigned n_cols, unsigned n_out,
                   unsigned n_filled, unsigned n_group, unsigned n_tokens, unsigned lanes) {
    across_few_tokens<4>(weight, tables, x, group_weight, filled, y, row_words, n_cols, n_out, n_filled, n_group, n_tokens,
                         lanes);
}
EXPORT(across_few)

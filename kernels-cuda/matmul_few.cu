// y[t, i] = weight[i] . x[t] + bias[i], for decode (GEMV): a fixed number of lanes together
// compute two rows at once. With several heads, each has its rows of the weight and its part of x[t]
// and y[t].
#include "dialect.h"
#include "lib/dots.cuh"

typedef FORMAT W;

// The heads of a product: x_head is the number of words from one head of x to the next, y_head of y.
struct Heads {
    unsigned at, n, x_head, y_head;
};

// What is done with a value: a bit each for ReLU and for adding it to y.
constexpr unsigned RELU = 1, ADD = 2;

// Computes the rows of block `block` of `n_blocks`, of one head; `n_rows` are those of a head.
template <unsigned R, unsigned T>
DEVICE void matmul_few_tokens(unsigned block, unsigned n_blocks, const unsigned* weight, const unsigned* tables, const unsigned* x,
                              const float* bias, float* y, unsigned n_rows, unsigned row_words, unsigned n_cols,
                              unsigned n_tokens, unsigned lanes, unsigned after, Heads heads) {
    const unsigned per = block_size().x / lanes;
    const unsigned lane = thread() & (lanes - 1);
    const unsigned group = thread() / lanes;
    const unsigned x_words = heads.n * heads.x_head, y_cols = heads.n * heads.y_head;
    weight += (size_t)heads.at * n_rows * row_words;
    x += (size_t)heads.at * heads.x_head;
    y += (size_t)heads.at * heads.y_head;
    const unsigned n_pairs = (n_rows + R - 1) / R;
    for (unsigned first = per * block; first < n_pairs; first += per * n_blocks) {
        const unsigned begin = R * (first + group);
        const unsigned* rows[R];
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            const unsigned row = begin + r < n_rows ? begin + r : n_rows - 1;
            rows[r] = weight + (size_t)row * row_words;
        }
        for (unsigned token = 0; token < n_tokens; token += T) {
            float sums[R][T] = {};
            const Rows some = {x + (size_t)token * x_words, x_words, n_tokens - token};
            row_dots<W, R, T, T == 1 ? 4 : T <= 4 ? 2 : 1>(sums, rows, n_cols, lane, lanes, some, tables);
#pragma unroll
            for (unsigned r = 0; r < R; r++) {
#pragma unroll
                for (unsigned t = 0; t < T; t++) {
                    float value = lanes_sum(sums[r][t], lanes);
                    if (lane == t % lanes && begin + r < n_rows && token + t < n_tokens) {
                        if (bias != nullptr) value += bias[begin + r];
                        if ((after & RELU) != 0) value = value <= 0.0f ? 0.0f : value;
                        float* const to = y + (size_t)(token + t) * y_cols + begin + r;
                        *to = (after & ADD) != 0 ? value + *to : value;
                    }
                }
            }
        }
    }
}

// The numbers of active neurons of a feed-forward block, if this is its down projection.
DEVICE void add_counts(const unsigned* counts, float* active, unsigned n_tokens) {
    if (counts != nullptr && block_index().x == 0 && thread() < n_tokens) active[thread()] += (float)counts[thread()];
}

// Grid: x has the blocks of a head's rows, y the heads.
KERNEL(matmul_one)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias, float* y,
                   unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned x_head, unsigned y_head, unsigned lanes,
                   unsigned after, const unsigned* counts, float* active) {
    const Heads heads{block_index().y, grid_size().y, x_head, y_head};
    add_counts(counts, active, 1);
    matmul_few_tokens<2, 1>(block_index().x, grid_size().x, weight, tables, x, bias, y, n_rows, row_words, n_cols, 1, lanes, after, heads);
}
EXPORT(matmul_one)

// For one token and up to three matrices with the same number of columns. The grid has the blocks of
// the first matrix, then those of the second and of the third.
struct Matrix {
    const unsigned* weight;
    const float* bias;
    float* y;
    unsigned n_rows, n_blocks;
};

KERNEL(matmul_three)(const unsigned* weight_a, const unsigned* weight_b, const unsigned* weight_c, const float* bias_a,
                     const float* bias_b, const float* bias_c, float* y_a, float* y_b, float* y_c, const unsigned* tables,
                     const unsigned* x, unsigned rows_a, unsigned rows_b, unsigned rows_c, unsigned blocks_a,
                     unsigned blocks_b, unsigned blocks_c, unsigned row_words, unsigned n_cols, unsigned lanes) {
    unsigned block = block_index().x;
    Matrix of = {weight_a, bias_a, y_a, rows_a, blocks_a};
    if (block >= blocks_a) {
        block -= blocks_a;
        of = {weight_b, bias_b, y_b, rows_b, blocks_b};
        if (block >= blocks_b) {
            block -= blocks_b;
            of = {weight_c, bias_c, y_c, rows_c, blocks_c};
        }
    }
    matmul_few_tokens<2, 1>(block, of.n_blocks, of.weight, tables, x, of.bias, of.y, of.n_rows, row_words, n_cols, 1, lanes, 0, Heads{});
}
EXPORT(matmul_three)

// For 4 or 8 tokens at a time: weights are unpacked once for all of them.
KERNEL(matmul_four)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias, float* y,
                    unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned x_head, unsigned y_head,
                    unsigned n_tokens, unsigned lanes, unsigned after, const unsigned* counts, float* active) {
    const Heads heads{block_index().y, grid_size().y, x_head, y_head};
    add_counts(counts, active, n_tokens);
    matmul_few_tokens<2, 4>(block_index().x, grid_size().x, weight, tables, x, bias, y, n_rows, row_words, n_cols, n_tokens, lanes, after, heads);
}
EXPORT(matmul_four)

KERNEL(matmul_eight)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias, float* y,
                     unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned x_head, unsigned y_head,
                     unsigned n_tokens, unsigned lanes, unsigned after, const unsigned* counts, float* active) {
    const Heads heads{block_index().y, grid_size().y, x_head, y_head};
    add_counts(counts, active, n_tokens);
    matmul_few_tokens<2, 8>(block_index().x, grid_size().x, weight, tables, x, bias, y, n_rows, row_words, n_cols, n_tokens, lanes, after, heads);
}
EXPORT(matmul_eight)

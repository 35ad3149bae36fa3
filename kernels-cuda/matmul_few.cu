// y[t, i] = weight[i] . x[t] + bias[i], for few tokens: a fixed number of lanes to a row, two rows to a group of lanes.
#include "dialect.h"
#include "lib/dots.cuh"

typedef FORMAT W;

template <unsigned R, unsigned T>
DEVICE void matmul_few_tokens(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias, float* y,
                              unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned n_tokens, unsigned lanes,
                              unsigned relu) {
    const unsigned per = block_size().x / lanes;
    const unsigned lane = thread() & (lanes - 1);
    const unsigned group = thread() / lanes;
    const unsigned x_words = W::FLOAT ? n_cols : n_cols / 32 * Q8_WORDS;
    const unsigned n_pairs = (n_rows + R - 1) / R;
    for (unsigned first = per * block_index().x; first < n_pairs; first += per * grid_size().x) {
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
                        if (relu != 0) value = value <= 0.0f ? 0.0f : value;
                        y[(size_t)(token + t) * n_rows + begin + r] = value;
                    }
                }
            }
        }
    }
}

// One token.
KERNEL(matmul_one)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias, float* y,
                   unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned lanes, unsigned relu) {
    matmul_few_tokens<2, 1>(weight, tables, x, bias, y, n_rows, row_words, n_cols, 1, lanes, relu);
}
EXPORT(matmul_one)

// Up to 4, and up to 8 at a time: weights are taken apart once for so many.
KERNEL(matmul_four)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias, float* y,
                    unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned n_tokens, unsigned lanes,
                    unsigned relu) {
    matmul_few_tokens<2, 4>(weight, tables, x, bias, y, n_rows, row_words, n_cols, n_tokens, lanes, relu);
}
EXPORT(matmul_four)

KERNEL(matmul_eight)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias, float* y,
                     unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned n_tokens, unsigned lanes,
                     unsigned relu) {
    matmul_few_tokens<2, 8>(weight, tables, x, bias, y, n_rows, row_words, n_cols, n_tokens, lanes, relu);
}
EXPORT(matmul_eight)

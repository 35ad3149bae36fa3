// Code shared by prefill products: a block of 256 threads computes a tile of y, rows of the weight
// by tokens.
#pragma once
#include "lib/dots.cuh"

constexpr unsigned TILE_THREADS = 256;
constexpr unsigned TILE_TOKENS = 64;

// y[t, i] = weight[i] . x[t] + bias[i]. Bias may be null.
struct Product {
    const unsigned* weight;
    const unsigned* tables;
    const unsigned* x;
    const float* bias;
    float* y;
    unsigned y_cols, row_words, n_cols, relu;
};

// The rows and tokens of a product: all rows for all tokens, or an expert's rows for the tokens
// that use it (`experts.cu`).
struct Part {
    // Begin and end of the rows; number of tokens, or of pairs of a token and the expert.
    unsigned begin, end, n_tokens;
    // With experts: the first pair, and the token of each pair (null if x has a row per pair).
    unsigned first_pair;
    const unsigned* tokens;

    DEVICE unsigned x_row(unsigned i) const {
        return tokens == nullptr ? first_pair + i : tokens[first_pair + i] & 0xffffu;
    }
};

DEVICE Part part_of(const unsigned* pairs, const unsigned* group_rows, unsigned n_rows, unsigned n_tokens, unsigned n_group,
                    unsigned x_by_pair) {
    if (n_group == 0) return Part{0, n_rows, n_tokens, 0, nullptr};
    const unsigned g = block_index().z;
    const unsigned first = pairs[g];
    const unsigned* tokens = x_by_pair != 0 ? nullptr : pairs + n_group + 1;
    const unsigned end = group_rows[2 * g + 1];
    return Part{group_rows[2 * g], end < n_rows ? end : n_rows, pairs[g + 1] - first, first, tokens};
}

DEVICE void write_product(const Product& p, const Part& part, unsigned row, unsigned token, float value) {
    if (row >= part.end || token >= part.n_tokens) return;
    if (p.bias != nullptr) value += p.bias[row];
    if (p.relu != 0) value = value <= 0.0f ? 0.0f : value;
    p.y[(size_t)(part.first_pair + token) * p.y_cols + row - part.begin] = value;
}

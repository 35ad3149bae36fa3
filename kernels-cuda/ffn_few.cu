// The values of neurons for few tokens: gate first, up only where the gate shows that it counts. A fixed number of lanes
// to a neuron, two neurons to a group of lanes, over all rows, those of a list, or those of the groups that are used.
//
// Where gate and up have different formats, the gate's unit writes test values where the values will be (`up` null), and
// up's goes on from there (`test` null).

#include "dialect.h"
#include "lib/dots.cuh"
#include "lib/ffn.cuh"
#include "lib/groups.cuh"

typedef FORMAT W;

struct FfnMatrix {
    const unsigned* at;
    const float* bias;
};

// What the values of a step are made of.
struct FfnStep {
    FfnMatrix test, up;
    const unsigned* tables;
    const unsigned* x;
    const unsigned* ids;
    const unsigned* count;
    const unsigned* members;
    const float* threshold;
    const float* group_weight;
    const unsigned* starts;
    unsigned* h;
    unsigned* counts;
    unsigned n_rows, row_words, n_cols, n_tokens, lanes;
    // Most that a list holds, the words of its membership bits, and the bit of the first token.
    unsigned capacity, words, bit;
    unsigned n_group;
    // Where rows are walked by group, most of one; else 0.
    unsigned most_rows;
    FfnRule rule;
    float limit;
};

// By what a row, number i of the list, counts for a token: 0 where it does not.
static DEVICE float factor(const FfnStep& p, unsigned i, unsigned row, unsigned group, unsigned token) {
    if (row >= p.n_rows || token >= p.n_tokens) return 0.0f;
    if (p.ids != nullptr && (p.members[(size_t)i * p.words] >> (p.bit + token) & 1u) == 0) return 0.0f;
    return p.n_group == 0 ? 1.0f : p.group_weight[(size_t)token * p.n_group + group];
}

// Products of a matrix's row with T tokens, with its bias.
template <unsigned T>
static DEVICE void row_values(float (&values)[T], const FfnStep& p, const FfnMatrix& matrix, unsigned row, bool wanted,
                              unsigned lane, const Rows& x) {
    float sums[1][T] = {};
    if (wanted) {
        const unsigned* const rows[1] = {matrix.at + (size_t)row * p.row_words};
        row_dots<W, 1, T>(sums, rows, p.n_cols, lane, p.lanes, x, p.tables);
    }
    const float bias = wanted && matrix.bias != nullptr ? matrix.bias[row] : 0.0f;
#pragma unroll
    for (unsigned j = 0; j < T; j++) values[j] = lanes_sum(sums[0][j], p.lanes) + bias;
}

// The same of two rows of one matrix, or of one row of two.
template <unsigned T>
static DEVICE void two_rows(float (&first)[T], float (&second)[T], const FfnStep& p, const FfnMatrix (&matrices)[2],
                            const unsigned (&rows)[2], const bool (&wanted)[2], unsigned lane, const Rows& x) {
    float sums[2][T] = {};
    if (wanted[0] || wanted[1]) {
        const unsigned* const at[2] = {matrices[0].at + (size_t)rows[wanted[0] ? 0 : 1] * p.row_words,
                                       matrices[1].at + (size_t)rows[wanted[1] ? 1 : 0] * p.row_words};
        row_dots<W, 2, T>(sums, at, p.n_cols, lane, p.lanes, x, p.tables);
    }
    const float bias0 = wanted[0] && matrices[0].bias != nullptr ? matrices[0].bias[rows[0]] : 0.0f;
    const float bias1 = wanted[1] && matrices[1].bias != nullptr ? matrices[1].bias[rows[1]] : 0.0f;
#pragma unroll
    for (unsigned j = 0; j < T; j++) {
        first[j] = lanes_sum(sums[0][j], p.lanes) + bias0;
        second[j] = lanes_sum(sums[1][j], p.lanes) + bias1;
    }
}

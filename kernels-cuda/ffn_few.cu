// Computes neuron values in decode: gate first, up only for active neurons. The neurons are all rows,
// the rows of a list, or the rows of the used experts. At least 4 lanes together compute two neurons
// at once.
//
// If gate and up have different formats, two launches do this: the first writes test values (`up` is
// null), and the second turns them into neuron values (`test` is null).
//
// If the neurons are all rows of a matrix or of experts, and a matrix follows that takes Q8 blocks, a
// thread block computes whole blocks of 32 neurons and quantises them (`q`).

#include "dialect.h"
#include "lib/dots.cuh"
#include "lib/ffn.cuh"
#include "lib/groups.cuh"
#include "lib/quantize.cuh"
#include "lib/wide.cuh"

typedef FORMAT W;

// Blocks of 256 threads per multiprocessor, or twice as many of 128: the host launches that many of
// 128 (`PER_UNIT` in `ffn.rs`).
constexpr unsigned BLOCKS = 2;

// Number of units in flight for each of `n_rows` rows, so that registers suffice for BLOCKS blocks.
template <class F, unsigned T>
DEVICE constexpr unsigned units_ahead(unsigned n_rows) {
    if (T > 1) return 1;
    if constexpr (F::FLOAT) {
        return 4;
    } else {
        return n_rows > 1 && (F::TABLES || (F::MINS && !F::ONE) || sizeof(typename F::Raw) > 32) ? 2 : 4;
    }
}

struct FfnMatrix {
    const unsigned* at;
    const float* bias;
};

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
    unsigned* q;
    unsigned n_rows, row_words, n_cols, n_tokens, lanes;
    // Capacity of the row list, its membership words per row, and the bit of the first token.
    unsigned capacity, words, bit;
    unsigned n_group;
    // With experts, the number of rows of the largest expert; otherwise 0.
    unsigned most_rows;
    FfnRule rule;
};

// A neuron: its index in the list, row and expert.
struct FfnNeuron {
    unsigned i, row, group;
};

// Factor of a neuron for a token: 0 if the token does not use it.
static DEVICE float factor(const FfnStep& p, const FfnNeuron& at, unsigned token) {
    if (at.row >= p.n_rows || token >= p.n_tokens) return 0.0f;
    if (p.ids != nullptr && (p.members[(size_t)at.i * p.words] >> (p.bit + token) & 1u) == 0) return 0.0f;
    return p.n_group == 0 ? 1.0f : p.group_weight[(size_t)token * p.n_group + at.group];
}

// Products of a matrix's row with T tokens, with its bias.
template <unsigned T>
static DEVICE void row_values(float (&values)[T], const FfnStep& p, const FfnMatrix& matrix, unsigned row, bool wanted,
                              unsigned lane, const Rows& x) {
    float sums[1][T] = {};
    if (wanted) {
        const unsigned* const rows[1] = {matrix.at + (size_t)row * p.row_words};
        row_dots<W, 1, T, units_ahead<W, T>(1), W::FLOAT>(sums, rows, p.n_cols, lane, p.lanes, x, p.tables);
    }
    const float bias = wanted && matrix.bias != nullptr ? matrix.bias[row] : 0.0f;
#pragma unroll
    for (unsigned j = 0; j < T; j++) values[j] = lanes_sum(sums[0][j], p.lanes) + bias;
}

// Products of two rows of one matrix, or of one row of each of two matrices.
template <unsigned T>
static DEVICE void two_rows(float (&first)[T], float (&second)[T], const FfnStep& p, const FfnMatrix (&matrices)[2],
                            const unsigned (&rows)[2], const bool (&wanted)[2], unsigned lane, const Rows& x) {
    float sums[2][T] = {};
    if (wanted[0] || wanted[1]) {
        // Selects values instead of indexing, because a dynamic index would put the rows in local
        // memory.
        const unsigned first_row = wanted[0] ? rows[0] : rows[1], second_row = wanted[1] ? rows[1] : rows[0];
        const unsigned* const at[2] = {matrices[0].at + (size_t)first_row * p.row_words,
                                       matrices[1].at + (size_t)second_row * p.row_words};
        row_dots<W, 2, T, units_ahead<W, T>(2), W::FLOAT>(sums, at, p.n_cols, lane, p.lanes, x, p.tables);
    }
    const float bias0 = wanted[0] && matrices[0].bias != nullptr ? matrices[0].bias[rows[0]] : 0.0f;
    const float bias1 = wanted[1] && matrices[1].bias != nullptr ? matrices[1].bias[rows[1]] : 0.0f;
#pragma unroll
    for (unsigned j = 0; j < T; j++) {
        first[j] = lanes_sum(sums[0][j], p.lanes) + bias0;
        second[j] = lanes_sum(sums[1][j], p.lanes) + bias1;
    }
}

static DEVICE FfnNeuron neuron_of(const FfnStep& p, const unsigned* used, unsigned i, unsigned n) {
    FfnNeuron at = {i, p.n_rows, 0};
    if (i >= n) return at;
    if (p.most_rows != 0) {
        at.group = used[i / p.most_rows];
        const unsigned row = p.starts[at.group] + i % p.most_rows;
        if (row < p.starts[at.group + 1]) at.row = row;
        return at;
    }
    at.row = p.ids != nullptr ? p.ids[i] : i;
    if (p.n_group != 0 && at.row < p.n_rows) at.group = group_of(p.starts, p.n_group, at.row);
    return at;
}

// Whether `mine` is true for any of T tokens; T neighbouring lanes have a token each.
template <unsigned T>
static DEVICE bool of_any_token(bool mine) {
    unsigned some = mine ? 1 : 0;
#pragma unroll
    for (unsigned by = 1; by < T; by <<= 1) some |= shfl_xor(some, by);
    return some != 0;
}

template <unsigned T>
static DEVICE float pick(const float (&values)[T], unsigned j) {
    float value = values[0];
#pragma unroll
    for (unsigned k = 1; k < T; k++) value = j == k ? values[k] : value;
    return value;
}

// Computes a neuron, with factor `by`, for T tokens from its test values. Reads its row of up only if
// it is active for one of the tokens.
template <unsigned T>
static DEVICE void finish_neuron(const FfnStep& p, unsigned row, unsigned my_token, float by, float test,
                                 const float (&known_ups)[T], bool ups_are_known, unsigned lane, const Rows& x,
                                 unsigned* carried) {
    const bool here = row < p.n_rows;
    const float limit = here && p.threshold != nullptr ? p.threshold[row] : 0.0f;
    if (by != 0.0f && is_dropped(p.rule, test, limit, 0.0f)) by = 0.0f;
    float ups[T];
#pragma unroll
    for (unsigned j = 0; j < T; j++) ups[j] = known_ups[j];
    const bool alive = of_any_token<T>(by != 0.0f);
    if (p.up.at != nullptr && !ups_are_known) row_values<T>(ups, p, p.up, row, alive, lane, x);
    if (!here || lane >= T || my_token >= p.n_tokens) return;
    unsigned word = DROPPED;
    if (by != 0.0f && p.up.at == nullptr && p.rule.kind != 0) {
        word = carried_word(test);
    } else if (by != 0.0f) {
        word = carried_word(by * neuron(p.rule, test, pick<T>(ups, lane % T)));
        atomic_add(carried + my_token, 1u);
    }
    p.h[(size_t)my_token * p.n_rows + row] = word;
}

// Quantises the values of `count` of all `n` neurons from `first` on, which this thread block has
// written. An expert has whole blocks.
static DEVICE void quantize_neurons(const FfnStep& p, const unsigned* used, unsigned first, unsigned count, unsigned n) {
    barrier();
    const unsigned n_blocks = count / 32 * p.n_tokens, at_once = block_size().x / 8;
    // All threads run the same number of iterations, so that whole warps quantise together.
    for (unsigned begin = 0; begin < n_blocks; begin += at_once) {
        const unsigned i = begin + thread() / 8, token = i % p.n_tokens;
        const unsigned row = neuron_of(p, used, first + i / p.n_tokens * 32, n).row;
        const bool inside = i < n_blocks && row < p.n_rows;
        const size_t at = (size_t)token * p.n_rows + row;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (inside) v = load4(reinterpret_cast<const float*>(p.h) + at + 4 * (thread() & 7));
        quantize_block(v, p.q + at / 32 * Q8_WORDS, inside);
    }
}

template <unsigned T>
static DEVICE void ffn_few_tokens(const FfnStep& p) {
    SHARED(unsigned, carried, 16);
    SHARED(unsigned, masks, 32);
    SHARED(unsigned, used, MAX_LISTED_GROUPS);
    const unsigned t = thread();
    if (t < 16) carried[t] = 0;
    unsigned n = p.n_rows;
    if (p.ids != nullptr) n = *p.count < p.capacity ? *p.count : p.capacity;
    if (p.most_rows != 0) {
        const FfnStep* step = &p;
        n = p.most_rows * list_used(p.n_group, used, masks, [step](unsigned g) {
                return step->starts[g] < step->starts[g + 1] &&
                       is_used(step->group_weight, step->n_group, step->n_tokens, g);
            });
    }
    barrier();
    // Reads the rows of both matrices at once if no neuron is skipped, or if the list is so short that
    // every neuron has its own lanes: most listed neurons are active, and waiting for the test costs
    // more than reading. Otherwise tests two neurons at once. The choice does not change the result.
    const bool is_short = p.ids != nullptr && n <= block_size().x / p.lanes * grid_size().x;
    const bool together = (p.rule.skip == 0 || is_short) && p.test.at != nullptr && p.up.at != nullptr;
    const unsigned each = together ? 1 : 2;
    const FfnMatrix matrices[2] = {p.test, together ? p.up : p.test};
    const unsigned per = each * (block_size().x / p.lanes), lane = t & (p.lanes - 1);
    const unsigned x_words = W::FLOAT ? p.n_cols : p.n_cols / 32 * Q8_WORDS;
    // Powers of two, so that a stretch is a whole number of steps.
    const unsigned stretch = p.q == nullptr || per > 32 ? per : 32;
    for (unsigned first_of = stretch * block_index().x; first_of < n; first_of += stretch * grid_size().x) {
        for (unsigned base = first_of; base < first_of + stretch && base < n; base += per) {
            const unsigned first = base + each * (t / p.lanes);
            const FfnNeuron neurons[2] = {neuron_of(p, used, first, n), neuron_of(p, used, first + each - 1, n)};
            for (unsigned token = 0; token < p.n_tokens; token += T) {
                const Rows x = {p.x + (size_t)token * x_words, x_words, p.n_tokens - token};
                const unsigned my_token = token + lane % T;
                const float by[2] = {factor(p, neurons[0], my_token), factor(p, neurons[1], my_token)};
                const bool wanted[2] = {of_any_token<T>(by[0] != 0.0f), of_any_token<T>(by[1] != 0.0f)};
                float firsts[T] = {}, seconds[T] = {};
                if (p.test.at != nullptr) {
                    const unsigned rows[2] = {neurons[0].row, neurons[1].row};
                    two_rows<T>(firsts, seconds, p, matrices, rows, wanted, lane, x);
                } else {
                    const size_t token_at = (size_t)(my_token < p.n_tokens ? my_token : token) * p.n_rows;
                    const float one = wanted[0] ? from_bits(p.h[token_at + neurons[0].row]) : 0.0f;
                    const float other = wanted[1] ? from_bits(p.h[token_at + neurons[1].row]) : 0.0f;
#pragma unroll
                    for (unsigned j = 0; j < T; j++) firsts[j] = one, seconds[j] = other;
                }
                const float first_test = pick<T>(firsts, lane % T), second_test = pick<T>(seconds, lane % T);
#pragma unroll 1
                for (unsigned r = 0; r < each; r++) {
                    const unsigned row = r == 0 ? neurons[0].row : neurons[1].row;
                    finish_neuron<T>(p, row, my_token, r == 0 ? by[0] : by[1], r == 0 ? first_test : second_test, seconds,
                                     together, lane, x, carried);
                }
            }
        }
        if (p.q != nullptr) quantize_neurons(p, used, first_of, stretch, n);
    }
    barrier();
    if (t < p.n_tokens && carried[t] != 0) atomic_add(p.counts + t, carried[t]);
}

// The number of tokens is a compile-time constant, which saves registers. Missing biases, thresholds,
// lists and experts are null.
KERNEL_OF(256, BLOCKS, ffn_one)
(const unsigned* test, const unsigned* up, const unsigned* tables, const unsigned* x, const float* bias_test,
 const float* bias_up, const unsigned* ids, const unsigned* count, const unsigned* members, const float* threshold,
 const float* group_weight, const unsigned* starts, unsigned* h, unsigned* counts, unsigned* q, unsigned n_rows,
 unsigned row_words, unsigned n_cols, unsigned, unsigned lanes, unsigned capacity, unsigned words, unsigned bit, unsigned n_group,
 unsigned most_rows, unsigned kind, unsigned activation, unsigned skip, float alpha, float slope, float cap) {
    const FfnStep step = {{test, bias_test}, {up, bias_up}, tables, x, ids, count, members, threshold, group_weight, starts,
                          h, counts, q, n_rows, row_words, n_cols, 1, lanes, capacity, words, bit, n_group, most_rows,
                          {kind, activation, skip, alpha, slope, cap}};
    ffn_few_tokens<1>(step);
}
EXPORT(ffn_one)

// For up to 16 tokens.
KERNEL_OF(256, BLOCKS, ffn_few)
(const unsigned* test, const unsigned* up, const unsigned* tables, const unsigned* x, const float* bias_test,
 const float* bias_up, const unsigned* ids, const unsigned* count, const unsigned* members, const float* threshold,
 const float* group_weight, const unsigned* starts, unsigned* h, unsigned* counts, unsigned* q, unsigned n_rows,
 unsigned row_words, unsigned n_cols, unsigned n_tokens, unsigned lanes, unsigned capacity, unsigned words, unsigned bit, unsigned n_group,
 unsigned most_rows, unsigned kind, unsigned activation, unsigned skip, float alpha, float slope, float cap) {
    const FfnStep step = {{test, bias_test}, {up, bias_up}, tables, x, ids, count, members, threshold, group_weight, starts,
                          h, counts, q, n_rows, row_words, n_cols, n_tokens, lanes, capacity, words, bit, n_group, most_rows,
                          {kind, activation, skip, alpha, slope, cap}};
    ffn_few_tokens<4>(step);
}
EXPORT(ffn_few)

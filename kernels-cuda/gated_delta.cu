// The gated delta rule. A block holds some columns of one head's state of a sequence in registers,
// from the first token to the last: 32 columns in parallel, with 8 threads per column.
#include "lib/batch.cuh"
#include "lib/gate.cuh"

static constexpr unsigned COLUMNS = 32, GROUPS = 8;

// Most rows of a head's state whose decay factors a block holds.
static constexpr unsigned MAX_ROWS = 512;

// The sum over the threads of a column, in order.
static DEVICE float column_sum(const float* parts, unsigned column) {
    float sum = parts[column];
    for (unsigned g = 1; g < GROUPS; g++) sum += parts[g * COLUMNS + column];
    return sum;
}

// Value head h reads key head h % heads_modulo / heads_divisor.
#define DELTA_PARAMS                                                                                                         \
    const float *q, const float *k, const float *v, const float *decay, const float *beta, const float *dt_bias,           \
        const float *a, const unsigned *batch, float *state, float *y, unsigned max_tokens, unsigned n_rows,               \
        unsigned n_head_k, unsigned n_head_v, unsigned heads_modulo, unsigned heads_divisor, unsigned d_k, unsigned d_v,   \
        float bound, float scale
#define DELTA_ARGS                                                                                                          \
    q, k, v, decay, beta, dt_bias, a, batch, state, y, max_tokens, n_rows, n_head_k, n_head_v, heads_modulo, heads_divisor, \
        d_k, d_v, bound, scale

// The decay factor for x, decay plus bias, with the head's rate: with a bound, which is negative, the logarithm is
// between it and 0.
static DEVICE float decay_factor(float x, float rate, float bound) {
    return expf(bound < 0.0f ? bound * gate_sigmoid(rate * x) : rate * softplus(x));
}

// Up to ROWS rows per thread, each with a decay factor of its own if PER_ROW. `known` and `sums` are the products of the
// old state with the key and the query; with factors per row, the old state's rows are multiplied by them before. The
// product of the new state with the query follows, factor * sums + change * (k . q), so the threads of a column exchange
// values only once per token.
template <unsigned ROWS, bool PER_ROW>
DEVICE void gated_delta_of(DELTA_PARAMS) {
    // Double buffers: some threads read one token's sums while others write those of the next token.
    SHARED(float, known, 2 * GROUPS * COLUMNS);
    SHARED(float, sums, 2 * GROUPS * COLUMNS);
    SHARED(float, products, 2 * GROUPS);
    // Read before a token's last barrier and written after it.
    SHARED(float, factors, PER_ROW ? MAX_ROWS : 1);
    const Batch facts{batch, max_tokens};
    const unsigned h = block_index().y, seq = block_index().z, n_tokens = real_tokens(batch, n_rows);
    unsigned t = 0;
    while (t < n_tokens && facts.seq(t) != seq) t++;
    if (t == n_tokens) return;
    const unsigned column = thread() % COLUMNS, group = thread() / COLUMNS;
    const unsigned j = block_index().x * COLUMNS + column;
    const bool inside = j < d_v;
    float* own = state + (size_t(seq) * n_head_v + h) * d_k * d_v + j;
    const unsigned key_head = h % heads_modulo / heads_divisor;
    const float rate = a[h], offset = PER_ROW ? 0.0f : dt_bias[h];
    float held[ROWS];
    const bool fresh = facts.pos(t) == 0;
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++) {
        const unsigned i = group + GROUPS * r;
        held[r] = inside && i < d_k && !fresh ? own[size_t(i) * d_v] : 0.0f;
    }
    for (unsigned turn = 0; t < n_tokens; t++) {
        if (facts.seq(t) != seq) continue;
        const size_t token = size_t(t) * n_head_v + h;
        const bool begins = facts.pos(t) == 0;
        float factor = 1.0f;
        if (PER_ROW) {
            for (unsigned i = thread(); i < d_k; i += GROUPS * COLUMNS) {
                const float x = decay[token * d_k + i] + dt_bias[size_t(h) * d_k + i];
                factors[i] = begins ? 0.0f : decay_factor(x, rate, bound);
            }
            barrier();
        } else {
            factor = begins ? 0.0f : decay_factor(decay[token] + offset, rate, bound);
        }
        const size_t from = (size_t(t) * n_head_k + key_head) * d_k;
        const float *keys = k + from, *queries = q + from;
        float by_key = 0.0f, by_query = 0.0f, product = 0.0f;
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const unsigned i = group + GROUPS * r;
            if (i < d_k) {
                if (PER_ROW) held[r] *= factors[i];
                by_key = fmaf(held[r], keys[i], by_key);
                by_query = fmaf(held[r], queries[i], by_query);
                product = fmaf(keys[i], queries[i], product);
            }
        }
        float *known_now = known + turn * GROUPS * COLUMNS, *sums_now = sums + turn * GROUPS * COLUMNS;
        float* products_now = products + turn * GROUPS;
        known_now[thread()] = by_key;
        sums_now[thread()] = by_query;
        if (column == 0) products_now[group] = product;
        barrier();
        const float value = inside ? v[token * d_v + j] : 0.0f;
        const float change = gate_sigmoid(beta[token]) * (value - factor * column_sum(known_now, column));
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const unsigned i = group + GROUPS * r;
            if (i < d_k) held[r] = fmaf(change, keys[i], factor * held[r]);
        }
        if (inside && group == 0) {
            float product_sum = products_now[0];
            for (unsigned g = 1; g < GROUPS; g++) product_sum += products_now[g];
            y[token * d_v + j] = scale * fmaf(change, product_sum, factor * column_sum(sums_now, column));
        }
        turn = 1 - turn;
    }
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++) {
        const unsigned i = group + GROUPS * r;
        if (inside && i < d_k) own[size_t(i) * d_v] = held[r];
    }
}

KERNEL(gated_delta_64)(DELTA_PARAMS) { gated_delta_of<8, false>(DELTA_ARGS); }
EXPORT(gated_delta_64)

KERNEL(gated_delta_rows_64)(DELTA_PARAMS) { gated_delta_of<8, true>(DELTA_ARGS); }
EXPORT(gated_delta_rows_64)

KERNEL(gated_delta_128)(DELTA_PARAMS) { gated_delta_of<16, false>(DELTA_ARGS); }
EXPORT(gated_delta_128)

KERNEL(gated_delta_rows_128)(DELTA_PARAMS) { gated_delta_of<16, true>(DELTA_ARGS); }
EXPORT(gated_delta_rows_128)

KERNEL(gated_delta_512)(DELTA_PARAMS) { gated_delta_of<64, false>(DELTA_ARGS); }
EXPORT(gated_delta_512)

KERNEL(gated_delta_rows_512)(DELTA_PARAMS) { gated_delta_of<64, true>(DELTA_ARGS); }
EXPORT(gated_delta_rows_512)

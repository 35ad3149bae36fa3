// The gated delta rule. A block holds some columns of one head's state of a sequence in registers,
// from the first token to the last: 32 columns in parallel, with 8 threads per column.
#include "lib/batch.cuh"
#include "lib/gate.cuh"

static constexpr unsigned COLUMNS = 32, GROUPS = 8;

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
        float scale
#define DELTA_ARGS                                                                                                          \
    q, k, v, decay, beta, dt_bias, a, batch, state, y, max_tokens, n_rows, n_head_k, n_head_v, heads_modulo, heads_divisor, \
        d_k, d_v, scale

// Up to ROWS rows per thread. `known` and `sums` are the products of the old state with the key and
// the query. The product of the new state with the query follows from them, factor * sums +
// change * (k . q), so the threads of a column exchange values only once per token.
template <unsigned ROWS>
DEVICE void gated_delta_of(DELTA_PARAMS) {
    // Double buffers: some threads read one token's sums while others write those of the next token.
    SHARED(float, known, 2 * GROUPS * COLUMNS);
    SHARED(float, sums, 2 * GROUPS * COLUMNS);
    SHARED(float, products, 2 * GROUPS);
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
    const float rate = a[h], offset = dt_bias[h];
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
        const float factor = facts.pos(t) == 0 ? 0.0f : expf(rate * softplus(decay[token] + offset));
        const size_t from = (size_t(t) * n_head_k + key_head) * d_k;
        const float *keys = k + from, *queries = q + from;
        float by_key = 0.0f, by_query = 0.0f, product = 0.0f;
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const unsigned i = group + GROUPS * r;
            if (i < d_k) {
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

KERNEL(gated_delta_64)(DELTA_PARAMS) { gated_delta_of<8>(DELTA_ARGS); }
EXPORT(gated_delta_64)

KERNEL(gated_delta_128)(DELTA_PARAMS) { gated_delta_of<16>(DELTA_ARGS); }
EXPORT(gated_delta_128)

KERNEL(gated_delta_512)(DELTA_PARAMS) { gated_delta_of<64>(DELTA_ARGS); }
EXPORT(gated_delta_512)

// The gated delta rule. A block has some columns of one head's state of a sequence in its registers, from the first token to
// the last: 32 columns side by side, the rows of each shared by 8 threads.
#include "lib/batch.cuh"

static constexpr unsigned COLUMNS = 32, GROUPS = 8;

// The sum of what the threads of a column have, in their order.
static DEVICE float column_sum(const float* parts, unsigned column) {
    float sum = parts[column];
    for (unsigned g = 1; g < GROUPS; g++) sum += parts[g * COLUMNS + column];
    return sum;
}

// Up to ROWS rows to a thread.
template <unsigned ROWS>
DEVICE void gated_delta_of(const float* q, const float* k, const float* v, const float* decay, const float* beta,
    const unsigned* batch, float* state, float* y, unsigned max_tokens, unsigned n_rows, unsigned n_head, unsigned d_k,
    unsigned d_v, float scale) {
    SHARED(float, known, GROUPS * COLUMNS);
    SHARED(float, sums, GROUPS * COLUMNS);
    const Batch facts{batch, max_tokens};
    const unsigned h = block_index().y, seq = block_index().z;
    if (seq >= facts.seqs()) return;
    const unsigned column = thread() % COLUMNS, group = thread() / COLUMNS;
    const unsigned j = block_index().x * COLUMNS + column;
    const bool inside = j < d_v;
    float* own = state + (size_t(seq) * n_head + h) * d_k * d_v + j;
    float held[ROWS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++) {
        const unsigned i = group + GROUPS * r;
        held[r] = inside && i < d_k ? own[size_t(i) * d_v] : 0.0f;
    }
    const unsigned n_tokens = real_tokens(batch, n_rows);
    for (unsigned t = 0; t < n_tokens; t++) {
        if (facts.seq(t) != seq) continue;
        const bool begins = facts.pos(t) == 0;
        const size_t token = size_t(t) * n_head + h;
        const float factor = expf(decay[token]);
        const float *keys = k + token * d_k, *queries = q + token * d_k;
        float sum = 0.0f;
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const unsigned i = group + GROUPS * r;
            held[r] = begins ? 0.0f : factor * held[r];
            if (i < d_k) sum = fmaf(held[r], keys[i], sum);
        }
        known[thread()] = sum;
        barrier();
        const float value = inside ? v[token * d_v + j] : 0.0f;
        const float change = beta[token] * (value - column_sum(known, column));
        sum = 0.0f;
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            const unsigned i = group + GROUPS * r;
            if (i < d_k) {
                held[r] = fmaf(change, keys[i], held[r]);
                sum = fmaf(held[r], queries[i], sum);
            }
        }
        // Those of the token before were read before the barrier above, and `known` is read before the one below.
        sums[thread()] = sum;
        barrier();
        if (inside && group == 0) y[token * d_v + j] = scale * column_sum(sums, column);
    }
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++) {
        const unsigned i = group + GROUPS * r;
        if (inside && i < d_k) own[size_t(i) * d_v] = held[r];
    }
}

KERNEL(gated_delta_64)(const float* q, const float* k, const float* v, const float* decay, const float* beta,
    const unsigned* batch, float* state, float* y, unsigned max_tokens, unsigned n_rows, unsigned n_head, unsigned d_k,
    unsigned d_v, float scale) {
    gated_delta_of<8>(q, k, v, decay, beta, batch, state, y, max_tokens, n_rows, n_head, d_k, d_v, scale);
}
EXPORT(gated_delta_64)

KERNEL(gated_delta_128)(const float* q, const float* k, const float* v, const float* decay, const float* beta,
    const unsigned* batch, float* state, float* y, unsigned max_tokens, unsigned n_rows, unsigned n_head, unsigned d_k,
    unsigned d_v, float scale) {
    gated_delta_of<16>(q, k, v, decay, beta, batch, state, y, max_tokens, n_rows, n_head, d_k, d_v, scale);
}
EXPORT(gated_delta_128)

KERNEL(gated_delta_512)(const float* q, const float* k, const float* v, const float* decay, const float* beta,
    const unsigned* batch, float* state, float* y, unsigned max_tokens, unsigned n_rows, unsigned n_head, unsigned d_k,
    unsigned d_v, float scale) {
    gated_delta_of<64>(q, k, v, decay, beta, batch, state, y, max_tokens, n_rows, n_head, d_k, d_v, scale);
}
EXPORT(gated_delta_512)

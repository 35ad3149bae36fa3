// RWKV-6's recurrence. A block holds some columns of one head's state of a sequence in registers, from the first token to
// the last: 32 columns in parallel, with 8 threads per column.
#include "lib/batch.cuh"

// Columns of a block, threads per column, and rows per thread: heads have up to 128 rows.
static constexpr unsigned COLUMNS = 32, GROUPS = 8, ROWS = 16;

// The output follows from the products of the old state, so the threads of a column exchange
// values only once per token.
KERNEL(wkv6)(const float* r, const float* w, const float* k, const float* v, const float* first, const unsigned* batch,
    float* state, float* y, unsigned max_tokens, unsigned n_rows, unsigned n_head, unsigned d) {
    // The sums of the products of the old state, and of the weights of the token's value. Double buffers: some threads read
    // one token's sums while others write those of the next token.
    SHARED(float, parts, 4 * GROUPS * COLUMNS);
    const Batch facts{batch, max_tokens};
    const unsigned h = block_index().y, seq = block_index().z, n_tokens = real_tokens(batch, n_rows);
    unsigned t = 0;
    while (t < n_tokens && facts.seq(t) != seq) t++;
    if (t == n_tokens) return;
    const unsigned column = thread() % COLUMNS, group = thread() / COLUMNS;
    const unsigned j = block_index().x * COLUMNS + column;
    const bool inside = j < d;
    float* own = state + (size_t(seq) * n_head + h) * d * d + j;
    float held[ROWS];
    const bool fresh = facts.pos(t) == 0;
#pragma unroll
    for (unsigned row = 0; row < ROWS; row++) {
        const unsigned i = group + GROUPS * row;
        held[row] = inside && i < d && !fresh ? own[size_t(i) * d] : 0.0f;
    }
    for (unsigned turn = 0; t < n_tokens; t++) {
        if (facts.seq(t) != seq) continue;
        const size_t from = (size_t(t) * n_head + h) * d;
        const bool begins = facts.pos(t) == 0;
        const float value = inside ? v[from + j] : 0.0f;
        float of_state = 0.0f, weight = 0.0f;
#pragma unroll
        for (unsigned row = 0; row < ROWS; row++) {
            const unsigned i = group + GROUPS * row;
            if (begins) held[row] = 0.0f;
            if (i < d) {
                const float receptance = r[from + i], decay = expf(-expf(w[from + i]));
                float key = k[from + i];
                if (first != nullptr) {
                    // The output reads the state before its decay.
                    of_state = fmaf(held[row], receptance, of_state);
                    weight = fmaf(key, receptance * first[h * d + i], weight);
                } else {
                    key *= 1.0f - decay;
                    of_state = fmaf(held[row], decay * receptance, of_state);
                    weight = fmaf(key, receptance, weight);
                }
                held[row] = fmaf(key, value, decay * held[row]);
            }
        }
        float* now = parts + turn * 2 * GROUPS * COLUMNS;
        now[thread()] = of_state;
        now[GROUPS * COLUMNS + thread()] = weight;
        barrier();
        if (inside && group == 0) {
            for (unsigned g = 1; g < GROUPS; g++) {
                of_state += now[g * COLUMNS + column];
                weight += now[(GROUPS + g) * COLUMNS + column];
            }
            y[from + j] = fmaf(weight, value, of_state);
        }
        turn = 1 - turn;
    }
#pragma unroll
    for (unsigned row = 0; row < ROWS; row++) {
        const unsigned i = group + GROUPS * row;
        if (inside && i < d) own[size_t(i) * d] = held[row];
    }
}
EXPORT(wkv6)

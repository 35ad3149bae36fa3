// RWKV-7's recurrence. A block holds some columns of one head's state of a sequence in registers, from the first token to
// the last: 32 columns in parallel, with 8 threads per column.
#include "lib/batch.cuh"
#include "lib/gate.cuh"

// Columns of a block, threads per column, and rows per thread: heads have up to 64 rows.
static constexpr unsigned COLUMNS = 32, GROUPS = 8, ROWS = 8;

// Sums over the threads of a column: products of the old state, and products that are the same for all columns.
enum Part : unsigned { KNOWN, KEPT, LENGTH, K_DOT_R, U_DOT_R, WEIGHT, N_PARTS };

// The output follows from the products of the old state, so the threads of a column exchange
// values only once per token.
KERNEL(wkv7)(const float* r, const float* w, const float* k, const float* v, const float* a, const float* first,
    const float* mix, const float* vectors, const unsigned* batch, float* state, float* y, float* bonus, unsigned max_tokens,
    unsigned n_rows, unsigned n_head, unsigned d, float decay_factor, float min_norm) {
    // Double buffers: some threads read one token's sums while others write those of the next token.
    SHARED(float, parts, 2 * N_PARTS * GROUPS * COLUMNS);
    const Batch facts{batch, max_tokens};
    const unsigned h = block_index().y, seq = block_index().z, n_tokens = real_tokens(batch, n_rows);
    unsigned t = 0;
    while (t < n_tokens && facts.seq(t) != seq) t++;
    if (t == n_tokens) return;
    const unsigned column = thread() % COLUMNS, group = thread() / COLUMNS;
    const unsigned j = block_index().x * COLUMNS + column, n = n_head * d;
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
        const size_t from = size_t(t) * n + h * d;
        const bool begins = facts.pos(t) == 0;
        float sums[N_PARTS] = {};
        float decays[ROWS], removed[ROWS], keys[ROWS];
#pragma unroll
        for (unsigned row = 0; row < ROWS; row++) {
            const unsigned i = group + GROUPS * row;
            if (begins) held[row] = 0.0f;
            decays[row] = removed[row] = keys[row] = 0.0f;
            if (i < d) {
                const unsigned at = h * d + i;
                const float rate = gate_sigmoid(a[from + i]), receptance = r[from + i], raw = k[from + i];
                const float u = raw * vectors[at];
                decays[row] = expf(decay_factor * gate_sigmoid(w[from + i]));
                keys[row] = raw * fmaf(vectors[n + at], rate - 1.0f, 1.0f);
                removed[row] = u * rate;
                sums[KNOWN] = fmaf(held[row], u, sums[KNOWN]);
                sums[KEPT] = fmaf(held[row], decays[row] * receptance, sums[KEPT]);
                sums[LENGTH] = fmaf(u, u, sums[LENGTH]);
                sums[K_DOT_R] = fmaf(keys[row], receptance, sums[K_DOT_R]);
                sums[U_DOT_R] = fmaf(removed[row], receptance, sums[U_DOT_R]);
                sums[WEIGHT] = fmaf(keys[row], receptance * vectors[2 * size_t(n) + at], sums[WEIGHT]);
            }
        }
        float* now = parts + turn * N_PARTS * GROUPS * COLUMNS;
#pragma unroll
        for (unsigned part = 0; part < N_PARTS; part++) now[part * GROUPS * COLUMNS + thread()] = sums[part];
        barrier();
#pragma unroll
        for (unsigned part = 0; part < N_PARTS; part++) {
            const float* own_part = now + part * GROUPS * COLUMNS + column;
            sums[part] = own_part[0];
            for (unsigned g = 1; g < GROUPS; g++) sums[part] += own_part[g * COLUMNS];
        }
        // `u` has length 1 after a division by `length`.
        const float length = fmaxf(sqrtf(sums[LENGTH]), min_norm);
        const float known = divide(divide(sums[KNOWN], length), length);
        float value = inside ? v[from + j] : 0.0f;
        if (first != nullptr && inside) value += gate_sigmoid(mix[from + j]) * (first[from + j] - value);
#pragma unroll
        for (unsigned row = 0; row < ROWS; row++) {
            const float added = fmaf(keys[row], value, decays[row] * held[row]);
            held[row] = fmaf(-removed[row], known, added);
        }
        if (inside && group == 0) {
            y[from + j] = fmaf(-known, sums[U_DOT_R], fmaf(value, sums[K_DOT_R], sums[KEPT]));
            bonus[from + j] = fmaf(sums[WEIGHT], value, vectors[3 * size_t(n) + h * d + j]);
        }
        turn = 1 - turn;
    }
#pragma unroll
    for (unsigned row = 0; row < ROWS; row++) {
        const unsigned i = group + GROUPS * row;
        if (inside && i < d) own[size_t(i) * d] = held[row];
    }
}
EXPORT(wkv7)

// The recurrence of Mamba-1 and Mamba-2: neighbouring threads share a channel and hold its state from the first
// token to the last.
#include "lib/batch.cuh"
#include "lib/gate.cuh"
#include "lib/sums.cuh"

// Number of states of a channel that a thread holds.
static constexpr unsigned SSM_HELD = 16;

KERNEL(ssm_scan)(const float* x, const float* dt, const float* dt_bias, const float* a, const float* b, const float* c,
    const float* d, const unsigned* batch, float* state, float* y, unsigned max_tokens, unsigned n_rows, unsigned n_head,
    unsigned n_group, unsigned d_head, unsigned d_state, unsigned lanes,
    unsigned n_rates) {
    const Batch facts{batch, max_tokens};
    const unsigned seq = block_index().y, n = n_head * d_head;
    if (seq >= facts.seqs()) return;
    const unsigned near = thread() % lanes;
    const unsigned wanted = block_index().x * (block_size().x / lanes) + thread() / lanes;
    // Keeps warps whole: threads without a channel repeat the last one and write nothing.
    const bool inside = wanted < n;
    const unsigned channel = inside ? wanted : n - 1;
    const unsigned h = channel / d_head;
    const unsigned group = unsigned(size_t(h) * n_group / n_head);
    float* own = state + (size_t(seq) * n + channel) * d_state;
    float held[SSM_HELD];
#pragma unroll
    for (unsigned r = 0; r < SSM_HELD; r++) held[r] = near + lanes * r < d_state ? own[near + lanes * r] : 0.0f;
    const float* rates = a + size_t(h) * n_rates;
    const float rate = rates[0], offset = dt_bias[h], skip = d[h];
    const unsigned n_tokens = real_tokens(batch, n_rows);
    for (unsigned t = 0; t < n_tokens; t++) {
        if (facts.seq(t) != seq) continue;
        const bool begins = facts.pos(t) == 0;
        const float raw = dt[size_t(t) * n_head + h] + offset;
        const float step = softplus(raw);
        const float factor = expf(step * rate);
        const float value = x[size_t(t) * n + channel];
        const size_t from = (size_t(t) * n_group + group) * d_state;
        float sum = 0.0f;
#pragma unroll
        for (unsigned r = 0; r < SSM_HELD; r++) {
            const unsigned i = near + lanes * r;
            if (i < d_state) {
                const float decay = n_rates > 1 ? expf(step * rates[i]) : factor;
                const float before = begins ? 0.0f : decay * held[r];
                held[r] = fmaf(step * value, b[from + i], before);
                sum = fmaf(held[r], c[from + i], sum);
            }
        }
        sum = sum_near(sum, lanes);
        if (inside && near == 0) y[size_t(t) * n + channel] = fmaf(skip, value, sum);
    }
#pragma unroll
    for (unsigned r = 0; r < SSM_HELD; r++) {
        if (inside && near + lanes * r < d_state) own[near + lanes * r] = held[r];
    }
}
EXPORT(ssm_scan)

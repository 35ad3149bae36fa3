// The spans of a head put together in their order, with its sink; a block to a head of a token.
#include "lib/attention.cuh"

using namespace attention;

static constexpr unsigned MOST_SPANS = 128;

KERNEL(attention_merge)(const float* all_parts, const float* sinks, const unsigned* batch, float* y, unsigned max_tokens,
    unsigned n_rows, unsigned n_head, unsigned d_value, unsigned n_spans, unsigned span_size, unsigned window) {
    SHARED(float, weights, MOST_SPANS);
    const Batch facts{batch, max_tokens};
    const unsigned head = block_index().x, t = block_index().y;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned pos = facts.pos(t);
    const unsigned from = first_seen(pos, window) / span_size, n = pos / span_size + 1 - from;
    const size_t at = size_t(t) * n_head + head;
    const Parts parts(const_cast<float*>(all_parts), n_rows, n_head, n_spans, d_value);
    const float* own = parts.facts + 2 * (at * n_spans + from);
    float most = sinks ? sinks[head] : LOW;
    for (unsigned s = thread(); s < n; s += block_size().x) most = fmaxf(most, own[2 * s]);
    most = max_block(most);
    float total = 0.0f;
    for (unsigned s = thread(); s < n; s += block_size().x) {
        weights[s] = expf(own[2 * s] - most);
        total = fmaf(own[2 * s + 1], weights[s], total);
    }
    total = sum_block(total) + (sinks ? expf(sinks[head] - most) : 0.0f);
    const float* sums = parts.sums + (at * n_spans + from) * d_value;
    for (unsigned col = thread(); col < d_value; col += block_size().x) {
        float sum = 0.0f;
#pragma unroll 8
        for (unsigned s = 0; s < n; s++) sum = fmaf(sums[size_t(s) * d_value + col], weights[s], sum);
        y[at * d_value + col] = sum / total;
    }
}
EXPORT(attention_merge)

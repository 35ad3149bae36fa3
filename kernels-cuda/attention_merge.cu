// The spans of a head put together in their order, with its sink; a block to a head of a token.
#include "lib/attention.cuh"

using namespace attention;

static constexpr unsigned MOST_SPANS = 64;

KERNEL(attention_merge)(const float* all_parts, const float* sinks, const unsigned* batch, float* y, unsigned max_tokens,
    unsigned n_rows, unsigned n_head, unsigned d_value, unsigned n_spans, unsigned window) {
    SHARED(float, weights, MOST_SPANS);
    const Batch facts{batch, max_tokens};
    const unsigned head = block_index().x, t = block_index().y;
    if (t >= real_tokens(batch, n_rows)) return;
    // Spans that had a chunk: as many from the first one on, which are counted in a circle.
    const unsigned pos = facts.pos(t), first = first_seen(pos, window) / CHUNK;
    const unsigned n_chunks = pos / CHUNK + 1 - first, n = n_chunks < n_spans ? n_chunks : n_spans;
    const size_t at = size_t(t) * n_head + head;
    const Parts parts(const_cast<float*>(all_parts), n_rows, n_head, n_spans, d_value);
    const float* own = parts.facts + 2 * at * n_spans;
    const bool mine = thread() < n;
    const unsigned span = (first + thread()) % n_spans;
    const float largest = mine ? own[2 * span] : LOW;
    const float most = fmaxf(max_block(largest), sinks ? sinks[head] : LOW);
    const float weight = mine ? expf(largest - most) : 0.0f;
    if (mine) weights[thread()] = weight;
    // The barriers of the sum are behind what was just written.
    const float total = sum_block(mine ? weight * own[2 * span + 1] : 0.0f) + (sinks ? expf(sinks[head] - most) : 0.0f);
    const float* sums = parts.sums + at * n_spans * d_value;
    for (unsigned col = thread(); col < d_value; col += block_size().x) {
        float sum = 0.0f;
        unsigned from = first % n_spans;
#pragma unroll 8
        for (unsigned i = 0; i < n; i++) {
            sum = fmaf(sums[size_t(from) * d_value + col], weights[i], sum);
            from = from + 1 < n_spans ? from + 1 : 0;
        }
        y[at * d_value + col] = sum / total;
    }
}
EXPORT(attention_merge)

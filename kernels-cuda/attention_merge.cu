// Merges the spans of a head in order, with its attention sink; a block per head of a token. Also
// writes Q8 blocks if q is given. Further blocks prefetch. With `selected`, tokens attended to lists of
// positions, of `n_listed` entries.
#include "lib/attention.cuh"
#include "lib/prefetch.cuh"
#include "lib/quantize.cuh"

using namespace attention;

static constexpr unsigned MOST_SPANS = 64, THREADS = 256;

// Processes `n_cols` columns at a time, a power of two.
KERNEL(attention_merge)(const float* all_parts, const float* sinks, const unsigned* batch, const unsigned* selected, float* y, unsigned* q,
    unsigned max_tokens, unsigned n_rows, unsigned n_head, unsigned d_value, unsigned n_spans, unsigned window,
    unsigned n_listed, unsigned n_cols, const unsigned char* ahead, unsigned n_lines) {
    if (prefetches(ahead, n_lines, n_head)) return;
    SHARED(float, weights, MOST_SPANS);
    const Batch facts{batch, max_tokens};
    const unsigned head = block_index().x, t = block_index().y;
    if (t >= real_tokens(batch, n_rows)) return;
    // Spans with at least one chunk are consecutive and wrap around to span 0.
    const unsigned pos = facts.pos(t), first = first_seen(pos, window) / CHUNK;
    const unsigned* list = selected + size_t(t) * n_listed;
    const unsigned end = selected ? n_selected(list, n_listed) : end_seen(facts, t, pos, window), last = (end - 1) / CHUNK;
    const unsigned n_chunks = last + 1 - first, n = n_chunks < n_spans ? n_chunks : n_spans;
    const size_t at = size_t(t) * n_head + head;
    const Parts parts(const_cast<float*>(all_parts), n_rows, n_head, n_spans, d_value);
    const float* own = parts.facts + 2 * at * n_spans;
    const bool mine = thread() < n;
    const unsigned span = (first + thread()) % n_spans;
    const float largest = mine ? own[2 * span] : LOW;
    const float most = fmaxf(max_block(largest), sinks ? sinks[head] : LOW);
    const float weight = mine ? expf(largest - most) : 0.0f;
    if (mine) weights[thread()] = weight;
    // The barriers of the sum also make the writes above visible to all threads.
    const float total = sum_block(mine ? weight * own[2 * span + 1] : 0.0f) + (sinks ? expf(sinks[head] - most) : 0.0f);
    // Groups of threads share the spans; each group covers all columns.
    SHARED(float, shared, THREADS);
    const unsigned group = thread() / n_cols, n_groups = THREADS / n_cols;
    const float* sums = parts.sums + at * n_spans * d_value;
    for (unsigned first_col = 0; first_col < d_value; first_col += n_cols) {
        const unsigned col = first_col + thread() % n_cols;
        float sum = 0.0f;
        if (col < d_value) {
#pragma unroll 8
            for (unsigned i = group; i < n; i += n_groups) {
                const unsigned behind = first % n_spans + i, its = behind < n_spans ? behind : behind - n_spans;
                sum = fmaf(sums[size_t(its) * d_value + col], weights[i], sum);
            }
        }
        shared[thread()] = sum;
        barrier();
        if (group == 0 && col < d_value) {
            for (unsigned i = 1; i < n_groups; i++) sum += shared[i * n_cols + thread()];
            sum /= total;
            y[at * d_value + col] = sum;
            // No other thread reads this word.
            shared[thread()] = sum;
        }
        barrier();
        if (q != nullptr) {
            // If `q` is given, heads consist of whole blocks.
            const unsigned i = 4 * thread();
            const bool inside = i < n_cols && first_col + i < d_value;
            const float* from = shared + (inside ? i : 0);
            const float4 values = make_float4(from[0], from[1], from[2], from[3]);
            quantize_block(values, q + (at * d_value + first_col + i) / 32 * Q8_WORDS, inside);
            barrier();
        }
    }
}
EXPORT(attention_merge)

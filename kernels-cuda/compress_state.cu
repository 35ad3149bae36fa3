// Keeps the values and gates of the last positions of every sequence (op::CompressKeys). A thread copies a column of a
// sequence, in token order.
#include "lib/batch.cuh"

KERNEL(compress_state)(const float* values, const float* gates, const unsigned* batch, float* state, unsigned max_tokens,
    unsigned n_rows, unsigned width, unsigned n_positions) {
    const Batch facts{batch, max_tokens};
    const unsigned c = block_index().x * block_size().x + thread();
    const unsigned seq = block_index().y;
    if (c >= width || seq >= facts.seqs()) return;
    const unsigned n_tokens = real_tokens(batch, n_rows);
    for (unsigned t = 0; t < n_tokens; t++) {
        if (facts.seq(t) != seq) continue;
        float* slot = state + (size_t(seq) * n_positions + facts.pos(t) % n_positions) * 2 * width;
        slot[c] = values[size_t(t) * width + c];
        slot[width + c] = gates[size_t(t) * width + c];
    }
}
EXPORT(compress_state)

// x[t] *= 1 + factor * ln(1 + floor((pos_t + offset) / length)).
#include "lib/batch.cuh"
#include "lib/wide.cuh"

KERNEL(scale_by_position)(const unsigned* batch, float* x, unsigned max_tokens, unsigned n_rows, unsigned n_cols,
    unsigned length, unsigned offset, float factor) {
    const Batch facts{batch, max_tokens};
    const size_t i = flat_index();
    const size_t t = i / n_cols;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned n = (facts.pos(unsigned(t)) + offset) / length;
    x[i] *= 1.0f + factor * logf(1.0f + float(n));
}
EXPORT(scale_by_position)

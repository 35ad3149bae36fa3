// y[i] = x[out_i]: copies the rows of the tokens whose output is needed.
#include "lib/batch.cuh"
#include "lib/wide.cuh"

KERNEL(gather)(const float* x, const unsigned* batch, float* y, unsigned max_tokens, unsigned n_rows, unsigned n_cols) {
    const Batch facts{batch, max_tokens};
    const size_t at = flat_index();
    const unsigned i = unsigned(at / n_cols);
    if (i >= n_rows || i >= facts.outputs()) return;
    y[at] = x[size_t(facts.output(i)) * n_cols + at % n_cols];
}
EXPORT(gather)

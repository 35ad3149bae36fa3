// y[t, to(h) + i] = x[t, from(h) + i]: copies some values of each head.
#include "lib/wide.cuh"

KERNEL(copy_heads)(const float* x, float* y, unsigned n_rows, unsigned n_head, unsigned width, unsigned x_cols, unsigned y_cols,
    unsigned from_first, unsigned from_step, unsigned to_first, unsigned to_step) {
    const size_t at = flat_index();
    const unsigned i = unsigned(at % width);
    const unsigned h = unsigned(at / width % n_head);
    const size_t t = at / width / n_head;
    if (t >= n_rows) return;
    y[t * y_cols + to_first + h * to_step + i] = x[t * x_cols + from_first + h * from_step + i];
}
EXPORT(copy_heads)

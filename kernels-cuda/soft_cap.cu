// x = cap * tanh(x / cap), or x clamped to -cap..=cap, for each value.
#include "lib/wide.cuh"

KERNEL(soft_cap)(float* x, unsigned n, unsigned hard, float cap) {
    const size_t i = flat_index();
    if (i < n) x[i] = hard ? fminf(fmaxf(x[i], -cap), cap) : cap * tanhf(x[i] / cap);
}
EXPORT(soft_cap)

// x = cap * tanh(x / cap), for each value.
#include "lib/wide.cuh"

KERNEL(soft_cap)(float* x, unsigned n, float cap) {
    const size_t i = flat_index();
    if (i < n) x[i] = cap * tanhf(x[i] / cap);
}
EXPORT(soft_cap)

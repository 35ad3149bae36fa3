// x += a, for each value; a thread adds four values.
#include "lib/wide.cuh"

KERNEL(add)(const float* a, float* x, unsigned n) {
    const size_t i = 4 * flat_index();
    if (i + 4 <= n && is_wide(a) && is_wide(x)) {
        const float4 from = load4(a + i), to = load4(x + i);
        store4(x + i, make_float4(to.x + from.x, to.y + from.y, to.z + from.z, to.w + from.w));
        return;
    }
    for (size_t j = i; j < i + 4 && j < n; j++) x[j] += a[j];
}
EXPORT(add)

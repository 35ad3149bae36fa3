// Waits for the host's answer, and writes it to y or adds it.
#include "lib/batch.cuh"
#include "lib/wide.cuh"

// head[0] is the answered step, head[1] the last cancelled step (all earlier ones count as
// cancelled), head[2] the step whose wait timed out, which is written here. head is aligned to 8
// bytes. *given_up is the last step with a timeout: the other waits of that step end at once.
KERNEL(merge_wait)(unsigned* head, const unsigned* step, unsigned* given_up, unsigned limit_ms) {
    if (thread() == 0 && *given_up != *step) {
        const unsigned awaited = *step;
        const unsigned long long start = nanoseconds(), limit = limit_ms * 1000000ull;
        for (;;) {
            // Reads both words at once, since a read is a round trip over the bus.
            const uint2 answered = load_system(reinterpret_cast<const uint2*>(head));
            if (answered.x == awaited || int(answered.y - awaited) >= 0) break;
            // Signed, so that a clock that went back a little does not count as a timeout.
            if ((long long)(nanoseconds() - start) > (long long)limit) {
                store_system(head + 2, awaited);
                *given_up = awaited;
                break;
            }
            pause();
        }
    }
    fence_system();
}
EXPORT(merge_wait)

KERNEL(merge_add)(const float* answer, const unsigned* batch, float* y, unsigned n_rows, unsigned n_cols, unsigned accumulate) {
    const size_t n = size_t(real_tokens(batch, n_rows)) * n_cols;
    const size_t i = 4 * flat_index();
    if (i + 4 <= n && is_wide(answer) && is_wide(y)) {
        float4 value = load4(answer + i);
        if (accumulate) {
            const float4 before = load4(y + i);
            value = make_float4(before.x + value.x, before.y + value.y, before.z + value.z, before.w + value.w);
        }
        store4(y + i, value);
        return;
    }
    for (size_t j = i; j < i + 4 && j < n; j++) y[j] = accumulate ? y[j] + answer[j] : answer[j];
}
EXPORT(merge_add)

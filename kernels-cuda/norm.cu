// y = norm(x) * weight + bias over runs of columns: a block to a run, or 32 threads where runs are short.
#include "lib/sums.cuh"

// Values of a run that a thread keeps; more are read again.
static constexpr unsigned NORM_HELD = 8;

template <bool BLOCK> DEVICE float norm_sum(float v) { return BLOCK ? sum_block(v) : sum_near(v, 32); }

// The run from x on, by threads t of n.
template <bool BLOCK>
DEVICE void norm_run(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned centred, float eps,
    unsigned t, unsigned n) {
    float held[NORM_HELD];
    const unsigned behind = t + NORM_HELD * n;
#pragma unroll
    for (unsigned k = 0; k < NORM_HELD; k++) held[k] = t + k * n < width ? x[t + k * n] : 0.0f;
    float mean = 0.0f;
    if (centred) {
        float sum = 0.0f;
#pragma unroll
        for (unsigned k = 0; k < NORM_HELD; k++) sum += held[k];
        for (unsigned i = behind; i < width; i += n) sum += x[i];
        mean = norm_sum<BLOCK>(sum) / float(width);
    }
    float square = 0.0f;
#pragma unroll
    for (unsigned k = 0; k < NORM_HELD; k++) {
        held[k] -= mean;
        if (t + k * n < width) square = fmaf(held[k], held[k], square);
    }
    for (unsigned i = behind; i < width; i += n) square = fmaf(x[i] - mean, x[i] - mean, square);
    const float factor = 1.0f / sqrtf(norm_sum<BLOCK>(square) / float(width) + eps);
#pragma unroll
    for (unsigned k = 0; k < NORM_HELD; k++) {
        const unsigned i = t + k * n;
        if (i < width) {
            const float value = held[k] * factor * (weight ? weight[i] : 1.0f);
            y[i] = bias ? value + bias[i] : value;
        }
    }
    for (unsigned i = behind; i < width; i += n) {
        const float value = (x[i] - mean) * factor * (weight ? weight[i] : 1.0f);
        y[i] = bias ? value + bias[i] : value;
    }
}

KERNEL(norm_block)(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned centred, float eps) {
    const size_t at = size_t(block_index().x) * width;
    norm_run<true>(x + at, weight, bias, y + at, width, centred, eps, thread(), block_size().x);
}
EXPORT(norm_block)

// Threads behind the last run have one of no values: a wave is whole where values are exchanged.
KERNEL(norm_near)(const float* x, const float* weight, const float* bias, float* y, unsigned n_runs, unsigned width,
    unsigned centred, float eps) {
    const unsigned run = block_index().x * (block_size().x / 32) + thread() / 32;
    const size_t at = size_t(run) * width;
    norm_run<false>(x + at, weight, bias, y + at, run < n_runs ? width : 0, centred, eps, thread() % 32, 32);
}
EXPORT(norm_near)

// y = norm(x) * weight + bias over runs of columns: a block to a run, or 32 threads where runs are short.
#include "lib/sums.cuh"

template <bool BLOCK> DEVICE float norm_sum(float v) { return BLOCK ? sum_block(v) : sum_near(v, 32); }

// The run from x on, by threads t of n. HELD values a thread keeps; more are read again.
template <bool BLOCK, unsigned HELD>
DEVICE void norm_run(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned centred, float eps,
    unsigned t, unsigned n) {
    float held[HELD];
    const unsigned behind = t + HELD * n;
#pragma unroll
    for (unsigned k = 0; k < HELD; k++) held[k] = t + k * n < width ? x[t + k * n] : 0.0f;
    float mean = 0.0f;
    if (centred) {
        float sum = 0.0f;
#pragma unroll
        for (unsigned k = 0; k < HELD; k++) sum += held[k];
        for (unsigned i = behind; i < width; i += n) sum += x[i];
        mean = norm_sum<BLOCK>(sum) / float(width);
    }
    float square = 0.0f;
#pragma unroll
    for (unsigned k = 0; k < HELD; k++) {
        held[k] -= mean;
        if (t + k * n < width) square = fmaf(held[k], held[k], square);
    }
    for (unsigned i = behind; i < width; i += n) square = fmaf(x[i] - mean, x[i] - mean, square);
    const float factor = 1.0f / sqrtf(norm_sum<BLOCK>(square) / float(width) + eps);
#pragma unroll
    for (unsigned k = 0; k < HELD; k++) {
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

template <unsigned HELD>
DEVICE void norm_rows(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned centred, float eps) {
    const size_t at = size_t(block_index().x) * width;
    norm_run<true, HELD>(x + at, weight, bias, y + at, width, centred, eps, thread(), block_size().x);
}

// Runs of up to 2048 columns, and of more, with blocks of 256.
KERNEL(norm_short)(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned centred, float eps) {
    norm_rows<8>(x, weight, bias, y, width, centred, eps);
}
EXPORT(norm_short)

KERNEL(norm_long)(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned centred, float eps) {
    norm_rows<32>(x, weight, bias, y, width, centred, eps);
}
EXPORT(norm_long)

// Threads behind the last run have one of no values: a wave is whole where values are exchanged.
KERNEL(norm_near)(const float* x, const float* weight, const float* bias, float* y, unsigned n_runs, unsigned width,
    unsigned centred, float eps) {
    const unsigned run = block_index().x * (block_size().x / 32) + thread() / 32;
    const size_t at = size_t(run) * width;
    norm_run<false, 8>(x + at, weight, bias, y + at, run < n_runs ? width : 0, centred, eps, thread() % 32, 32);
}
EXPORT(norm_near)

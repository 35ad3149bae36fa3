// Hyper-connections: the weights of residual streams, and reading and writing the streams.
#include "dialect.h"

static constexpr unsigned MOST_STREAMS = 8;

static DEVICE float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

// The sum of `n` values, `step` apart.
static DEVICE float sum_of(const float* values, unsigned n, unsigned step) {
    float sum = 0.0f;
    for (unsigned i = 0; i < n; i++) sum += values[i * step];
    return sum;
}

// A block of MOST_STREAMS^2 threads per token; in Sinkhorn's iterations, a thread has one weight.
KERNEL(hyper_weights)(const float* scale, const float* base, float* weights, unsigned n, unsigned n_cols, float eps,
    unsigned n_iterations) {
    SHARED(float, mix, MOST_STREAMS * MOST_STREAMS);
    float* own = weights + size_t(block_index().x) * n_cols;
    const unsigned i = thread(), first = 2 * n;
    if (i < n) own[i] = sigmoid(fmaf(scale[0], own[i], base[i])) + eps;
    if (n_cols == n) return;
    if (i >= n && i < first) own[i] = 2.0f * sigmoid(fmaf(scale[1], own[i], base[i]));
    const bool mine = i < n * n;
    const unsigned from = mine ? i / n : 0, to = mine ? i % n : 0;
    const float *row = mix + from * n, *column = mix + to;
    float value = mine ? fmaf(scale[2], own[first + i], base[first + i]) : 0.0f;
    mix[i] = value;
    barrier();
    float most = row[0];
    for (unsigned other = 1; other < n; other++) most = fmaxf(most, row[other]);
    barrier();
    mix[i] = value = expf(value - most);
    barrier();
    value = value / sum_of(row, n, 1) + eps;
    for (unsigned iteration = 0; iteration < n_iterations; iteration++) {
        for (unsigned side = iteration == 0 ? 1 : 0; side < 2; side++) {
            barrier();
            mix[i] = value;
            barrier();
            value /= (side == 0 ? sum_of(row, n, 1) : sum_of(column, n, n)) + eps;
        }
    }
    if (mine) own[first + i] = value;
}
EXPORT(hyper_weights)

// Grid: x is the block of columns, y the token. `weights` has rows of `stride`, 0 for one row.
KERNEL(hyper_read)(const float* streams, const float* weights, float* y, unsigned n, unsigned width, unsigned stride) {
    const unsigned i = block_index().x * block_size().x + thread();
    if (i >= width) return;
    const float *own = streams + size_t(block_index().y) * n * width + i, *shares = weights + size_t(block_index().y) * stride;
    float sum = 0.0f;
    for (unsigned s = 0; s < n; s++) sum = fmaf(shares[s], own[size_t(s) * width], sum);
    y[size_t(block_index().y) * width + i] = sum;
}
EXPORT(hyper_read)

// Grid as above. `weights` has n * (n + 2) columns.
KERNEL(hyper_write)(const float* x, const float* weights, float* streams, unsigned n, unsigned width) {
    const unsigned i = block_index().x * block_size().x + thread();
    if (i >= width) return;
    const size_t t = block_index().y;
    const float *post = weights + t * n * (n + 2) + n, *mix = post + n;
    const float block = x[t * width + i];
    float* own = streams + t * n * width + i;
    float old[MOST_STREAMS];
#pragma unroll
    for (unsigned s = 0; s < MOST_STREAMS; s++) old[s] = s < n ? own[size_t(s) * width] : 0.0f;
    for (unsigned to = 0; to < n; to++) {
        float sum = post[to] * block;
#pragma unroll
        for (unsigned s = 0; s < MOST_STREAMS; s++) {
            if (s < n) sum = fmaf(mix[s * n + to], old[s], sum);
        }
        own[size_t(to) * width] = sum;
    }
}
EXPORT(hyper_write)

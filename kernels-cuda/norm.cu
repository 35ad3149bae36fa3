// y = norm(x) * weight + bias over runs of columns: a block per run, or 32 threads for short runs.
#include "lib/prefetch.cuh"
#include "lib/quantize.cuh"
#include "lib/sums.cuh"
#include "lib/wide.cuh"

template <bool BLOCK> DEVICE float norm_sum(float v) { return BLOCK ? sum_block(v) : sum_near(v, 32); }

// Kinds of norms: 0 RMSNorm, 1 LayerNorm, 2 L2 norm.
DEVICE float norm_factor(float squares, unsigned width, unsigned kind, float eps) {
    return kind == 2 ? 1.0f / fmaxf(sqrtf(squares), eps) : 1.0f / sqrtf(squares / float(width) + eps);
}

// Normalises the run of `width` values at x. The caller is thread t of n; it holds HELD values in
// registers and rereads the others.
template <bool BLOCK, unsigned HELD>
DEVICE void norm_run(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned kind, float eps,
    unsigned t, unsigned n) {
    float held[HELD];
    const unsigned behind = t + HELD * n;
#pragma unroll
    for (unsigned k = 0; k < HELD; k++) held[k] = t + k * n < width ? x[t + k * n] : 0.0f;
    float mean = 0.0f;
    if (kind == 1) {
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
    const float factor = norm_factor(norm_sum<BLOCK>(square), width, kind, eps);
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

// Runs of more than 256 columns that are not aligned for vector loads.
KERNEL(norm_rows)(const float* x, const float* weight, const float* bias, float* y, unsigned width, unsigned kind, float eps) {
    const size_t at = size_t(block_index().x) * width;
    norm_run<true, 32>(x + at, weight, bias, y + at, width, kind, eps, thread(), block_size().x);
}
EXPORT(norm_rows)

DEVICE float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEVICE float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
DEVICE float4 less4(float4 v, float by) { return make_float4(v.x - by, v.y - by, v.z - by, v.w - by); }
DEVICE float square4(float sum, float4 v) { return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum)))); }

DEVICE float4 normed(float4 v, float factor, const float* weight, const float* bias, unsigned i) {
    float4 to = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    if (weight) {
        const float4 w = load4(weight + 4 * i);
        to = make_float4(to.x * w.x, to.y * w.y, to.z * w.z, to.w * w.w);
    }
    return bias ? add4(to, load4(bias + 4 * i)) : to;
}

// Runs of more than 256 columns that are aligned for vector loads; a block per run. Fused work:
// `x += a` unless `a` is null, y in Q8 blocks unless `q` is null, initialisation of words for the next
// launch (`quantize`); blocks after the first `n_runs` prefetch.
KERNEL(norm_wide)(float* x, const float* a, const float* weight, const float* bias, float* y, unsigned* q, unsigned* clear,
    unsigned n_clear, unsigned cleared, unsigned n_zero, unsigned width, unsigned kind, float eps, unsigned n_runs,
    const unsigned char* ahead, unsigned n_lines) {
    if (prefetches(ahead, n_lines, n_runs)) return;
    constexpr unsigned HELD = 8;
    const unsigned t = thread(), n = block_size().x, n_fours = width / 4;
    for (unsigned i = block_index().x * n + t; i < n_clear; i += n * n_runs) clear[i] = i < n_zero ? 0 : cleared;
    const size_t at = size_t(block_index().x) * width;
    x += at;
    y += at;
    if (a) a += at;
    if (q) q += size_t(block_index().x) * (width / 32) * Q8_WORDS;
    const float4 nothing = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 held[HELD];
    float sum = 0.0f;
#pragma unroll
    for (unsigned k = 0; k < HELD; k++) {
        const unsigned i = t + k * n;
        held[k] = nothing;
        if (i >= n_fours) continue;
        held[k] = load4(x + 4 * i);
        if (a) {
            held[k] = add4(held[k], load4(a + 4 * i));
            store4(x + 4 * i, held[k]);
        }
        sum += sum4(held[k]);
    }
    for (unsigned i = t + HELD * n; i < n_fours; i += n) {
        float4 v = load4(x + 4 * i);
        if (a) {
            v = add4(v, load4(a + 4 * i));
            store4(x + 4 * i, v);
        }
        sum += sum4(v);
    }
    const float mean = kind == 1 ? sum_block(sum) / float(width) : 0.0f;
    float square = 0.0f;
#pragma unroll
    for (unsigned k = 0; k < HELD; k++) {
        held[k] = less4(held[k], mean);
        if (t + k * n < n_fours) square = square4(square, held[k]);
    }
    for (unsigned i = t + HELD * n; i < n_fours; i += n) square = square4(square, less4(load4(x + 4 * i), mean));
    const float factor = norm_factor(sum_block(square), width, kind, eps);
    // All threads run the same number of iterations, so that whole warps quantise together.
#pragma unroll
    for (unsigned k = 0; k < HELD; k++) {
        if (k * n >= n_fours) break;
        const unsigned i = t + k * n;
        const bool inside = i < n_fours;
        const float4 value = inside ? normed(held[k], factor, weight, bias, i) : nothing;
        if (inside) store4(y + 4 * i, value);
        if (q) quantize_block(value, q + size_t(i / 8) * Q8_WORDS, inside);
    }
    for (unsigned begin = HELD * n; begin < n_fours; begin += n) {
        const unsigned i = begin + t;
        const bool inside = i < n_fours;
        const float4 value = inside ? normed(less4(load4(x + 4 * i), mean), factor, weight, bias, i) : nothing;
        if (inside) store4(y + 4 * i, value);
        if (q) quantize_block(value, q + size_t(i / 8) * Q8_WORDS, inside);
    }
}
EXPORT(norm_wide)

// Threads past the last run process an empty run, so that warps are whole for the exchanges.
KERNEL(norm_near)(const float* x, const float* weight, const float* bias, float* y, unsigned n_runs, unsigned width,
    unsigned kind, float eps) {
    const unsigned run = block_index().x * (block_size().x / 32) + thread() / 32;
    const size_t at = size_t(run) * width;
    norm_run<false, 8>(x + at, weight, bias, y + at, run < n_runs ? width : 0, kind, eps, thread() % 32, 32);
}
EXPORT(norm_near)

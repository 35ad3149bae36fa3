// A short causal convolution per channel. A thread processes a channel of a sequence, in token order.
#include "lib/batch.cuh"

// For kernel sizes up to TAPS; with a smaller size, the first factors are 0.
template <unsigned TAPS>
DEVICE void short_conv_of(const float* x, const float* weight, const float* bias, const unsigned* batch, float* state, float* y,
    unsigned max_tokens, unsigned n_rows, unsigned n, unsigned taps, unsigned silu) {
    const Batch facts{batch, max_tokens};
    const unsigned c = block_index().x * block_size().x + thread();
    const unsigned seq = block_index().y;
    if (c >= n || seq >= facts.seqs()) return;
    const unsigned n_tokens = real_tokens(batch, n_rows), missing = TAPS - taps;
    float* own = state + size_t(seq) * (taps - 1) * n + c;
    // The last inputs, the oldest first.
    float inputs[TAPS], factors[TAPS];
#pragma unroll
    for (unsigned i = 0; i < TAPS; i++) {
        inputs[i] = i >= missing && i + 1 < TAPS ? own[size_t(i - missing) * n] : 0.0f;
        factors[i] = i >= missing ? weight[size_t(c) * taps + i - missing] : 0.0f;
    }
    const float offset = bias ? bias[c] : 0.0f;
    for (unsigned t = 0; t < n_tokens; t++) {
        if (facts.seq(t) != seq) continue;
        if (facts.pos(t) == 0) {
#pragma unroll
            for (unsigned i = 0; i < TAPS; i++) inputs[i] = 0.0f;
        }
        inputs[TAPS - 1] = x[size_t(t) * n + c];
        float sum = offset;
#pragma unroll
        for (unsigned i = 0; i < TAPS; i++) {
            if (i >= missing) sum = fmaf(factors[i], inputs[i], sum);
        }
        y[size_t(t) * n + c] = silu ? sum / (1.0f + expf(-sum)) : sum;
#pragma unroll
        for (unsigned i = 0; i + 1 < TAPS; i++) inputs[i] = inputs[i + 1];
    }
#pragma unroll
    for (unsigned i = 0; i + 1 < TAPS; i++) {
        if (i >= missing) own[size_t(i - missing) * n] = inputs[i];
    }
}

KERNEL(short_conv_4)(const float* x, const float* weight, const float* bias, const unsigned* batch, float* state, float* y,
    unsigned max_tokens, unsigned n_rows, unsigned n, unsigned taps, unsigned silu) {
    short_conv_of<4>(x, weight, bias, batch, state, y, max_tokens, n_rows, n, taps, silu);
}
EXPORT(short_conv_4)

KERNEL(short_conv_32)(const float* x, const float* weight, const float* bias, const unsigned* batch, float* state, float* y,
    unsigned max_tokens, unsigned n_rows, unsigned n, unsigned taps, unsigned silu) {
    short_conv_of<32>(x, weight, bias, batch, state, y, max_tokens, n_rows, n, taps, silu);
}
EXPORT(short_conv_32)

// x[t, i] *= act(g[t, i / per_gate]), for each value.
#include "lib/gate.cuh"
#include "lib/wide.cuh"

// `mul` in `backends/simt/src/ops/elementwise.rs` defines the numbers of the activations.
static DEVICE float gate(unsigned activation, float v) {
    switch (activation) {
        case 0: return v;
        case 1: return gate_sigmoid(v);
        case 2: return v * gate_sigmoid(v);
        case 3: return softplus(v);
        // (1 + tanh y) / 2 is the sigmoid of 2 y.
        case 4: return v * gate_sigmoid(1.5957691216f * v * fmaf(0.044715f * v, v, 1.0f));
        default: {
            const float root = sqrtf(fmaxf(fabsf(v), 1e-6f));
            return v == 0.0f ? 0.5f : gate_sigmoid(v < 0.0f ? -root : root);
        }
    }
}

// `gate_stride` is the number of gate values per token, or 0 if all tokens share them.
KERNEL(mul)(const float* g, float* x, unsigned n, unsigned n_cols, unsigned per_gate, unsigned gate_stride, unsigned activation) {
    const size_t i = flat_index();
    if (i >= n) return;
    const unsigned t = unsigned(i) / n_cols, column = unsigned(i) % n_cols;
    x[i] *= gate(activation, g[size_t(t) * gate_stride + column / per_gate]);
}
EXPORT(mul)

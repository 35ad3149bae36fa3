#pragma once
// Feed-forward blocks: activation functions, a neuron's value, and the skip rules, whose numbers
// `backends/simt/src/ops/weights/ffn.rs` defines.

#include "dialect.h"

// The rule that computes a neuron's value from its test value (the gate, or up without a gate) and
// from up. FFN kinds: plain, gated, both gated.
struct FfnRule {
    unsigned kind;
    unsigned activation;
    unsigned skip;
    float alpha;
    float slope;
    float cap;
};

// Marks a skipped neuron: minus zero, which no active value has.
constexpr unsigned DROPPED = 0x80000000u;

DEVICE unsigned carried_word(float value) { return bits(value) == DROPPED ? 0u : bits(value); }

DEVICE float sigmoid(float x) { return divide(1.0f, 1.0f + expf(-x)); }

// Source: Abramowitz and Stegun 7.1.26, within 1.5e-7.
DEVICE float error_function(float x) {
    const float t = divide(1.0f, fmaf(0.3275911f, fabsf(x), 1.0f));
    float series = fmaf(t, 1.061405429f, -1.453152027f);
    series = fmaf(t, series, 1.421413741f);
    series = fmaf(t, series, -0.284496736f);
    series = t * fmaf(t, series, 0.254829592f);
    const float size = 1.0f - series * expf(-(x * x));
    return x < 0.0f ? -size : size;
}

// exp(x) - 1 - x for x <= 0: near 0 a Taylor polynomial, because the difference loses digits.
DEVICE float exp_curve(float x) {
    if (x < -0.5f) return expf(x) - 1.0f - x;
    float sum = fmaf(x, 1.0f / 40320, 1.0f / 5040);
    sum = fmaf(x, sum, 1.0f / 720);
    sum = fmaf(x, sum, 1.0f / 120);
    sum = fmaf(x, sum, 1.0f / 24);
    sum = fmaf(x, sum, 1.0f / 6);
    return x * x * fmaf(x, sum, 0.5f);
}

DEVICE float activate(const FfnRule& rule, float x) {
    switch (rule.activation) {
        // Written so that NaN stays NaN.
        case 0: return x <= 0.0f ? 0.0f : x;
        case 1: return x <= 0.0f ? 0.0f : x * x;
        case 2: return x * sigmoid(x);
        case 3: return 0.5f * x * (1.0f + tanhf(0.7978845608f * x * fmaf(0.044715f * x, x, 1.0f)));
        case 4: return 0.5f * x * (1.0f + error_function(x * 0.7071067812f));
        case 7: {
            const float silu = x * sigmoid(x);
            return silu > rule.cap ? rule.cap : silu;
        }
        case 8: return fmaf(rule.slope, x, x > 0.0f ? rule.alpha * x * x : rule.cap * exp_curve(x));
        case 9: return rule.alpha * tanhf(divide(x, rule.alpha)) * sigmoid(x);
        default: {
            const float capped = x > rule.cap ? rule.cap : x;
            return capped * sigmoid(rule.alpha * capped);
        }
    }
}

DEVICE float neuron(const FfnRule& rule, float test, float up) {
    const float gate = activate(rule, test);
    if (rule.kind == 0) return gate;
    if (rule.kind == 2) return gate * activate(rule, up);
    if (rule.activation >= 5 && rule.activation < 8) {
        const float clamped = fminf(fmaxf(up, -rule.cap), rule.cap);
        return gate * (rule.activation == 5 ? clamped + 1.0f : clamped);
    }
    if (rule.activation == 9 && rule.cap > 0.0f) return gate * (rule.cap * tanhf(divide(up, rule.cap)));
    return gate * up;
}

// Whether a test value shows that a neuron is inactive. Skip rules: never, not positive, below
// `limit` in magnitude after the activation, below the cut.
DEVICE bool is_dropped(const FfnRule& rule, float test, float limit, float cut) {
    switch (rule.skip) {
        case 0: return false;
        case 1: return test <= 0.0f;
        case 2: return fabsf(activate(rule, test)) < limit;
        default: return test < cut;
    }
}

// The expert of a row: the last non-empty one that begins at or before it. `starts` has
// `n_group + 1` words.
DEVICE unsigned group_of(const unsigned* starts, unsigned n_group, unsigned row) {
    unsigned low = 0, high = n_group;
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (starts[middle] <= row) low = middle; else high = middle;
    }
    return low;
}

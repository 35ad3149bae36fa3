#pragma once
// Activation functions of gates.
#include "dialect.h"

// The sigmoid of x, computed with a power of e that cannot overflow.
DEVICE float gate_sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return divide(x < 0.0f ? e : 1.0f, 1.0f + e);
}

// ln(1 + exp(x)), computed with a power of e that cannot overflow.
DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

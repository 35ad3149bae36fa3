// F16.
#pragma once
#include "lib/floats.cuh"

struct f16 : Floats<f16, 8> {
    static DEVICE void values(unsigned word, float* out) {
        out[0] = half_of(word, 0);
        out[1] = half_of(word, 1);
    }
};

// F32.
#pragma once
#include "lib/floats.cuh"

struct f32 : Floats<f32, 4> {
    static DEVICE void values(unsigned word, float* out) { out[0] = from_bits(word); }
};

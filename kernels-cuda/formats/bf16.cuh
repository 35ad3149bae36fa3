// BF16.
#pragma once
#include "lib/floats.cuh"

struct bf16 : Floats<bf16, 8> {
    static DEVICE void values(unsigned word, float* out) {
        out[0] = from_bits(word << 16);
        out[1] = from_bits(word & 0xffff0000u);
    }
};

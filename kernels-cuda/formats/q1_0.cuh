// Q1_0: one bit per value, 1 for d and 0 for -d; d (f16) per 128 values.
#pragma once
#include "lib/blocks.cuh"

struct q1_0 : Quantised<q1_0> {
    static constexpr int OFFSET = 1;
    static constexpr bool ONE = true, MINS = false, TABLES = false;
    struct Raw {
        unsigned bits, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_one(row + b), word_of_short(row + nb, b >> 2)};
    }
    // Codes are 0 and 2.
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) { return bits_of(raw.bits, 1); }
    static DEVICE Scales steps(const Raw& raw, unsigned b) { return one_scale(half_of(raw.d, b >> 2)); }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        return ((load_one(row + b) >> g) & 0x01010101u) << 1;
    }
};

// Q4_0: nibbles; d (f16) per 32 values.
#pragma once
#include "lib/blocks.cuh"

struct q4_0 : Quantised<q4_0> {
    static constexpr int OFFSET = 8;
    static constexpr bool ONE = true, MINS = false, TABLES = false;
    struct Raw {
        uint4 q;
        unsigned d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), word_of_short(row + 4 * nb, b)};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) { return nibbles_of(raw.q); }
    static DEVICE Scales steps(const Raw& raw, unsigned b) { return one_scale(half_of(raw.d, b)); }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        return nibble_quad(row, b, g);
    }
};

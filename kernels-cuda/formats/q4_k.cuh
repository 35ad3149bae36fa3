// Q4_K: nibbles; d, dmin (f16) and 12 bytes with the scales and minimums, per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct q4_k : Quantised<q4_k> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = true, TABLES = false;
    struct Raw {
        uint4 q, steps;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), load_four(row + 4 * (nb + (b >> 3)))};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) { return nibbles_of(raw.q); }
    static DEVICE Scales steps(const Raw& raw, unsigned b) { return six_bits(raw.steps, b); }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        return nibble_quad(row, b, g);
    }
};

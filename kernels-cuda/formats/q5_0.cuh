// Q5_0: nibbles; the high bits of the codes; d (f16) per 32 values.
#pragma once
#include "lib/blocks.cuh"

struct q5_0 : Quantised<q5_0> {
    static constexpr int OFFSET = 16;
    static constexpr bool ONE = true, MINS = false, TABLES = false;
    struct Raw {
        uint4 q;
        unsigned bits, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), load_one(row + 4 * nb + b), word_of_short(row + 5 * nb, b)};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        return joined_bits(nibbles_of(raw.q), raw.bits, 4);
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) { return one_scale(half_of(raw.d, b)); }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned*) {
        return nibble_quad(row, b, g) | (((load_one(row + 4 * nb + b) >> g) & 0x01010101u) << 4);
    }
};

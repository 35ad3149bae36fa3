// Q5_1: nibbles; the high bits of the codes; d and the minimum (f16, added) per 32 values.
#pragma once
#include "lib/blocks.cuh"

struct q5_1 : Quantised<q5_1> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = true, TABLES = false;
    struct Raw {
        uint4 q;
        unsigned bits, both;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), load_one(row + 4 * nb + b), load_one(row + 5 * nb + b)};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        return joined_bits(nibbles_of(raw.q), raw.bits, 4);
    }
    static DEVICE Scales steps(const Raw& raw, unsigned) {
        const float d = half_of(raw.both, 0);
        const float m = -half_of(raw.both, 1);
        return Scales{d, d, m, m};
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned*) {
        return nibble_quad(row, b, g) | (((load_one(row + 4 * nb + b) >> g) & 0x01010101u) << 4);
    }
};

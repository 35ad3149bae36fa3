// Q5_K: nibbles; d, dmin (f16) and 12 bytes with the scales and minimums, per 256 values; the high
// bits of the codes.
#pragma once
#include "lib/blocks.cuh"

struct q5_k : Quantised<q5_k> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = true, TABLES = false;
    struct Raw {
        uint4 q, steps;
        unsigned bits;
    };
    static DEVICE const unsigned* bits(const unsigned* row, unsigned nb, unsigned b) {
        return row + 4 * nb + (nb >> 1) + b;
    }
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), load_four(row + 4 * (nb + (b >> 3))), load_one(bits(row, nb, b))};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        return joined_bits(nibbles_of(raw.q), raw.bits, 4);
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) { return six_bits(raw.steps, b); }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned*) {
        return nibble_quad(row, b, g) | (((load_one(bits(row, nb, b)) >> g) & 0x01010101u) << 4);
    }
};

// Q6_K: nibbles; a signed byte per 16 values, their scale; the upper two bits of the codes; d (f16)
// per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct q6_k : Quantised<q6_k> {
    static constexpr int OFFSET = 32;
    static constexpr bool ONE = false, MINS = false, TABLES = false;
    struct Raw {
        uint4 q;
        uint2 pairs;
        unsigned scales, d;
    };
    static DEVICE const unsigned* pairs(const unsigned* row, unsigned nb, unsigned b) {
        return row + 4 * nb + (nb >> 1) + 2 * b;
    }
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), load_two(pairs(row, nb, b)), load_one(row + 4 * nb + (b >> 1)),
                   word_of_short(row + 6 * nb + (nb >> 1), b >> 3)};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        return joined(nibbles_of(raw.q), pairs_of(raw.pairs), 4);
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const float d = half_of(raw.d, b >> 3);
        const unsigned k = 2 * (b & 1);
        return two_scales(d * (float)signed_byte_of(raw.scales, k), d * (float)signed_byte_of(raw.scales, k + 1));
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned*) {
        return nibble_quad(row, b, g) | (pair_quad(pairs(row, nb, b), g) << 4);
    }
};

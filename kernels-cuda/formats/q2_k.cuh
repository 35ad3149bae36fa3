// Q2_K: a byte with scale and minimum per 16 values; 2-bit codes; d and dmin (f16) per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct q2_k : Quantised<q2_k> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = false, MINS = true, TABLES = false;
    struct Raw {
        uint2 pairs;
        unsigned both, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        const unsigned* pairs = row + (nb >> 1);
        return Raw{load_two(pairs + 2 * b), word_of_short(row, b), load_one(pairs + 2 * nb + (b >> 3))};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) { return pairs_of(raw.pairs); }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned both = short_of(raw.both, b);
        const float d = half_of(raw.d, 0);
        const float m = half_of(raw.d, 1);
        return Scales{d * (float)(both & 15), d * (float)((both >> 8) & 15), m * (float)((both >> 4) & 15),
                      m * (float)(both >> 12)};
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned*) {
        return pair_quad(row + (nb >> 1) + 2 * b, g);
    }
};

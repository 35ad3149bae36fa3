// Q3_K: the lower two bits of the codes; their high bits; 12 bytes with 16 scales, one per 16
// values; d (f16) per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct q3_k : Quantised<q3_k> {
    static constexpr int OFFSET = 4;
    static constexpr bool ONE = false, MINS = false, TABLES = false;
    struct Raw {
        uint2 pairs;
        unsigned bits, scales[3], d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        const unsigned* at = row + 3 * nb + 3 * (b >> 3);
        return Raw{load_two(row + 2 * b), load_one(row + 2 * nb + b), {load_one(at), load_one(at + 1), load_one(at + 2)},
                   word_of_short(row + 3 * nb + 3 * (nb >> 3), b >> 3)};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        return joined_bits(pairs_of(raw.pairs), raw.bits, 2);
    }
    // Scale i of 16, for 16 values.
    static DEVICE float scale(const Raw& raw, unsigned i) {
        const unsigned low = byte_of((i & 4) ? raw.scales[1] : raw.scales[0], i) >> (4 * (i >> 3));
        const unsigned upper = byte_of(raw.scales[2], i) >> (2 * (i >> 2));
        return (float)((int)((low & 15) | ((upper & 3) << 4)) - 32);
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const float d = half_of(raw.d, b >> 3);
        const unsigned i = 2 * (b & 7);
        return two_scales(d * scale(raw, i), d * scale(raw, i + 1));
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned*) {
        return pair_quad(row + 2 * b, g) | (((load_one(row + 2 * nb + b) >> g) & 0x01010101u) << 2);
    }
};

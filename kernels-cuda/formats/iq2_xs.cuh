// IQ2_XS: grid indices (9 bits) and signs (7 bits) per eight values; scales per 16 values; d (f16)
// per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct iq2_xs : Quantised<iq2_xs> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = false, MINS = false, TABLES = true;
    struct Raw {
        uint2 q;
        unsigned scales, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_two(row + 2 * b), word_of_byte(row + 2 * nb, b), word_of_short(row + 2 * nb + (nb >> 2), b >> 3)};
    }
    static DEVICE unsigned pick(unsigned both, unsigned g, const unsigned* tables) {
        return with_signs(tables[512 + 2 * (both & 511) + (g & 1)], even(both >> 9) >> (4 * (g & 1)));
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned* tables) {
        Codes codes;
#pragma unroll
        for (unsigned g = 0; g < 8; g++) codes.q[g] = pick(short_of(g < 4 ? raw.q.x : raw.q.y, g >> 1), g, tables);
        return codes;
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned both = byte_of(raw.scales, b);
        const float d = half_of(raw.d, b >> 3);
        return two_scales(d * (0.5f + (float)(both & 15)) * 0.25f, d * (0.5f + (float)(both >> 4)) * 0.25f);
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned* tables) {
        return pick(short_of(word_of_short(row + 2 * b, g >> 1), g >> 1), g, tables);
    }
};

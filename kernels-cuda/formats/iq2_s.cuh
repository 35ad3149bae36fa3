// IQ2_S: the lower bits of four grid indices; signs; the upper bits of the indices; scales per 16
// values; d (f16) per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct iq2_s : Quantised<iq2_s> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = false, MINS = false, TABLES = true;
    struct Raw {
        unsigned low, signs, upper, scales, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_one(row + b), load_one(row + nb + b), word_of_byte(row + 2 * nb, b),
                   word_of_byte(row + 2 * nb + (nb >> 2), b), word_of_short(row + 2 * nb + (nb >> 1), b >> 3)};
    }
    // `upper` has the bits of all four indices.
    static DEVICE unsigned pick(unsigned low, unsigned signs, unsigned upper, unsigned g, const unsigned* tables) {
        const unsigned l = g >> 1;
        const unsigned place = byte_of(low, l) | (((upper >> (2 * l)) & 3) << 8);
        return with_signs(tables[1536 + 2 * place + (g & 1)], signs >> (8 * l + 4 * (g & 1)));
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned b, const unsigned* tables) {
        Codes codes;
#pragma unroll
        for (unsigned g = 0; g < 8; g++) codes.q[g] = pick(raw.low, raw.signs, byte_of(raw.upper, b), g, tables);
        return codes;
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned both = byte_of(raw.scales, b);
        const float d = half_of(raw.d, b >> 3);
        return two_scales(d * (0.5f + (float)(both & 15)) * 0.25f, d * (0.5f + (float)(both >> 4)) * 0.25f);
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned* tables) {
        const unsigned upper = byte_of(word_of_byte(row + 2 * nb, b), b);
        return pick(load_one(row + b), load_one(row + nb + b), upper, g, tables);
    }
};

// IQ1_M: the lower bits of four grid indices; their upper bits, each with the sign of its delta of
// 1/8; 8 bytes with d (f16) and the scales of 16 values each, per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct iq1_m : Quantised<iq1_m> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = false, MINS = false, TABLES = true;
    struct Raw {
        unsigned low, upper;
        uint2 scales;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_one(row + b), word_of_short(row + nb, b), load_two(row + nb + (nb >> 1) + 2 * (b >> 3))};
    }
    // `uppers` has four bits for each index.
    static DEVICE unsigned pick(unsigned low, unsigned uppers, unsigned g, const unsigned* tables) {
        const unsigned l = g >> 1;
        const unsigned upper = (uppers >> (4 * l)) & 15;
        const unsigned place = byte_of(low, l) | ((upper & 7) << 8);
        return one_eighth(tables[4352 + 2 * place + (g & 1)], (upper & 8) != 0);
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned b, const unsigned* tables) {
        const unsigned uppers = short_of(raw.upper, b);
        Codes codes;
#pragma unroll
        for (unsigned g = 0; g < 8; g++) codes.q[g] = pick(raw.low, uppers, g, tables);
        return codes;
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned low = raw.scales.x;
        const unsigned high = raw.scales.y;
        const unsigned d_bits =
            ((low >> 12) & 15) | ((low >> 24) & 0xf0) | ((high >> 4) & 0xf00) | ((high >> 16) & 0xf000);
        const float d = half_of(d_bits, 0);
        const unsigned j = b & 7;
        const unsigned three = short_of(j < 4 ? low : high, j >> 1) >> (6 * (j & 1));
        return two_scales(d * (float)(2 * (three & 7) + 1) * 0.125f, d * (float)(2 * ((three >> 3) & 7) + 1) * 0.125f);
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned* tables) {
        return pick(load_one(row + b), short_of(word_of_short(row + nb, b), b), g, tables);
    }
};

// IQ1_S: the lower bits of four grid indices; their upper bits, a scale and the sign of the delta
// of 1/8, per 32 values; d (f16) per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct iq1_s : Quantised<iq1_s> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = false, TABLES = true;
    struct Raw {
        unsigned low, more, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_one(row + b), word_of_short(row + nb, b), word_of_short(row + nb + (nb >> 1), b >> 3)};
    }
    static DEVICE unsigned pick(unsigned low, unsigned more, unsigned g, const unsigned* tables) {
        const unsigned l = g >> 1;
        const unsigned place = byte_of(low, l) | (((more >> (3 * l)) & 7) << 8);
        return one_eighth(tables[4352 + 2 * place + (g & 1)], (more & 0x8000) != 0);
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned b, const unsigned* tables) {
        const unsigned more = short_of(raw.more, b);
        Codes codes;
#pragma unroll
        for (unsigned g = 0; g < 8; g++) codes.q[g] = pick(raw.low, more, g, tables);
        return codes;
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned scale = (short_of(raw.more, b) >> 12) & 7;
        return one_scale(half_of(raw.d, b >> 3) * (float)(2 * scale + 1) * 0.125f);
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned* tables) {
        return pick(load_one(row + b), short_of(word_of_short(row + nb, b), b), g, tables);
    }
};

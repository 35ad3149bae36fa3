// IQ3_S: the lower bits of eight grid indices; signs; the upper bits of the indices; a scale per
// 32 values; d (f16) per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct iq3_s : Quantised<iq3_s> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = false, TABLES = true;
    struct Raw {
        uint2 low;
        unsigned signs, upper, scales, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        const unsigned* scales = row + 3 * nb + (nb >> 2);
        return Raw{load_two(row + 2 * b), load_one(row + 2 * nb + b), word_of_byte(row + 3 * nb, b),
                   word_of_byte(scales, b >> 1), word_of_short(scales + (nb >> 3), b >> 3)};
    }
    // `upper` has a bit for each index.
    static DEVICE unsigned pick(unsigned low, unsigned signs, unsigned upper, unsigned g, const unsigned* tables) {
        return with_signs(tables[3840 + (byte_of(low, g) | (((upper >> g) & 1) << 8))], signs >> (4 * g));
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned b, const unsigned* tables) {
        const unsigned upper = byte_of(raw.upper, b);
        Codes codes;
#pragma unroll
        for (unsigned g = 0; g < 8; g++) codes.q[g] = pick(g < 4 ? raw.low.x : raw.low.y, raw.signs, upper, g, tables);
        return codes;
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned scale = (byte_of(raw.scales, b >> 1) >> (4 * (b & 1))) & 15;
        return one_scale(half_of(raw.d, b >> 3) * (float)(1 + 2 * scale));
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned* tables) {
        const unsigned upper = byte_of(word_of_byte(row + 3 * nb, b), b);
        return pick(load_one(row + 2 * b + (g >> 2)), load_one(row + 2 * nb + b), upper, g, tables);
    }
};

// IQ3_XXS: eight grid indices of four values; signs of eight values, seven bits each, and a scale,
// per 32 values; d (f16) per 256 values.
#pragma once
#include "lib/blocks.cuh"

struct iq3_xxs : Quantised<iq3_xxs> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = false, TABLES = true;
    struct Raw {
        uint2 q;
        unsigned facts, d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_two(row + 2 * b), load_one(row + 2 * nb + b), word_of_short(row + 3 * nb, b >> 3)};
    }
    static DEVICE unsigned pick(unsigned places, unsigned facts, unsigned g, const unsigned* tables) {
        const unsigned signs = even((facts >> (7 * (g >> 1))) & 127);
        return with_signs(tables[3584 + byte_of(places, g)], signs >> (4 * (g & 1)));
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned* tables) {
        Codes codes;
#pragma unroll
        for (unsigned g = 0; g < 8; g++) codes.q[g] = pick(g < 4 ? raw.q.x : raw.q.y, raw.facts, g, tables);
        return codes;
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        return one_scale(half_of(raw.d, b >> 3) * (0.5f + (float)(raw.facts >> 28)) * 0.5f);
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned nb, unsigned b, unsigned g, const unsigned* tables) {
        return pick(load_one(row + 2 * b + (g >> 2)), load_one(row + 2 * nb + b), g, tables);
    }
};

// Q8_0: signed bytes; d (f16) per 32 values.
#pragma once
#include "lib/blocks.cuh"

struct q8_0 : Quantised<q8_0> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = false, TABLES = false;
    struct Raw {
        uint4 lo, hi;
        unsigned d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 8 * b), load_four(row + 8 * b + 4), word_of_short(row + 8 * nb, b)};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        return Codes{{raw.lo.x, raw.lo.y, raw.lo.z, raw.lo.w, raw.hi.x, raw.hi.y, raw.hi.z, raw.hi.w}};
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) { return one_scale(half_of(raw.d, b)); }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        return load_one(row + 8 * b + g);
    }
};

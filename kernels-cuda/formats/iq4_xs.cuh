// IQ4_XS: nibbles; d (f16), the upper two bits of eight scales and their lower four, per 256
// values.
#pragma once
#include "formats/iq4.cuh"

struct iq4_xs : Quantised<iq4_xs> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = false, TABLES = false;
    struct Raw {
        uint4 q;
        uint2 facts;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), load_two(row + 4 * nb + 2 * (b >> 3))};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) { return iq4_codes(raw.q); }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned j = b & 7;
        const unsigned scale = ((raw.facts.y >> (4 * j)) & 15) | (((raw.facts.x >> (16 + 2 * j)) & 3) << 4);
        return one_scale(half_of(raw.facts.x, 0) * (float)((int)scale - 32));
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        return iq4_quad(row, b, g);
    }
};

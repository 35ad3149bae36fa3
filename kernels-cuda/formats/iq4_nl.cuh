// IQ4_NL: nibbles; d (f16) per 32 values.
#pragma once
#include "formats/iq4.cuh"

struct iq4_nl : Quantised<iq4_nl> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = false, TABLES = false;
    struct Raw {
        uint4 q;
        unsigned d;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), word_of_short(row + 4 * nb, b)};
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) { return iq4_codes(raw.q); }
    static DEVICE Scales steps(const Raw& raw, unsigned b) { return one_scale(half_of(raw.d, b)); }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        return iq4_quad(row, b, g);
    }
};

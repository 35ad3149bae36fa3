// MXFP4: nibbles, each an E2M1 float (sign, two bits of exponent, one of mantissa); an exponent per
// 32 values.
#pragma once
#include "lib/blocks.cuh"

struct mxfp4 : Quantised<mxfp4> {
    static constexpr int OFFSET = 0;
    static constexpr bool ONE = true, MINS = false, TABLES = false;
    struct Raw {
        uint4 q;
        unsigned exponents;
    };
    static DEVICE Raw load(const unsigned* row, unsigned nb, unsigned b) {
        return Raw{load_four(row + 4 * b), word_of_byte(row + 4 * nb, b)};
    }
    // The E2M1 values of the lower nibbles of four bytes, and of the upper ones, doubled. Zero has
    // no sign.
    static DEVICE uint2 doubles(unsigned word) {
        return lookup16(make_uint4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu), word);
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        const uint2 x = doubles(raw.q.x), y = doubles(raw.q.y), z = doubles(raw.q.z), w = doubles(raw.q.w);
        return Codes{{x.x, y.x, z.x, w.x, x.y, y.y, z.y, w.y}};
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned exponent = byte_of(raw.exponents, b);
        return one_scale(from_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23));
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        const uint2 both = doubles(load_one(row + 4 * b + (g & 3)));
        return g < 4 ? both.x : both.y;
    }
};

// MXFP4: nibbles, each a float of sign, two bits of exponent and one of mantissa; an exponent of each 32.
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
    // Twice the numbers of four nibbles, one in each byte.
    static DEVICE unsigned doubles(unsigned n) {
        const unsigned low = (n >> 1) & 0x01010101u;
        const unsigned high = (n >> 2) & 0x01010101u;
        const unsigned normal = low | high;
        const unsigned mantissa = n & 0x01010101u;
        const unsigned base = mantissa | (normal << 1);
        const unsigned doubled = base + (base & (high * 255u));
        const unsigned size = doubled + (doubled & ((low & high) * 255u));
        // Of zero there is only one.
        const unsigned negative = (n >> 3) & (mantissa | normal);
        return (size ^ (negative * 255u)) + negative;
    }
    static DEVICE Codes unpack(const Raw& raw, unsigned, const unsigned*) {
        Codes codes = nibbles_of(raw.q);
#pragma unroll
        for (unsigned g = 0; g < 8; g++) codes.q[g] = doubles(codes.q[g]);
        return codes;
    }
    static DEVICE Scales steps(const Raw& raw, unsigned b) {
        const unsigned exponent = byte_of(raw.exponents, b);
        return one_scale(from_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23));
    }
    static DEVICE unsigned quad(const unsigned* row, unsigned, unsigned b, unsigned g, const unsigned*) {
        return doubles(nibble_quad(row, b, g));
    }
};

// Code shared by the weight formats: codes of 32 values as eight words, four values in each, how
// planes of bits become codes, and their product with a block of activations.
// `backends/layout/src/planes.rs` defines the planes.
//
// A format is a struct. Block formats have OFFSET, ONE (all 32 values share a scale), MINS (there
// are minimums), and
//
//  Raw load(row, nb, b)              all words of block b, so that many loads can be in flight before the first use
//  Codes unpack(raw, b, tables)      codes that fit signed bytes
//  Scales steps(raw, b)              value = d * (code - OFFSET) - m
//  unsigned quad(row, nb, b, g, t)   codes 4g to 4g + 3 alone
//
// `row` is the start of a row, aligned to 16 bytes; `nb` is its number of blocks; `tables` is null
// if not needed.
#pragma once
#include "dialect.h"

// Group g of four values is word g.
struct Codes {
    unsigned q[8];
};

// d0 and m0 are for values 0 to 15, d1 and m1 for values 16 to 31.
struct Scales {
    float d0, d1, m0, m1;
};

DEVICE unsigned load_one(const unsigned* at) { return load_stream(at); }
DEVICE uint2 load_two(const unsigned* at) { return load_stream(reinterpret_cast<const uint2*>(at)); }
DEVICE uint4 load_four(const unsigned* at) { return load_stream(reinterpret_cast<const uint4*>(at)); }

// Elements of planes: the word that contains the short (16 bits) or byte i of a plane at `at`.
DEVICE unsigned word_of_short(const unsigned* at, unsigned i) { return load_one(at + (i >> 1)); }
DEVICE unsigned word_of_byte(const unsigned* at, unsigned i) { return load_one(at + (i >> 2)); }
DEVICE unsigned short_of(unsigned word, unsigned i) { return (word >> (16 * (i & 1))) & 0xffffu; }
DEVICE unsigned byte_of(unsigned word, unsigned i) { return (word >> (8 * (i & 3))) & 0xffu; }
DEVICE float half_of(unsigned word, unsigned i) { return half_to_float((unsigned short)short_of(word, i)); }
DEVICE int signed_byte_of(unsigned word, unsigned i) { return (int)(word << (24 - 8 * (i & 3))) >> 24; }

DEVICE Scales one_scale(float d) { return Scales{d, d, 0.0f, 0.0f}; }
DEVICE Scales two_scales(float d0, float d1) { return Scales{d0, d1, 0.0f, 0.0f}; }

DEVICE Codes nibbles_of(uint4 q) {
    const unsigned low = 0x0f0f0f0fu;
    return Codes{{q.x & low, q.y & low, q.z & low, q.w & low, (q.x >> 4) & low, (q.y >> 4) & low, (q.z >> 4) & low,
                  (q.w >> 4) & low}};
}

DEVICE Codes pairs_of(uint2 q) {
    const unsigned low = 0x03030303u;
    return Codes{{q.x & low, (q.x >> 2) & low, (q.x >> 4) & low, (q.x >> 6) & low, q.y & low, (q.y >> 2) & low,
                  (q.y >> 4) & low, (q.y >> 6) & low}};
}

// The bits of a word, each shifted to bit `by` of its code.
DEVICE Codes bits_of(unsigned word, unsigned by) {
    Codes codes;
#pragma unroll
    for (unsigned g = 0; g < 8; g++) {
        codes.q[g] = (g < by ? word << (by - g) : word >> (g - by)) & (0x01010101u << by);
    }
    return codes;
}

// Joins lower and upper bits of codes; the upper bits are shifted left by `by`.
DEVICE Codes joined(Codes low, Codes high, unsigned by) {
#pragma unroll
    for (unsigned g = 0; g < 8; g++) low.q[g] |= high.q[g] << by;
    return low;
}

DEVICE Codes joined_bits(Codes low, unsigned word, unsigned by) { return joined(low, bits_of(word, by), 0); }

// Nibbles of four values, for a plane of nibbles at the start of the row.
DEVICE unsigned nibble_quad(const unsigned* row, unsigned b, unsigned g) {
    return (load_one(row + 4 * b + (g & 3)) >> (4 * (g >> 2))) & 0x0f0f0f0fu;
}

DEVICE unsigned pair_quad(const unsigned* at, unsigned g) {
    return (load_one(at + (g >> 2)) >> (2 * (g & 3))) & 0x03030303u;
}

// Applies the signs of four bits to four values, none of them 0, so that nothing carries from byte
// to byte.
DEVICE unsigned with_signs(unsigned values, unsigned bits) {
    const unsigned negative = ((bits & 15) * 0x00204081u) & 0x01010101u;
    return (values ^ (negative * 255u)) + negative;
}

// Adds an eighth sign bit to seven, so that the number of set bits is even.
DEVICE unsigned even(unsigned seven) { return seven | ((popc(seven) & 1) << 7); }

// Codes of IQ1 in units of 1/8, with the delta of 1/8 added to or subtracted from each.
DEVICE unsigned one_eighth(unsigned values, bool take_off) {
    const unsigned moved = values ^ 0x80808080u;
    return (take_off ? moved - 0x01010101u : moved + 0x01010101u) ^ 0x80808080u;
}

// Scale and minimum of block b from the 16 bytes that Q4_K and Q5_K have for 8 blocks.
DEVICE Scales six_bits(uint4 all, unsigned b) {
    const unsigned by = 8 * (b & 3);
    const unsigned scale = (all.y >> by) & 0xff;
    const unsigned min = (all.z >> by) & 0xff;
    const unsigned both = (all.w >> by) & 0xff;
    const bool upper = (b & 4) != 0;
    const unsigned s = upper ? (both & 15) | ((scale >> 6) << 4) : scale & 63;
    const unsigned m = upper ? (both >> 4) | ((min >> 6) << 4) : min & 63;
    const float d = half_of(all.x, 0) * (float)s;
    const float below = half_of(all.x, 1) * (float)m;
    return Scales{d, d, below, below};
}

// A block of 32 activations as written by `quantize.cu`: 8 words of codes, d, and the sums of both
// halves of the codes.
struct Q8Block {
    uint4 lo, hi, facts;
};

constexpr unsigned Q8_WORDS = 12;

DEVICE Q8Block load_q8(const unsigned* x, unsigned b) {
    const uint4* at = reinterpret_cast<const uint4*>(x) + (size_t)3 * b;
    return Q8Block{at[0], at[1], at[2]};
}

// Code shared by the block formats.
template <class F>
struct Quantised {
    static constexpr bool FLOAT = false;
    static constexpr bool TRANSPOSED = false;

    static DEVICE Codes codes(const unsigned* row, unsigned nb, unsigned b, const unsigned* tables) {
        return F::unpack(F::load(row, nb, b), b, tables);
    }

    static DEVICE Scales scales(const unsigned* row, unsigned nb, unsigned b) { return F::steps(F::load(row, nb, b), b); }

    // Values 4q to 4q + 3 of a row.
    static DEVICE float4 four(const unsigned* row, unsigned n_cols, unsigned q, const unsigned* tables) {
        const unsigned nb = n_cols >> 5;
        const unsigned word = F::quad(row, nb, q >> 3, q & 7, tables);
        const Scales s = F::steps(F::load(row, nb, q >> 3), q >> 3);
        const bool upper = (q & 4) != 0;
        const float d = upper ? s.d1 : s.d0;
        const float m = upper ? s.m1 : s.m0;
        return make_float4(fmaf(d, (float)(signed_byte_of(word, 0) - F::OFFSET), -m),
                           fmaf(d, (float)(signed_byte_of(word, 1) - F::OFFSET), -m),
                           fmaf(d, (float)(signed_byte_of(word, 2) - F::OFFSET), -m),
                           fmaf(d, (float)(signed_byte_of(word, 3) - F::OFFSET), -m));
    }

    // `acc` plus the product of 32 values with a block of activations. Every rounding step is
    // explicit, so that all kernels that include this compute the same bits.
    static DEVICE float dot(float acc, const Codes& w, const Scales& s, const Q8Block& x) {
        const int sum0 = (int)x.facts.y;
        const int sum1 = (int)x.facts.z;
        int first = dot4((int)w.q[0], (int)x.lo.x, -F::OFFSET * sum0);
        first = dot4((int)w.q[1], (int)x.lo.y, first);
        first = dot4((int)w.q[2], (int)x.lo.z, first);
        first = dot4((int)w.q[3], (int)x.lo.w, first);
        int second = dot4((int)w.q[4], (int)x.hi.x, -F::OFFSET * sum1);
        second = dot4((int)w.q[5], (int)x.hi.y, second);
        second = dot4((int)w.q[6], (int)x.hi.z, second);
        second = dot4((int)w.q[7], (int)x.hi.w, second);
        return scaled(acc, s, first, second, x.facts);
    }

    // The result of `dot` from the integer sums of both halves, whose codes have the offset subtracted.
    static DEVICE float scaled(float acc, const Scales& s, int first, int second, uint4 facts) {
        float product;
        if constexpr (F::ONE) {
            product = s.d0 * (float)(first + second);
            if constexpr (F::MINS) {
                product = fmaf(-s.m0, (float)((int)facts.y + (int)facts.z), product);
            }
        } else {
            product = fmaf(s.d0, (float)first, s.d1 * (float)second);
            if constexpr (F::MINS) {
                product = fmaf(-s.m0, (float)(int)facts.y, fmaf(-s.m1, (float)(int)facts.z, product));
            }
        }
        return fmaf(from_bits(facts.x), product, acc);
    }
};

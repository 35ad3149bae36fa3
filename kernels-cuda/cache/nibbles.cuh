#pragma once
#include "lib/sums.cuh"

namespace cache {

/// Blocks of 32 codes of four or five bits: a scale (f16); with `has_min` the value of code 0 (f16);
/// with `five_bits` the highest bits of the codes; 16 bytes of nibbles, of which byte j has the lower
/// bits of codes j and j + 16. With `is_table`, codes are indices into `hal`'s `IQ4_CODES`. Blocks are
/// aligned to 2 bytes only.
struct nibble_blocks {
    static constexpr bool WHOLE = true;

    bool has_min, five_bits, is_table;

    DEVICE nibble_blocks(bool min, bool five, bool table) : has_min(min), five_bits(five), is_table(table) {}

    static DEVICE unsigned threads(unsigned n) { return n; }

    /// Half words before the nibbles.
    DEVICE unsigned head() const { return 1u + has_min + 2u * five_bits; }

    /// What is subtracted from a code.
    DEVICE int offset() const { return has_min || is_table ? 0 : five_bits ? 16 : 8; }

    DEVICE void store(const float* x, unsigned, unsigned i, unsigned* row, bool live) const {
        const float v = live ? x[i] : 0.0f;
        float scale, min = 0.0f;
        unsigned code;
        if (has_min) {
            min = -max_near(-v, 32);
            scale = divide(max_near(v, 32) - min, five_bits ? 31.0f : 15.0f);
            code = clamped((v - min) * inverse_of(scale) + 0.5f);
        } else if (is_table) {
            scale = divide(farthest_near(v), -127.0f);
            const float t = v * inverse_of(scale);
            code = nearest(t);
            const float own = entry(code), weighted = t * t * own;
            const float products = sum_near(weighted * t, 32), squares = sum_near(weighted * own, 32);
            if (squares > 0.0f) scale *= divide(products, squares);
        } else {
            scale = divide(farthest_near(v), five_bits ? -16.0f : -8.0f);
            code = clamped(v * inverse_of(scale) + (five_bits ? 16.5f : 8.5f));
        }
        const unsigned byte = (code & 15u) | (shfl_xor(code, 16) & 15u) << 4, next = shfl_xor(byte, 1);
        const unsigned high = unsigned(ballot(code >= 16u) >> (lane() & 32u)), at = i % 32;
        unsigned short* block = reinterpret_cast<unsigned short*>(row) + (head() + 8) * (i / 32);
        if (live && at < 16 && at % 2 == 0) block[head() + at / 2] = static_cast<unsigned short>(byte | next << 8);
        if (!live || at != 0) return;
        block[0] = float_to_half(scale);
        if (has_min) block[1] = float_to_half(min);
        if (five_bits) {
            block[head() - 2] = static_cast<unsigned short>(high);
            block[head() - 1] = static_cast<unsigned short>(high >> 16);
        }
    }

    DEVICE void eight(const unsigned* row, unsigned i, float* out) const {
        const unsigned at = i % 32;
        const unsigned short* block = reinterpret_cast<const unsigned short*>(row) + (head() + 8) * (i / 32);
        const unsigned short* codes = block + head() + at % 16 / 2;
        const float scale = half_to_float(block[0]), min = has_min ? half_to_float(block[1]) : 0.0f;
        const unsigned high = five_bits ? unsigned(block[head() - 2 + at / 16]) >> at % 16 : 0u;
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const unsigned word = codes[2 * half] | unsigned(codes[2 * half + 1]) << 16;
            const unsigned quad = signed_bytes(word, at / 16, high >> 4 * half);
#pragma unroll
            for (unsigned j = 0; j < 4; j++) {
                const float v = scale * float(int(quad << (24 - 8 * j)) >> 24);
                out[4 * half + j] = has_min ? v + min : v;
            }
        }
    }

    /// The four codes in the upper or lower nibbles of a word, with their highest bits, as signed bytes.
    DEVICE unsigned signed_bytes(unsigned word, unsigned upper, unsigned high) const {
        if (is_table) {
            const uint2 both = lookup16(make_uint4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u), word);
            return upper ? both.y : both.x;
        }
        // Four bits to the fifth bits of four bytes.
        const unsigned fifth = ((high & 15u) * 0x00204081u & 0x01010101u) << 4;
        const unsigned quad = (word >> 4 * upper & 0x0f0f0f0fu) | fifth;
        return ((quad | 0x80808080u) - unsigned(offset()) * 0x01010101u) ^ 0x80808080u;
    }

    /// The code of a value between 0 and the largest code; 0 for NaN.
    DEVICE unsigned clamped(float v) const { return unsigned(fminf(fmaxf(v, 0.0f), five_bits ? 31.0f : 15.0f)); }

    static DEVICE float inverse_of(float scale) { return scale != 0.0f ? divide(1.0f, scale) : 0.0f; }

    /// The index of the entry of `IQ4_CODES` nearest to t, of two the upper one.
    static DEVICE unsigned nearest(float t) {
        const float middles[15] = {-115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f, 7.0f, 19.0f, 31.5f, 45.5f,
            61.0f, 79.0f, 101.0f};
        unsigned code = 0;
#pragma unroll
        for (unsigned m = 0; m < 15; m++) code += t >= middles[m];
        return code;
    }

    static DEVICE float entry(unsigned code) {
        const uint2 both = lookup16(make_uint4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u), code);
        return float(int(both.x << 24) >> 24);
    }

    /// Of the 32 lanes' values the one with the largest magnitude, of several the one in the lowest lane.
    /// It is 0 for zeros and NaN.
    static DEVICE float farthest_near(float v) {
        v = fabsf(v) > 0.0f ? v : 0.0f;
        for (unsigned o = 1; o < 32; o <<= 1) {
            const float other = shfl_xor(v, o);
            if (fabsf(other) > fabsf(v) || (fabsf(other) == fabsf(v) && (lane() & o))) v = other;
        }
        return v;
    }
};

}  // namespace cache

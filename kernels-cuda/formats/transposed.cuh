// A down matrix with one row per neuron (`hal::format::TransposedLayout`): a row of codes per
// slot, its group number, and one scale and minimum per group and output.
#pragma once
#include "lib/blocks.cuh"

struct Side {
    const unsigned* groups;
    const unsigned* scales;
    // Null if the format has no minimums.
    const unsigned* mins;
    // Words in a row of scales or of minimums.
    unsigned row_words;
    // The offset that is subtracted from nibbles.
    int offset;
    // Whether scales are F32; otherwise F16.
    unsigned wide;
};

template <bool NIBBLES>
struct Transposed {
    static constexpr bool FLOAT = false;
    static constexpr bool TRANSPOSED = true;
    static constexpr bool TABLES = false;
    static constexpr bool FOUR_BITS = NIBBLES;

    static DEVICE float4 table(const unsigned* row, unsigned q, unsigned wide) {
        if (wide != 0) {
            const unsigned* at = row + 4 * q;
            return make_float4(from_bits(at[0]), from_bits(at[1]), from_bits(at[2]), from_bits(at[3]));
        }
        const unsigned first = row[2 * q];
        const unsigned second = row[2 * q + 1];
        return make_float4(half_of(first, 0), half_of(first, 1), half_of(second, 0), half_of(second, 1));
    }

    // Values 4q to 4q + 3 of a slot, whose codes begin at `row`. `slot` counts from the first row in memory.
    static DEVICE float4 four(const unsigned* row, unsigned slot, unsigned q, const Side& side) {
        const unsigned codes = NIBBLES ? nibble_quad(row, q >> 3, q & 7) : load_one(row + q);
        const size_t group = (size_t)side.groups[slot] * side.row_words;
        const float4 d = table(side.scales + group, q, side.wide);
        const float4 v = make_float4(
            (float)(signed_byte_of(codes, 0) - side.offset), (float)(signed_byte_of(codes, 1) - side.offset),
            (float)(signed_byte_of(codes, 2) - side.offset), (float)(signed_byte_of(codes, 3) - side.offset));
        if (side.mins == nullptr) return make_float4(d.x * v.x, d.y * v.y, d.z * v.z, d.w * v.w);
        const float4 m = table(side.mins + group, q, side.wide);
        return make_float4(fmaf(d.x, v.x, -m.x), fmaf(d.y, v.y, -m.y), fmaf(d.z, v.z, -m.z), fmaf(d.w, v.w, -m.w));
    }
};

struct transposed_nibbles : Transposed<true> {};
struct transposed_bytes : Transposed<false> {};

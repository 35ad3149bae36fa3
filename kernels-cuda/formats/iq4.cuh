// Codes of IQ4: a nibble is a table index.
#pragma once
#include "lib/blocks.cuh"

// The codes of the lower nibbles of four bytes, and those of the upper ones: `IQ4_CODES` of `hal`.
DEVICE uint2 iq4_pairs(unsigned word) {
    return lookup16(make_uint4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u), word);
}

DEVICE Codes iq4_codes(uint4 q) {
    const uint2 x = iq4_pairs(q.x), y = iq4_pairs(q.y), z = iq4_pairs(q.z), w = iq4_pairs(q.w);
    return Codes{{x.x, y.x, z.x, w.x, x.y, y.y, z.y, w.y}};
}

DEVICE unsigned iq4_quad(const unsigned* row, unsigned b, unsigned g) {
    const uint2 both = iq4_pairs(load_one(row + 4 * b + (g & 3)));
    return g < 4 ? both.x : both.y;
}

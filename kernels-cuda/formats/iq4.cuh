// Codes of IQ4: a nibble is a place in a table, whose entries stand for two nibbles at once.
#pragma once
#include "lib/blocks.cuh"

// The codes of four bytes: those of their lower nibbles, and of their upper ones.
DEVICE uint2 iq4_pairs(unsigned word, const unsigned* tables) {
    const unsigned a = tables[8448 + byte_of(word, 0)];
    const unsigned b = tables[8448 + byte_of(word, 1)];
    const unsigned c = tables[8448 + byte_of(word, 2)];
    const unsigned d = tables[8448 + byte_of(word, 3)];
    // Entries have their codes in bytes 0 and 2 and nothing beside them.
    const unsigned ab = a | (b << 8);
    const unsigned cd = c | (d << 8);
    return make_uint2((ab & 0xffffu) | (cd << 16), (ab >> 16) | (cd & 0xffff0000u));
}

DEVICE Codes iq4_codes(uint4 q, const unsigned* tables) {
    const uint2 x = iq4_pairs(q.x, tables);
    const uint2 y = iq4_pairs(q.y, tables);
    const uint2 z = iq4_pairs(q.z, tables);
    const uint2 w = iq4_pairs(q.w, tables);
    return Codes{{x.x, y.x, z.x, w.x, x.y, y.y, z.y, w.y}};
}

DEVICE unsigned iq4_quad(const unsigned* row, unsigned b, unsigned g, const unsigned* tables) {
    const uint2 both = iq4_pairs(load_one(row + 4 * b + (g & 3)), tables);
    return g < 4 ? both.x : both.y;
}

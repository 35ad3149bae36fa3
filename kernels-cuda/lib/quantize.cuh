// Quantisation to Q8 blocks with the bits of `hal::format::quantize_q8`.
#pragma once
#include "lib/blocks.cuh"

// Eight neighbours quantise a block, four values each: `v` are values 4 * lane to 4 * lane + 3 of
// it. `q` is the destination of the block. Called by all threads of a warp; those with `inside`
// false write nothing.
DEVICE void quantize_block(float4 v, unsigned* q, bool inside) {
    const unsigned mine = lane() & 7;
    // As bit patterns, magnitudes sort like the floats, with infinity and NaN on top.
    const unsigned most_x = bits(v.x) & 0x7fffffffu, most_y = bits(v.y) & 0x7fffffffu;
    const unsigned most_z = bits(v.z) & 0x7fffffffu, most_w = bits(v.w) & 0x7fffffffu;
    const unsigned most_xy = most_x > most_y ? most_x : most_y;
    const unsigned most_zw = most_z > most_w ? most_z : most_w;
    unsigned most = most_xy > most_zw ? most_xy : most_zw;
    for (unsigned by = 1; by < 8; by <<= 1) {
        const unsigned other = shfl_xor(most, by);
        most = other > most ? other : most;
    }
    const bool finite = most < 0x7f800000u;
    float d = finite ? divide(from_bits(most), 127.0f) : 0.0f;
    // If d is subnormal, all values of the block become 0.
    if (bits(d) < 0x00800000u) d = 0.0f;
    int x = 0, y = 0, z = 0, w = 0;
    if (d != 0.0f) {
        const float inverse = divide(127.0f, from_bits(most));
        x = (int)fminf(fmaxf(rintf(v.x * inverse), -127.0f), 127.0f);
        y = (int)fminf(fmaxf(rintf(v.y * inverse), -127.0f), 127.0f);
        z = (int)fminf(fmaxf(rintf(v.z * inverse), -127.0f), 127.0f);
        w = (int)fminf(fmaxf(rintf(v.w * inverse), -127.0f), 127.0f);
    }
    int sum = x + y + z + w;
    sum += shfl_xor(sum, 1);
    sum += shfl_xor(sum, 2);
    // The sum of the other half goes to lane 0.
    const int upper = shfl_xor(sum, 4);
    if (!inside) return;
    q[mine] = (x & 0xff) | ((y & 0xff) << 8) | ((z & 0xff) << 16) | ((unsigned)w << 24);
    if (mine == 0) {
        const uint4 facts = make_uint4(finite ? bits(d) : 0x7fc00000u, (unsigned)sum, (unsigned)upper, 0);
        *reinterpret_cast<uint4*>(q + 8) = facts;
    }
}

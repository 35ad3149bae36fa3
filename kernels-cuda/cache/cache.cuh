#pragma once
// Formats of cached keys and values: `cache::f16` and so on. A row has the bytes of the format,
// padded to whole words. Each has
//
//  threads(n)                threads that store a row of n values together
//  store(x, n, i, row, live) thread i's share of n values of x; writes nothing unless live, but all of a warp call it
//  WHOLE                     whether eight(...) is always allowed
//  one(row, i)               value i
//  eight(row, i, out)        values i to i + 7 for i a multiple of 8, if the host has checked that rows and heads are
//                            aligned for a single load
#include "dialect.h"

namespace cache {

// In integers, because the drivers' conversions of halves and NaN differ.
DEVICE unsigned to_bf16(float v) {
    const unsigned word = bits(v);
    if ((word & 0x7fffffffu) > 0x7f800000u) return (word >> 16) | 0x40u;
    return (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
}

}  // namespace cache

#include "cache/bf16.cuh"
#include "cache/f16.cuh"
#include "cache/f32.cuh"
#include "cache/q8_0.cuh"

#pragma once
// What keys and values are cached in: `cache::f16` and so on. A row is the file's bytes, filled up to whole words. Each has
//
//   threads(n)                threads that store a row of n values together
//   store(x, n, i, row, live) thread i's part of n values of x; nothing unless live, but all of a wave call it
//   WHOLE                     whether eight can always be asked for
//   one(row, i)               value i
//   eight(row, i, out)        values i to i + 7 for i a multiple of 8, where the host has found rows and heads to lie so that
//                             they are loaded at once
#include "dialect.h"

namespace cache {

// In integers: what drivers do with halves and with what is no number differs.
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

#pragma once
// Formats of cached keys and values: `cache::f16` and so on. A row has the bytes of the format,
// padded to whole words. A format has
//
//  threads(n)                threads that store a row of n values together
//  store(x, n, i, row, live) stores the values of thread i, of the n in x, if live; called by all threads of a warp
//  WHOLE                     whether eight(...) is always allowed
//  one(row, i)               value i; not for blocks of 32 values
//  eight(row, i, out)        values i to i + 7, for a multiple i of 8; unless WHOLE, only if the host has checked that
//                            rows and heads are aligned for a single load
//
// A kernel file is compiled for some formats, with keys and values in the same one, and once for
// `dynamic`, whose formats are arguments of the kernel. `Choice` hides the difference.
#include "dialect.h"

namespace cache {

// Converts in integers, because the drivers' own conversions differ for ties and NaN.
DEVICE unsigned to_bf16(float v) {
    const unsigned word = bits(v);
    if ((word & 0x7fffffffu) > 0x7f800000u) return (word >> 16) | 0x40u;
    return (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
}

/// The format of the keys or of the values; the argument of the kernel counts only for `dynamic`.
template <class Format> struct Choice {
    DEVICE explicit Choice(unsigned) {}
    /// Calls `f` with the format.
    template <class F> DEVICE void visit(F f) const { f(Format()); }
};

}  // namespace cache

#include "cache/bf16.cuh"
#include "cache/f16.cuh"
#include "cache/f32.cuh"
#include "cache/q4_0.cuh"
#include "cache/q8_0.cuh"
#include "cache/dynamic.cuh"

#pragma once
#include "cache/bf16.cuh"
#include "cache/f16.cuh"
#include "cache/f32.cuh"
#include "cache/nibbles.cuh"
#include "cache/q8_0.cuh"

namespace cache {

/// A format that is known when the kernel runs.
struct dynamic {};

/// The branch is the same for all threads. Callers visit once for several loads, which then overlap.
template <> struct Choice<dynamic> {
    /// The format's number in GGUF files.
    unsigned format;

    DEVICE explicit Choice(unsigned chosen) : format(chosen) {}

    template <class F> DEVICE void visit(F f) const {
        switch (format) {
            case 0: f(f32()); break;
            case 1: f(f16()); break;
            case 30: f(bf16()); break;
            case 8: f(q8_0()); break;
            // 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 20: IQ4_NL
            default: f(nibble_blocks(format == 3 || format == 7, format == 6 || format == 7, format == 20));
        }
    }
};

}  // namespace cache

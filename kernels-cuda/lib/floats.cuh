// Code shared by the float formats. A format is a struct: PER values in 16 bytes, and
//
//   values(word, out)      the PER / 4 values of one word
//
// Rows begin at whole words; rows whose length is a multiple of 16 bytes are loaded 16 bytes at a time.
#pragma once
#include "lib/blocks.cuh"

template <class F, unsigned N>
struct Floats {
    static constexpr bool FLOAT = true;
    static constexpr bool TRANSPOSED = false;
    static constexpr bool TABLES = false;
    static constexpr unsigned PER = N;
    static constexpr unsigned PER_WORD = N / 4;
    // Whether 10 mantissa bits represent every value: F16 and BF16.
    static constexpr bool SHORT = N == 8;

    // All values of 16 bytes.
    static DEVICE void unpack(uint4 words, float (&out)[N]) {
        F::values(words.x, out);
        F::values(words.y, out + PER_WORD);
        F::values(words.z, out + 2 * PER_WORD);
        F::values(words.w, out + 3 * PER_WORD);
    }

    // Value k of a row; 0 past its end.
    static DEVICE float one(const unsigned* row, unsigned n_cols, unsigned k) {
        if (k >= n_cols) return 0.0f;
        float both[PER_WORD];
        F::values(load_one(row + k / PER_WORD), both);
        return PER_WORD == 1 || k % PER_WORD == 0 ? both[0] : both[PER_WORD - 1];
    }

    // Values 4q to 4q + 3 of a row; 0 past its end.
    static DEVICE float4 four(const unsigned* row, unsigned n_cols, unsigned q, const unsigned*) {
        if (n_cols % 4 != 0) {
            return make_float4(one(row, n_cols, 4 * q), one(row, n_cols, 4 * q + 1), one(row, n_cols, 4 * q + 2),
                               one(row, n_cols, 4 * q + 3));
        }
        float out[4] = {};
        if (4 * q < n_cols) {
            if constexpr (PER_WORD == 2) {
                const uint2 words = load_two(row + 2 * q);
                F::values(words.x, out);
                F::values(words.y, out + 2);
            } else {
                unpack(load_four(row + 4 * q), out);
            }
        }
        return make_float4(out[0], out[1], out[2], out[3]);
    }
};

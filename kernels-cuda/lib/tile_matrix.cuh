// Products of a tile of blocks (tile_blocks.cuh), computed with MMA: WM by WN warps, each of which
// computes FM by FN fragments.
#pragma once
#include "lib/tile_dots.cuh"

#if HAS_MMA
template <class S>
struct MatrixProducts {
    static constexpr unsigned WAVES = TILE_THREADS / MmaBytes::LANES;
    static constexpr unsigned WN = S::ROWS == 128 ? 2 : WAVES / 2, WM = WAVES / WN;
    static constexpr unsigned FM = S::ROWS / (16 * WM), FN = S::TOKENS / (MmaBytes::COLUMNS * WN), OWN = MmaBytes::OWN;
    static_assert(16 * WM * FM == S::ROWS && MmaBytes::COLUMNS * WN * FN == S::TOKENS, "the waves make the tile");

    float sums[OWN * FM * FN];

    // Initial value of integer sums: the bits of 1.5 * 2^23. A sum is then the bits of that float
    // plus the products, which saves a conversion.
    static constexpr int BASE = 0x4b400000;

    static DEVICE float small(int sum) { return from_bits((unsigned)sum) - 12582912.0f; }

    static DEVICE unsigned first_row() { return thread() / MmaBytes::LANES % WM * FM * 16; }
    static DEVICE unsigned first_token() { return thread() / MmaBytes::LANES / WM * FN * MmaBytes::COLUMNS; }

    DEVICE void multiply(const S& at, unsigned stage) {
        const unsigned* left = at.row_codes(stage) + first_row() * S::STRIDE + MmaBytes::start(S::STRIDE);
        const unsigned* right = at.token_codes(stage) + first_token() * S::STRIDE + MmaBytes::start(S::STRIDE);
#pragma unroll 1
        for (unsigned k = 0; k < S::K; k++) {
            MmaBytes::Left a[FM];
            float row[FM][MmaBytes::OWN_ROWS][4];
#pragma unroll
            for (unsigned i = 0; i < FM; i++) {
                a[i] = MmaBytes::left(left + 16 * i * S::STRIDE + 8 * k, S::STRIDE);
                const float* fact = at.row_facts(stage, k) + first_row() + 16 * i;
#pragma unroll
                for (unsigned e = 0; e < MmaBytes::OWN_ROWS; e++) {
                    S::take(row[i][e], fact + MmaBytes::row(e), S::ROW_FACTS, S::ROWS);
                }
            }
#pragma unroll
            for (unsigned j = 0; j < FN; j++) {
                const MmaBytes::Right b = MmaBytes::right(right + MmaBytes::COLUMNS * j * S::STRIDE + 8 * k, S::STRIDE);
                const float* fact = at.token_facts(stage, k) + first_token() + MmaBytes::COLUMNS * j;
                float token[MmaBytes::OWN_COLUMNS][4];
#pragma unroll
                for (unsigned e = 0; e < MmaBytes::OWN_COLUMNS; e++) {
                    S::take(token[e], fact + MmaBytes::column(e), S::TOKEN_FACTS, S::TOKENS);
                }
#pragma unroll
                for (unsigned i = 0; i < FM; i++) {
                    int first[OWN], second[OWN];
#pragma unroll
                    for (unsigned e = 0; e < OWN; e++) first[e] = second[e] = BASE;
                    if constexpr (S::HALVES == 1) {
                        MmaBytes::multiply(first, a[i], b);
                    } else {
                        MmaBytes::multiply_halves(first, second, a[i], b);
                    }
#pragma unroll
                    for (unsigned e = 0; e < OWN; e++) {
                        float& sum = sums[OWN * (FN * i + j) + e];
                        sum = S::scaled(sum, small(first[e]), small(second[e]), row[i][e / MmaBytes::OWN_COLUMNS],
                                        token[e % MmaBytes::OWN_COLUMNS]);
                    }
                }
            }
        }
    }

    DEVICE void write(const Product& p, const Part& part, unsigned rows, unsigned tokens) {
#pragma unroll
        for (unsigned i = 0; i < FM; i++) {
#pragma unroll
            for (unsigned j = 0; j < FN; j++) {
#pragma unroll
                for (unsigned e = 0; e < OWN; e++) {
                    const unsigned row = rows + first_row() + 16 * i + MmaBytes::row(e / MmaBytes::OWN_COLUMNS);
                    const unsigned token =
                        tokens + first_token() + MmaBytes::COLUMNS * j + MmaBytes::column(e % MmaBytes::OWN_COLUMNS);
                    write_product(p, part, row, token, sums[OWN * (FN * i + j) + e]);
                }
            }
        }
    }
};
#else
template <class S>
using MatrixProducts = DotProducts<S>;
#endif

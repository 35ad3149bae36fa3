// Products of a tile of blocks (tile_blocks.cuh) by matrix units: WM by WN groups of 32 threads, with FM by FN small products
// each.
#pragma once
#include "lib/tile_dots.cuh"

#if HAS_MMA
template <class S, unsigned WM, unsigned WN, unsigned FM, unsigned FN>
struct MatrixProducts {
    static_assert(16 * WM * FM == S::ROWS && 8 * WN * FN == S::TOKENS && 32 * WM * WN == TILE_THREADS, "it is the tile");
    float sums[4 * FM * FN];

    // Sums begin at this number: as bits of a float they are 1.5 * 2^23 and the sum, which saves a conversion.
    static constexpr int BASE = 0x4b400000;

    static DEVICE float small(int sum) { return from_bits((unsigned)sum) - 12582912.0f; }

    DEVICE unsigned first_row() const { return thread() / 32 % WM * FM * 16 + thread() % 32 / 4; }
    DEVICE unsigned first_token() const { return thread() / 32 / WM * FN * 8; }

    DEVICE void multiply(const S& at, unsigned stage) {
        const unsigned inner = thread() % 4;
        const unsigned* left = at.row_codes(stage) + first_row() * S::STRIDE + inner;
        const unsigned* right = at.token_codes(stage) + (first_token() + thread() % 32 / 4) * S::STRIDE + inner;
#pragma unroll 1
        for (unsigned k = 0; k < S::K; k++) {
            unsigned a[FM][4];
            float row[FM][2][4];
#pragma unroll
            for (unsigned i = 0; i < FM; i++) {
                const unsigned* from = left + 16 * i * S::STRIDE + 8 * k;
                a[i][0] = from[0];
                a[i][1] = from[8 * S::STRIDE];
                a[i][2] = from[4];
                a[i][3] = from[8 * S::STRIDE + 4];
                const float* fact = at.row_facts(stage, k) + first_row() + 16 * i;
                S::take(row[i][0], fact, S::ROW_FACTS, S::ROWS);
                S::take(row[i][1], fact + 8, S::ROW_FACTS, S::ROWS);
            }
#pragma unroll
            for (unsigned j = 0; j < FN; j++) {
                const unsigned* from = right + 8 * j * S::STRIDE + 8 * k;
                const unsigned b[2] = {from[0], from[4]};
                const float* fact = at.token_facts(stage, k) + first_token() + 8 * j + 2 * inner;
                float token[2][4];
                S::take(token[0], fact, S::TOKEN_FACTS, S::TOKENS);
                S::take(token[1], fact + 1, S::TOKEN_FACTS, S::TOKENS);
#pragma unroll
                for (unsigned i = 0; i < FM; i++) {
                    int first[4] = {BASE, BASE, BASE, BASE};
                    int second[4] = {BASE, BASE, BASE, BASE};
                    if constexpr (S::HALVES == 1) {
                        mma_s8(first, a[i], b);
                    } else {
                        const unsigned lower[2] = {b[0], 0};
                        const unsigned upper[2] = {0, b[1]};
                        mma_s8(first, a[i], lower);
                        mma_s8(second, a[i], upper);
                    }
#pragma unroll
                    for (unsigned e = 0; e < 4; e++) {
                        float& sum = sums[4 * (FN * i + j) + e];
                        sum = S::scaled(sum, small(first[e]), small(second[e]), row[i][e / 2], token[e % 2]);
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
                for (unsigned e = 0; e < 4; e++) {
                    const unsigned row = rows + first_row() + 16 * i + 8 * (e / 2);
                    const unsigned token = tokens + first_token() + 8 * j + 2 * (thread() % 4) + e % 2;
                    write_product(p, part, row, token, sums[4 * (FN * i + j) + e]);
                }
            }
        }
    }
};
#else
template <class S, unsigned, unsigned, unsigned, unsigned>
using MatrixProducts = DotProducts<S>;
#endif

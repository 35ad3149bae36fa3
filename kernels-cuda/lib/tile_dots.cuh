// Products of a tile of blocks (tile_blocks.cuh) by dot products of four bytes.
#pragma once
#include "lib/tile_blocks.cuh"

template <class S>
struct DotProducts {
    // The rows of a thread are 16 apart, and so are its tokens.
    static constexpr unsigned R = S::ROWS / 16;
    static constexpr unsigned T = S::TOKENS / 16;

    float sums[R * T];

    DEVICE void multiply(const S& at, unsigned stage) {
        const unsigned* left = at.row_codes(stage) + thread() % 16 * S::STRIDE;
        const unsigned* right = at.token_codes(stage) + thread() / 16 * S::STRIDE;
#pragma unroll 1
        for (unsigned k = 0; k < S::K; k++) {
            uint4 lo[T], hi[T];
            float token[T][4];
#pragma unroll
            for (unsigned j = 0; j < T; j++) {
                const uint4* from = reinterpret_cast<const uint4*>(right + 16 * j * S::STRIDE + 8 * k);
                lo[j] = from[0];
                hi[j] = from[1];
                S::take(token[j], at.token_facts(stage, k) + thread() / 16 + 16 * j, S::TOKEN_FACTS, S::TOKENS);
            }
#pragma unroll
            for (unsigned i = 0; i < R; i++) {
                const uint4* from = reinterpret_cast<const uint4*>(left + 16 * i * S::STRIDE + 8 * k);
                const uint4 a = from[0];
                const uint4 b = from[1];
                float row[4];
                S::take(row, at.row_facts(stage, k) + thread() % 16 + 16 * i, S::ROW_FACTS, S::ROWS);
#pragma unroll
                for (unsigned j = 0; j < T; j++) {
                    int first = dot4((int)a.x, (int)lo[j].x, 0);
                    first = dot4((int)a.y, (int)lo[j].y, first);
                    first = dot4((int)a.z, (int)lo[j].z, first);
                    first = dot4((int)a.w, (int)lo[j].w, first);
                    int second = dot4((int)b.x, (int)hi[j].x, S::HALVES == 1 ? first : 0);
                    second = dot4((int)b.y, (int)hi[j].y, second);
                    second = dot4((int)b.z, (int)hi[j].z, second);
                    second = dot4((int)b.w, (int)hi[j].w, second);
                    float& sum = sums[T * i + j];
                    sum = S::scaled(sum, (float)(S::HALVES == 1 ? second : first), (float)second, row, token[j]);
                }
            }
        }
    }

    DEVICE void write(const Product& p, const Part& part, unsigned rows, unsigned tokens) {
#pragma unroll
        for (unsigned i = 0; i < R; i++) {
#pragma unroll
            for (unsigned j = 0; j < T; j++) {
                const unsigned row = rows + thread() % 16 + 16 * i;
                write_product(p, part, row, tokens + thread() / 16 + 16 * j, sums[T * i + j]);
            }
        }
    }
};

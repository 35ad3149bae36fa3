// A tile of down (tile_down.cuh), computed with MMA: each warp of 32 threads computes FM by FN
// fragments of 16 columns and 8 tokens.
#pragma once
#include "lib/split.cuh"
#include "lib/tile_down_plain.cuh"

#if HAS_MMA_FLOATS
template <class W>
struct MatrixDown {
    // Floats per row, including padding of eight columns, which avoids bank conflicts between
    // readers of four rows.
    static constexpr unsigned STRIDE = 128 + 8;
    static constexpr unsigned FOURS = 16 * STRIDE / 4 + 4 * 64;

    static DEVICE constexpr bool is_short() {
        if constexpr (W::FLOAT) return W::SHORT;
        return false;
    }
    // Split floats need more registers, so fewer columns are processed at a time.
    static constexpr unsigned WM = is_short() ? 4 : 8, FM = 8 / WM, FN = WM;

    float4* fours;
    float sums[FM][FN][4];

    // Rows t, t + 4, t + 8 and t + 12 of a token are adjacent, as a thread reads them.
    DEVICE void store(const DownValues<W>& next) {
        const unsigned t = thread(), at = 4 * (t % 4) + t % 16 / 4;
        float* value = reinterpret_cast<float*>(fours + 4 * STRIDE);
#pragma unroll
        for (unsigned k = 0; k < 2; k++) fours[STRIDE / 4 * (8 * k + t / 32) + t % 32] = next.fours[k];
#pragma unroll
        for (unsigned k = 0; k < 4; k++) value[16 * (16 * k + t / 16) + at] = next.values[k];
    }

    DEVICE void multiply() {
        const unsigned g = thread() % 32 / 4, t = thread() % 4;
        const float* left = reinterpret_cast<const float*>(fours) + STRIDE * t + thread() / 32 % WM * 16 * FM + g;
        const float4* right = fours + 4 * STRIDE + 4 * (thread() / 32 / WM * 8 * FN + g) + t;
        Split a[FM][2][4];
#pragma unroll
        for (unsigned i = 0; i < FM; i++) {
#pragma unroll
            for (unsigned e = 0; e < 8; e++) {
                a[i][e / 4][e % 4] = split<is_short()>(left[STRIDE * (8 * (e / 4) + 4 * (e % 4 / 2)) + 16 * i + 8 * (e % 2)]);
            }
        }
#pragma unroll
        for (unsigned j = 0; j < FN; j++) {
            const float4 b = right[4 * 8 * j];
            const Split first[2] = {split<false>(b.x), split<false>(b.y)};
            const Split second[2] = {split<false>(b.z), split<false>(b.w)};
#pragma unroll
            for (unsigned i = 0; i < FM; i++) {
                // Matrix instructions truncate their sums, so they add no more than 16 rows.
                float own[4] = {};
                mma_split<is_short()>(own, a[i][0], first);
                mma_split<is_short()>(own, a[i][1], second);
#pragma unroll
                for (unsigned e = 0; e < 4; e++) sums[i][j][e] += own[e];
            }
        }
    }

    DEVICE void write(const DownWork& work) {
        const unsigned first = 128 * block_index().x + thread() / 32 % WM * 16 * FM + thread() % 32 / 4;
        const unsigned token = work.first_token + thread() / 32 / WM * 8 * FN + 2 * (thread() % 4);
#pragma unroll
        for (unsigned i = 0; i < FM; i++) {
#pragma unroll
            for (unsigned j = 0; j < FN; j++) {
#pragma unroll
                for (unsigned e = 0; e < 4; e++) {
                    write_down(work, token + 8 * j + e % 2, first + 16 * i + 8 * (e / 2), sums[i][j][e]);
                }
            }
        }
    }
};
#else
template <class W>
using MatrixDown = PlainDown<W>;
#endif

// tile_floats.cuh computed with MMA: each warp of 32 threads computes FM by FN fragments.
#pragma once
#include "lib/split.cuh"
#include "lib/tile_floats.cuh"

#if HAS_MMA_FLOATS
template <class W, unsigned V>
struct MatrixFloatTile {
    static constexpr unsigned ROWS = 64 * V;
    static constexpr unsigned TOKENS = TILE_TOKENS;
    static constexpr unsigned COLUMNS = 16;
    // Four columns each, of rows and then of tokens: eight threads read from all banks.
    static constexpr unsigned STAGE = COLUMNS / 4 * (ROWS + TOKENS);
    // Split floats need more registers, so fewer rows are processed at a time.
    static constexpr unsigned WM = W::SHORT || V == 1 ? 4 : 8, FM = 4 * V / WM, FN = WM;
    typedef FloatValues<W, V> Values;

    float4* fours;
    float sums[FM][FN][4];

    DEVICE unsigned first_row() const { return thread() / 32 % WM * FM * 16 + thread() % 32 / 4; }
    DEVICE unsigned first_token() const { return thread() / 32 / WM * FN * 8; }

    DEVICE void store(unsigned stage, const Values& values) {
        float4* to = fours + (stage & 1) * STAGE + thread();
#pragma unroll
        for (unsigned i = 0; i < V; i++) to[TILE_THREADS * i] = values.rows[i];
        to[COLUMNS / 4 * ROWS] = values.token;
    }

    // A thread has columns 4 t to 4 t + 3 of its rows: two steps of 8 columns, in a permuted
    // order.
    DEVICE void multiply(unsigned stage) {
        const float4* left = fours + (stage & 1) * STAGE + COLUMNS / 4 * first_row() + thread() % 4;
        const float4* right = fours + (stage & 1) * STAGE + COLUMNS / 4 * (ROWS + first_token() + thread() % 32 / 4) +
                              thread() % 4;
        float4 a[FM][2];
#pragma unroll
        for (unsigned i = 0; i < FM; i++) {
            a[i][0] = left[COLUMNS / 4 * 16 * i];
            a[i][1] = left[COLUMNS / 4 * (16 * i + 8)];
        }
#pragma unroll
        for (unsigned j = 0; j < FN; j++) {
            const float4 b = right[COLUMNS / 4 * 8 * j];
            const Split first[2] = {split<false>(b.x), split<false>(b.y)};
            const Split second[2] = {split<false>(b.z), split<false>(b.w)};
#pragma unroll
            for (unsigned i = 0; i < FM; i++) {
                const float4 upper = a[i][0], lower = a[i][1];
                const Split one[4] = {split<W::SHORT>(upper.x), split<W::SHORT>(lower.x), split<W::SHORT>(upper.y),
                                      split<W::SHORT>(lower.y)};
                const Split two[4] = {split<W::SHORT>(upper.z), split<W::SHORT>(lower.z), split<W::SHORT>(upper.w),
                                      split<W::SHORT>(lower.w)};
                // Matrix instructions truncate their sums, so they add no more than 16 columns.
                float own[4] = {};
                mma_split<W::SHORT>(own, one, first);
                mma_split<W::SHORT>(own, two, second);
#pragma unroll
                for (unsigned e = 0; e < 4; e++) sums[i][j][e] += own[e];
            }
        }
    }

    static DEVICE void run(const Product& p, const Part& part) {
        const unsigned rows = part.begin + ROWS * block_index().x;
        const unsigned tokens = TOKENS * block_index().y;
        if (rows >= part.end || tokens >= part.n_tokens) return;
        SHARED(float4, shared_fours, 2 * STAGE);
        MatrixFloatTile tile = {shared_fours, {}};
        const unsigned n_stages = (p.n_cols + COLUMNS - 1) / COLUMNS;
        Values values;
        values.load(p, part, rows, tokens, 0);
        tile.store(0, values);
        barrier();
#pragma unroll 1
        for (unsigned stage = 0; stage < n_stages; stage++) {
            const bool more = stage + 1 < n_stages;
            if (more) values.load(p, part, rows, tokens, stage + 1);
            tile.multiply(stage);
            if (more) tile.store(stage + 1, values);
            barrier();
        }
#pragma unroll
        for (unsigned i = 0; i < FM; i++) {
#pragma unroll
            for (unsigned j = 0; j < FN; j++) {
#pragma unroll
                for (unsigned e = 0; e < 4; e++) {
                    const unsigned row = rows + tile.first_row() + 16 * i + 8 * (e / 2);
                    const unsigned token = tokens + tile.first_token() + 8 * j + 2 * (thread() % 4) + e % 2;
                    write_product(p, part, row, token, tile.sums[i][j][e]);
                }
            }
        }
    }
};
#else
template <class W, unsigned V>
using MatrixFloatTile = FloatTile<W, V>;
#endif

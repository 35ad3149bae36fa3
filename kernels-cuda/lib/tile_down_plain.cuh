// A tile of down (tile_down.cuh), 4 columns of 8 tokens per thread.
#pragma once
#include "lib/tile_down.cuh"

template <class W>
struct PlainDown {
    // Four columns of 16 rows, and 16 rows of 64 tokens, with 4 floats of padding to avoid bank
    // conflicts between writers.
    static constexpr unsigned VALUES = 17, FOURS = 512 + 16 * VALUES;

    float4* fours;
    float sums[8][4];

    DEVICE void store(const DownValues<W>& next) {
        const unsigned t = thread();
        float* value = reinterpret_cast<float*>(fours + 512);
#pragma unroll
        for (unsigned k = 0; k < 2; k++) fours[256 * k + t] = next.fours[k];
#pragma unroll
        for (unsigned k = 0; k < 4; k++) value[4 * VALUES * (t % 16) + 16 * k + t / 16] = next.values[k];
    }

    DEVICE void multiply() {
        const unsigned tx = thread() % 32, ty = thread() / 32;
        const float4* values = fours + 512;
#pragma unroll 4
        for (unsigned r = 0; r < 16; r++) {
            const float4 w = fours[32 * r + tx];
            const float4 low = values[VALUES * r + 2 * ty], high = values[VALUES * r + 2 * ty + 1];
            const float by[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (unsigned j = 0; j < 8; j++) {
                sums[j][0] = fmaf(by[j], w.x, sums[j][0]);
                sums[j][1] = fmaf(by[j], w.y, sums[j][1]);
                sums[j][2] = fmaf(by[j], w.z, sums[j][2]);
                sums[j][3] = fmaf(by[j], w.w, sums[j][3]);
            }
        }
    }

    DEVICE void write(const DownWork& work) {
        const unsigned token = work.first_token + thread() / 32 * 8, column = 128 * block_index().x + 4 * (thread() % 32);
#pragma unroll
        for (unsigned j = 0; j < 8; j++) {
#pragma unroll
            for (unsigned c = 0; c < 4; c++) write_down(work, token + j, column + c, sums[j][c]);
        }
    }
};

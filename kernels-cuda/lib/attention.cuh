#pragma once
// What both ways of attention share: sizes, loads of pieces of heads, where a span's result goes.
#include "cache/cache.cuh"
#include "lib/batch.cuh"
#include "lib/sums.cuh"
#include "lib/wide.cuh"

namespace attention {

/// Less than every score.
static constexpr float LOW = -3.0e38f;
/// Positions that are scored between two barriers: two blocks of the cache.
static constexpr unsigned CHUNK = 64;
/// Values that a thread loads at once.
static constexpr unsigned PIECE = 8;

/// Bits of `wide`: which of keys, values and queries lie so that pieces are loaded at once.
static constexpr unsigned WIDE_K = 1, WIDE_V = 2, WIDE_Q = 4;

/// Eight values of a head of `d` from value i on; zeros behind its end.
template <class C> DEVICE void load_piece(const unsigned* row, unsigned first, unsigned i, unsigned d, bool wide, float* out) {
    if (wide) {
        C::eight(row, first + i, out);
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < PIECE; j++) out[j] = i + j < d ? C::one(row, first + i + j) : 0.0f;
}

/// Eight values of queries.
DEVICE void load_query(const float* head, unsigned i, unsigned d, bool wide, float* out) {
    if (wide) {
        const float4 low = load4(head + i), high = load4(head + i + 4);
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < PIECE; j++) out[j] = i + j < d ? head[i + j] : 0.0f;
}

DEVICE float capped(float score, float softcap) { return softcap == 0.0f ? score : softcap * tanhf(score / softcap); }

/// The first position that a token at `pos` sees.
DEVICE unsigned first_seen(unsigned pos, unsigned window) { return window != 0 && pos + 1 > window ? pos + 1 - window : 0; }

/// Where what a span ends in lies: weighted values of all spans, and behind them the largest score and the sum of weights.
struct Parts {
    float *sums, *facts;

    DEVICE Parts(float* parts, unsigned n_rows, unsigned n_head, unsigned n_spans, unsigned d_value)
        : sums(parts), facts(parts + size_t(n_rows) * n_head * n_spans * d_value) {}
};

}  // namespace attention

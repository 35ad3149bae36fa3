#pragma once
// Code shared by both attention kernels: sizes, loads of eight values of a head, and the location of
// a span's result.
#include "cache/cache.cuh"
#include "lib/batch.cuh"
#include "lib/sums.cuh"
#include "lib/wide.cuh"

namespace attention {

/// A number below every score.
static constexpr float LOW = -3.0e38f;
/// Positions that are scored between two barriers: two blocks of the cache.
static constexpr unsigned CHUNK = 64;
/// Values that a thread loads at once.
static constexpr unsigned PIECE = 8;

/// Bits of `wide`: whether keys, values and queries are aligned for vector loads.
static constexpr unsigned WIDE_K = 1, WIDE_V = 2, WIDE_Q = 4;

/// Loads eight values of a head of `d` values, from value i on; zeros past the end of the head.
template <class C>
DEVICE void load_piece(C format, const unsigned* row, unsigned first, unsigned i, unsigned d, bool wide, float* out) {
    if constexpr (C::WHOLE) {
        format.eight(row, first + i, out);
    } else if (wide) {
        format.eight(row, first + i, out);
    } else {
#pragma unroll
        for (unsigned j = 0; j < PIECE; j++) out[j] = i + j < d ? format.one(row, first + i + j) : 0.0f;
    }
}

/// Loads eight values of a head of `d` values, from value i on, of each of N rows of the cache; unless
/// ALL, rows may be null, for zeros. A visitor of `cache::Choice`.
template <unsigned N, bool ALL> struct LoadPieces {
    const unsigned* const* rows;
    unsigned first, i, d;
    bool wide;
    float (*out)[PIECE];

    template <class C> DEVICE void operator()(C format) const {
        if (C::WHOLE || wide) {
#pragma unroll
            for (unsigned n = 0; n < N; n++) {
                if (ALL || rows[n]) format.eight(rows[n], first + i, out[n]);
                else clear(out[n]);
            }
        } else {
#pragma unroll
            for (unsigned n = 0; n < N; n++) {
                if (ALL || rows[n]) load_piece(format, rows[n], first, i, d, false, out[n]);
                else clear(out[n]);
            }
        }
    }

    static DEVICE void clear(float* to) {
#pragma unroll
        for (unsigned j = 0; j < PIECE; j++) to[j] = 0.0f;
    }
};

/// Loads eight values of a query head of `d` values, from value i on.
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

DEVICE void store_piece(float* to, const float* own) {
    store4(to, make_float4(own[0], own[1], own[2], own[3]));
    store4(to + 4, make_float4(own[4], own[5], own[6], own[7]));
}

/// Applies a soft cap other than 0 to a score. The platforms' own hyperbolic tangent is slower,
/// because it is also exact near 0.
DEVICE float capped(float score, float softcap) {
    const float e = expf(-2.0f * fabsf(score / softcap));
    const float size = softcap * ((1.0f - e) / (1.0f + e));
    return score < 0.0f ? -size : size;
}

/// Bits of a window (`Window::word` of hal): chunks, positions before and after the token.
static constexpr unsigned CHUNKS = 1u << 31, AROUND = 1u << 30;

/// The first position that a token at `pos` attends to.
DEVICE unsigned first_seen(unsigned pos, unsigned window) {
    const unsigned len = window & ~(CHUNKS | AROUND);
    if (window & AROUND) return pos > len ? pos - len : 0;
    if (window & CHUNKS) return pos / len * len;
    return len != 0 && pos + 1 > len ? pos + 1 - len : 0;
}

/// The end of the positions that token `t` at `pos` attends to.
DEVICE unsigned end_seen(const Batch& batch, unsigned t, unsigned pos, unsigned window) {
    if (!(window & AROUND)) return pos + 1;
    const unsigned end = pos + 1 + (window & ~AROUND), len = batch.len(t);
    return end < len ? end : len;
}

/// An entry of a list of positions after the last one (`hal::op::NO_POSITION`).
static constexpr unsigned NO_POSITION = ~0u;

/// Set in an entry of a list that is a row of the cache instead of a position (`CACHE_ROW` of hal).
static constexpr unsigned CACHE_ROW = 1u << 31;

/// The number of entries in the list of a token, at least 1.
DEVICE unsigned n_selected(const unsigned* list, unsigned n_listed) {
    unsigned first = 1, end = n_listed;
    while (first < end) {
        const unsigned middle = (first + end) / 2;
        if (list[middle] == NO_POSITION) end = middle;
        else first = middle + 1;
    }
    return first;
}

/// The row of compressed keys of a block of `pool` positions (`block_row` of hal).
DEVICE unsigned block_row(const unsigned* blocks, unsigned block, unsigned pool) {
    const unsigned pos = (block + 1) * pool - 1;
    return (blocks[pos / 32] * 32 + pos % 32) / (pool < 32 ? pool : 32);
}

/// The first chunk of a span at or after the chunk of position `first`. Chunks are dealt to spans
/// round robin, so that spans do equal work for every sequence length.
DEVICE unsigned first_chunk(unsigned first, unsigned at_span, unsigned n_spans) {
    const unsigned chunk = first / CHUNK;
    return (chunk + (at_span + n_spans - chunk % n_spans) % n_spans) * CHUNK;
}

/// Location of the spans' results: weighted values of all spans, then the largest score and the
/// sum of weights.
struct Parts {
    float *sums, *facts;

    DEVICE Parts(float* parts, unsigned n_rows, unsigned n_head, unsigned n_spans, unsigned d_value)
        : sums(parts), facts(parts + size_t(n_rows) * n_head * n_spans * d_value) {}
};

}  // namespace attention

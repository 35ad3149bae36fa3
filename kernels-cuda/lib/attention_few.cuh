#pragma once
// Attention in decode: a block processes a span of positions of one token and up to HEADS heads
// that share keys and values, so that these are read once. A span is every n-th chunk. The block runs
// an online softmax over the chunks and writes the largest score, the sum of weights and the weighted
// values of the span; attention_merge merges the spans. Source: Flash attention (Dao et al.), split
// over positions as in Flash-Decoding.
#include "lib/attention.cuh"

namespace attention {

static constexpr unsigned THREADS = 128;
// Positions that a set of lanes processes at once, limited by registers.
template <unsigned HEADS> static constexpr unsigned AT_ONCE_OF = HEADS < 8 ? 4 : 2;

/// Part of the positions that a token attends to: those from `first` to `end` of a list of positions, in
/// chunks. `start` is the current chunk.
struct Positions {
    unsigned first, end, start;

    // The chunk's positions that the token attends to, counted from the start of the chunk.
    DEVICE unsigned from() const { return first > start ? first - start : 0; }
    DEVICE unsigned to() const { return end - start < CHUNK ? end - start : CHUNK; }
};

/// A chunk of consecutive positions.
struct VisibleChunk : Positions {
    // Rows of the cache of the chunk's two halves.
    unsigned rows[2];

    DEVICE void look_at(unsigned from, const unsigned* blocks) {
        start = from;
        rows[0] = blocks[start / 32] * 32;
        rows[1] = start + 32 < end ? blocks[start / 32 + 1] * 32 : rows[0];
    }
    DEVICE size_t row(unsigned i) const { return (i < 32 ? rows[0] : rows[1]) + i % 32; }
};

/// A chunk of a list of positions and rows.
struct SelectedChunk : Positions {
    const unsigned *list, *blocks;

    DEVICE void look_at(unsigned from, const unsigned* of_sequence) {
        start = from;
        blocks = of_sequence;
    }
    DEVICE size_t row(unsigned i) const {
        const unsigned pos = list[start + i];
        return pos & CACHE_ROW ? pos & ~CACHE_ROW : size_t(blocks[pos / 32]) * 32 + pos % 32;
    }
};

// Adds up N sums over `lanes` neighbours. Each gets N / lanes of the sums (at least one), from the
// returned index on. Callers pass 1 for `o`.
template <unsigned N> DEVICE unsigned share_sums(float* v, unsigned lanes, unsigned o) {
    if constexpr (N > 1) {
        if (o >= lanes) return 0;
        const bool upper = lane() & o;
#pragma unroll
        for (unsigned i = 0; i < N / 2; i++) {
            const float gone = upper ? v[i] : v[i + N / 2];
            v[i] = (upper ? v[i + N / 2] : v[i]) + shfl_xor(gone, o);
        }
        return (upper ? N / 2 : 0) + share_sums<N / 2>(v, lanes, 2 * o);
    } else {
        for (; o < lanes; o *= 2) v[0] += shfl_xor(v[0], o);
        return 0;
    }
}

// Scores of the chunk: `scores[position][head]`, LOW for masked positions.
template <unsigned HEADS, class Format, class Chunk>
DEVICE void score_chunk(Format format, const Chunk& chunk, const float4* queries, const unsigned* k, float* scores,
    unsigned first_value, unsigned d_head, unsigned k_words, unsigned lanes, float scale, bool wide) {
    constexpr unsigned AT_ONCE = AT_ONCE_OF<HEADS>;
    const unsigned n_pieces = (d_head + PIECE - 1) / PIECE;
    const unsigned near = thread() % lanes;
#pragma unroll 1
    for (unsigned base = 0; base < CHUNK; base += THREADS / lanes * AT_ONCE) {
        const unsigned i = base + thread() / lanes * AT_ONCE;
        const unsigned* rows[AT_ONCE];
#pragma unroll
        for (unsigned a = 0; a < AT_ONCE; a++) {
            // Masked positions read the nearest valid position instead.
            const unsigned at = i + a < chunk.from() ? chunk.from() : i + a < chunk.to() ? i + a : chunk.to() - 1;
            rows[a] = k + chunk.row(at) * k_words;
        }
        float sums[AT_ONCE * HEADS];
#pragma unroll
        for (unsigned s = 0; s < AT_ONCE * HEADS; s++) sums[s] = 0.0f;
#pragma unroll 1
        for (unsigned piece = near; piece < n_pieces; piece += lanes) {
            float keys[AT_ONCE][PIECE];
            format.visit(LoadPieces<AT_ONCE, true>{rows, first_value, PIECE * piece, d_head, wide, keys});
#pragma unroll
            for (unsigned h = 0; h < HEADS; h++) {
                const float4 low = queries[2 * h * n_pieces + piece], high = queries[(2 * h + 1) * n_pieces + piece];
#pragma unroll
                for (unsigned a = 0; a < AT_ONCE; a++) {
                    float sum = sums[a * HEADS + h];
                    sum = fmaf(low.x, keys[a][0], sum);
                    sum = fmaf(low.y, keys[a][1], sum);
                    sum = fmaf(low.z, keys[a][2], sum);
                    sum = fmaf(low.w, keys[a][3], sum);
                    sum = fmaf(high.x, keys[a][4], sum);
                    sum = fmaf(high.y, keys[a][5], sum);
                    sum = fmaf(high.z, keys[a][6], sum);
                    sums[a * HEADS + h] = fmaf(high.w, keys[a][7], sum);
                }
            }
        }
        const unsigned kept = share_sums<AT_ONCE * HEADS>(sums, lanes, 1);
#pragma unroll
        for (unsigned s = 0; s < AT_ONCE * HEADS; s++) {
            const unsigned at = i + (kept + s) / HEADS;
            // With more lanes than sums, several lanes have the same sum.
            if (s * lanes < AT_ONCE * HEADS && at < CHUNK) {
                scores[i * HEADS + kept + s] = at >= chunk.from() && at < chunk.to() ? scale * sums[s] : LOW;
            }
        }
    }
}

// Converts scores to softmax weights, a head per warp. Updates the largest score and the total, and
// sets the factor that rescales earlier sums. `slopes` are those of the heads, or null; `distance`
// is the number of positions from the first of the chunk to the token.
template <unsigned HEADS>
DEVICE void weigh_chunk(float* scores, float* largest, float* total, float* factor, float softcap, const float* slopes,
    unsigned n_heads, int distance) {
#pragma unroll 1
    for (unsigned h = thread() / WAVE; h < HEADS; h += THREADS / WAVE) {
        float most = largest[h];
        for (unsigned i = lane(); i < CHUNK; i += WAVE) {
            float score = scores[i * HEADS + h];
            if (softcap != 0.0f && score != LOW) {
                score = capped(score, softcap);
                scores[i * HEADS + h] = score;
            }
            if (slopes && h < n_heads && score != LOW) {
                score -= slopes[h] * fabsf(float(distance - int(i)));
                scores[i * HEADS + h] = score;
            }
            most = fmaxf(most, score);
        }
        for (unsigned o = WAVE / 2; o > 0; o /= 2) most = fmaxf(most, shfl_xor(most, o));
        float sum = 0.0f;
        for (unsigned i = lane(); i < CHUNK; i += WAVE) {
            const float score = scores[i * HEADS + h];
            const float weight = score == LOW ? 0.0f : expf(score - most);
            scores[i * HEADS + h] = weight;
            sum += weight;
        }
        for (unsigned o = WAVE / 2; o > 0; o /= 2) sum += shfl_xor(sum, o);
        // All lanes have read the old values, since the exchanges above come after those reads.
        if (lane() == 0) {
            factor[h] = expf(largest[h] - most);
            total[h] = fmaf(total[h], factor[h], sum);
            largest[h] = most;
        }
    }
}

// Adds the weighted values of the chunk, eight columns per thread.
template <unsigned HEADS, class Format, class Chunk>
DEVICE void add_chunk(Format format, const Chunk& chunk, const float* weights, const unsigned* v, float (*sums)[PIECE],
    unsigned first_value, unsigned i, unsigned d_value, unsigned v_words, unsigned lanes, bool wide) {
    constexpr unsigned AT_ONCE = AT_ONCE_OF<HEADS>;
    const unsigned step = THREADS / lanes;
#pragma unroll 1
    for (unsigned base = chunk.from() / step * step; base < chunk.to(); base += AT_ONCE * step) {
        const unsigned* rows[AT_ONCE];
#pragma unroll
        for (unsigned a = 0; a < AT_ONCE; a++) {
            const unsigned at = base + a * step + thread() / lanes;
            const bool counts = at >= chunk.from() && at < chunk.to() && i < d_value;
            rows[a] = counts ? v + chunk.row(at) * v_words : nullptr;
        }
        float values[AT_ONCE][PIECE];
        format.visit(LoadPieces<AT_ONCE, false>{rows, first_value, i, d_value, wide, values});
#pragma unroll
        for (unsigned a = 0; a < AT_ONCE; a++) {
            const unsigned at = base + a * step + thread() / lanes;
            if (at < CHUNK) {
#pragma unroll
                for (unsigned h = 0; h < HEADS; h++) {
                    const float weight = weights[at * HEADS + h];
#pragma unroll
                    for (unsigned j = 0; j < PIECE; j++) sums[h][j] = fmaf(weight, values[a][j], sums[h][j]);
                }
            }
        }
    }
}

// Adds up, in order, the sums of all threads that have the same columns, through
// `shared[wave][head][column]`, with PIECE columns for each of `lanes` lanes.
template <unsigned HEADS> DEVICE void gather_sums(float (*sums)[PIECE], float* shared, unsigned lanes) {
#pragma unroll 1
    for (unsigned o = lanes; o < WAVE; o *= 2) {
#pragma unroll
        for (unsigned h = 0; h < HEADS; h++) {
#pragma unroll
            for (unsigned j = 0; j < PIECE; j++) sums[h][j] += shfl_xor(sums[h][j], o);
        }
    }
    if (lane() >= lanes) return;
    float* own = shared + (thread() / WAVE * HEADS * lanes + lane()) * PIECE;
#pragma unroll
    for (unsigned h = 0; h < HEADS; h++) store_piece(own + h * lanes * PIECE, sums[h]);
}

// Grid: x is the span; y the key head, the tile of HEADS of its query heads and the tile of value
// columns; z the token. `seen(facts, token)` is the first chunk of what the token attends to.
template <unsigned HEADS, class Format, class Seen>
DEVICE void attend(Seen seen, const float* q, const unsigned* k, const unsigned* v, const unsigned* batch, const float* slopes,
    float* all_parts, unsigned max_tokens, unsigned max_seqs, unsigned max_blocks, unsigned n_rows, unsigned n_head, unsigned n_head_kv,
    unsigned d_head, unsigned d_value, unsigned k_words, unsigned v_words, unsigned lanes_k, unsigned lanes_v, unsigned n_spans,
    float scale, float softcap, unsigned wide, unsigned k_format, unsigned v_format) {
    // Holds queries and scores; at the end, the sums of warps.
    DYNAMIC_SHARED(float4, queries);
    SHARED(float, largest, HEADS);
    SHARED(float, total, HEADS);
    SHARED(float, factor, HEADS);
    const Batch facts{batch, max_tokens};
    const unsigned t = block_index().z, at_span = block_index().x;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned pos = facts.pos(t);
    auto chunk = seen(facts, t);
    const unsigned first_start = first_chunk(chunk.first, at_span, n_spans);
    if (first_start >= chunk.end) return;
    const unsigned per_group = n_head / n_head_kv, n_tiles = (per_group + HEADS - 1) / HEADS;
    const unsigned g = block_index().y % n_head_kv, tile = block_index().y / n_head_kv % n_tiles;
    const unsigned first_col = block_index().y / n_head_kv / n_tiles * lanes_v * PIECE;
    const unsigned head = g * per_group + tile * HEADS;
    const unsigned n_heads = per_group - tile * HEADS < HEADS ? per_group - tile * HEADS : HEADS;
    const unsigned n_pieces = (d_head + PIECE - 1) / PIECE;
    float* scores = reinterpret_cast<float*>(queries + 2 * HEADS * n_pieces);
#pragma unroll 1
    for (unsigned i = thread(); i < HEADS * n_pieces; i += THREADS) {
        const unsigned h = i / n_pieces, piece = i % n_pieces;
        float own[PIECE] = {};
        if (h < n_heads) {
            load_query(q + (size_t(t) * n_head + head + h) * d_head, PIECE * piece, d_head, wide & WIDE_Q, own);
        }
        queries[2 * h * n_pieces + piece] = make_float4(own[0], own[1], own[2], own[3]);
        queries[(2 * h + 1) * n_pieces + piece] = make_float4(own[4], own[5], own[6], own[7]);
    }
    if (thread() < HEADS) {
        largest[thread()] = LOW;
        total[thread()] = 0.0f;
    }
    const unsigned col = first_col + thread() % lanes_v * PIECE;
    float sums[HEADS][PIECE];
#pragma unroll
    for (unsigned h = 0; h < HEADS; h++) {
#pragma unroll
        for (unsigned j = 0; j < PIECE; j++) sums[h][j] = 0.0f;
    }
    const unsigned* blocks = facts.blocks(facts.seq(t), max_seqs, max_blocks);
    for (unsigned start = first_start; start < chunk.end; start += n_spans * CHUNK) {
        chunk.look_at(start, blocks);
        barrier();
        score_chunk<HEADS>(
            Format(k_format), chunk, queries, k, scores, g * d_head, d_head, k_words, lanes_k, scale, wide & WIDE_K);
        barrier();
        weigh_chunk<HEADS>(
            scores, largest, total, factor, softcap, slopes ? slopes + head : nullptr, n_heads, int(pos) - int(start));
        barrier();
#pragma unroll
        for (unsigned h = 0; h < HEADS; h++) {
#pragma unroll
            for (unsigned j = 0; j < PIECE; j++) sums[h][j] *= factor[h];
        }
        add_chunk<HEADS>(Format(v_format), chunk, scores, v, sums, g * d_value, col, d_value, v_words, lanes_v, wide & WIDE_V);
    }
    barrier();
    float* shared = reinterpret_cast<float*>(queries);
    gather_sums<HEADS>(sums, shared, lanes_v);
    barrier();
    const Parts parts(all_parts, n_rows, n_head, n_spans, d_value);
    const size_t first_part = (size_t(t) * n_head + head) * n_spans + at_span;
    const unsigned n_cols = lanes_v * PIECE;
#pragma unroll 1
    for (unsigned i = thread(); i < n_heads * n_cols; i += THREADS) {
        const unsigned h = i / n_cols, c = first_col + i % n_cols;
        float sum = shared[i];
        for (unsigned w = 1; w < THREADS / WAVE; w++) sum += shared[w * HEADS * n_cols + i];
        if (c < d_value) parts.sums[(first_part + size_t(h) * n_spans) * d_value + c] = sum;
    }
    if (first_col == 0 && thread() < n_heads) {
        float* own = parts.facts + 2 * (first_part + size_t(thread()) * n_spans);
        own[0] = largest[thread()];
        own[1] = total[thread()];
    }
}

}  // namespace attention

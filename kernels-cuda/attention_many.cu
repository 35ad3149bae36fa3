// Attention in prefill: a block processes rows (tokens times the heads that share keys and values)
// and loops over the positions that any of them attends to, 64 rows and 64 positions at a time, with
// an online softmax. Source: Flash attention (Dao et al.).
#include "lib/attention.cuh"

using namespace attention;

static constexpr unsigned THREADS = 256;
static constexpr unsigned ROWS = 64;
// A thread processes the rows tr + 16 i and the positions tc + 16 j, for i and j below OWN.
static constexpr unsigned SIDE = 16, OWN = 4;
// Values of a head that are multiplied between two barriers, and the padded length of their row,
// which avoids bank conflicts.
static constexpr unsigned DEPTH = 32, DEPTH_STRIDE = DEPTH + 4;
static constexpr unsigned WEIGHT_STRIDE = CHUNK + SIDE;
// Number of floats of values in shared memory.
static constexpr unsigned HELD = 4096;
static constexpr unsigned NO_SEQUENCE = 0xffffffffu;

typedef cache::Choice<cache::FORMAT> Format;

struct Rows {
    // Token, its sequence (NO_SEQUENCE for none), its position, and the positions that it attends to.
    unsigned token[ROWS], seq[ROWS], pos[ROWS], first[ROWS], end[ROWS];
};

// The inputs from which a block reads rows and positions.
struct Walk {
    Format k_format, v_format;
    const float* q;
    const unsigned *k, *v, *blocks;
    unsigned n_head, head, n_heads, shift, first_k, first_v, first_col, d_head, d_value, k_words, v_words, wide;

    DEVICE Walk(Format k, Format v) : k_format(k), v_format(v) {}

    DEVICE size_t cache_row(unsigned pos) const { return size_t(blocks[pos / 32]) * 32 + pos % 32; }
};

// Products of rows and positions start..start + CHUNK; only positions from..end are read.
DEVICE void multiply_keys(const Walk& walk, const Rows& rows, float* queries, float* keys, unsigned start, unsigned from,
    unsigned end, float (*scores)[OWN]) {
    const unsigned tr = thread() / SIDE, tc = thread() % SIDE;
    const unsigned row = thread() / (DEPTH / PIECE), piece = thread() % (DEPTH / PIECE) * PIECE;
    const unsigned h = row & ((1u << walk.shift) - 1), pos = start + row;
    const bool asks = rows.seq[row] != NO_SEQUENCE && h < walk.n_heads, counts = pos >= from && pos < end;
    const float* query = asks ? walk.q + (size_t(rows.token[row]) * walk.n_head + walk.head + h) * walk.d_head : walk.q;
    const unsigned* key = counts ? walk.k + walk.cache_row(pos) * walk.k_words : walk.k;
#pragma unroll
    for (unsigned i = 0; i < OWN; i++) {
#pragma unroll
        for (unsigned j = 0; j < OWN; j++) scores[i][j] = 0.0f;
    }
    for (unsigned depth = 0; depth < walk.d_head; depth += DEPTH) {
        float own[PIECE] = {};
        barrier();
        if (asks && depth + piece < walk.d_head) load_query(query, depth + piece, walk.d_head, walk.wide & WIDE_Q, own);
        store_piece(queries + row * DEPTH_STRIDE + piece, own);
#pragma unroll
        for (unsigned j = 0; j < PIECE; j++) own[j] = 0.0f;
        if (counts && depth + piece < walk.d_head) {
            const bool wide = walk.wide & WIDE_K;
            walk.k_format.visit(LoadPieces<1, true>{&key, walk.first_k, depth + piece, walk.d_head, wide, &own});
        }
        store_piece(keys + row * DEPTH_STRIDE + piece, own);
        barrier();
#pragma unroll 1
        for (unsigned c = 0; c < DEPTH; c += 4) {
            float4 a[OWN], b[OWN];
#pragma unroll
            for (unsigned i = 0; i < OWN; i++) a[i] = load4(queries + (tr + SIDE * i) * DEPTH_STRIDE + c);
#pragma unroll
            for (unsigned j = 0; j < OWN; j++) b[j] = load4(keys + (tc + SIDE * j) * DEPTH_STRIDE + c);
#pragma unroll
            for (unsigned i = 0; i < OWN; i++) {
#pragma unroll
                for (unsigned j = 0; j < OWN; j++) {
                    float sum = fmaf(a[i].x, b[j].x, scores[i][j]);
                    sum = fmaf(a[i].y, b[j].y, sum);
                    sum = fmaf(a[i].z, b[j].z, sum);
                    scores[i][j] = fmaf(a[i].w, b[j].w, sum);
                }
            }
        }
    }
}

// Converts scores to softmax weights in shared memory; earlier sums are scaled by `factor`.
DEVICE void weigh(const Rows& rows, unsigned seq, unsigned start, float scale, float softcap, const float* slopes,
    unsigned shift, unsigned n_heads, float (*scores)[OWN], float* weights, float* largest, float* total, float* factor) {
    const unsigned tr = thread() / SIDE, tc = thread() % SIDE;
#pragma unroll
    for (unsigned i = 0; i < OWN; i++) {
        const unsigned row = tr + SIDE * i;
        const bool asks = rows.seq[row] == seq;
        const unsigned first = asks ? rows.first[row] : 0, end = asks ? rows.end[row] : 0;
        float most = largest[i];
        bool counts[OWN];
        const unsigned h = row & ((1u << shift) - 1);
        const float slope = slopes && h < n_heads ? slopes[h] : 0.0f;
#pragma unroll
        for (unsigned j = 0; j < OWN; j++) {
            const unsigned pos = start + tc + SIDE * j;
            counts[j] = pos >= first && pos < end;
            scores[i][j] *= scale;
            if (softcap != 0.0f) scores[i][j] = capped(scores[i][j], softcap);
            if (slope != 0.0f) scores[i][j] -= slope * fabsf(float(int(rows.pos[row]) - int(pos)));
            if (!counts[j]) scores[i][j] = LOW;
            most = fmaxf(most, scores[i][j]);
        }
        most = max_near(most, SIDE);
        float sum = 0.0f;
#pragma unroll
        for (unsigned j = 0; j < OWN; j++) {
            const float weight = counts[j] ? expf(scores[i][j] - most) : 0.0f;
            weights[row * WEIGHT_STRIDE + tc + SIDE * j] = weight;
            sum += weight;
        }
        factor[i] = expf(largest[i] - most);
        total[i] = fmaf(total[i], factor[i], sum_near(sum, SIDE));
        largest[i] = most;
    }
}

// Adds the weighted values of positions start..start + CHUNK; only positions from..end are read. A
// thread processes the columns 4 tc + 64 c.
template <unsigned COLS>
DEVICE void add_values(const Walk& walk, const float* weights, float* values, unsigned start, unsigned from, unsigned end,
    float (*sums)[4 * COLS]) {
    const unsigned tr = thread() / SIDE, tc = thread() % SIDE;
    constexpr unsigned WIDTH = 64 * COLS, AT_ONCE = HELD / WIDTH;
    for (unsigned base = 0; base < CHUNK && start + base < end; base += AT_ONCE) {
        if (start + base + AT_ONCE <= from) continue;
        barrier();
#pragma unroll
        for (unsigned n = 0; n < HELD / PIECE / THREADS; n++) {
            const unsigned at = (n * THREADS + thread()) * PIECE;
            const unsigned pos = start + base + at / WIDTH, col = walk.first_col + at % WIDTH;
            float own[PIECE] = {};
            if (pos >= from && pos < end && col < walk.d_value) {
                const unsigned* row = walk.v + walk.cache_row(pos) * walk.v_words;
                const bool wide = walk.wide & WIDE_V;
                walk.v_format.visit(LoadPieces<1, true>{&row, walk.first_v, col, walk.d_value, wide, &own});
            }
            store_piece(values + at, own);
        }
        barrier();
#pragma unroll 1
        for (unsigned p = 0; p < AT_ONCE; p += 4) {
            float4 a[OWN];
#pragma unroll
            for (unsigned i = 0; i < OWN; i++) a[i] = load4(weights + (tr + SIDE * i) * WEIGHT_STRIDE + base + p);
#pragma unroll
            for (unsigned c = 0; c < COLS; c++) {
#pragma unroll
                for (unsigned s = 0; s < 4; s++) {
                    const float4 b = load4(values + (p + s) * WIDTH + 64 * c + 4 * tc);
#pragma unroll
                    for (unsigned i = 0; i < OWN; i++) {
                        const float weight = s == 0 ? a[i].x : s == 1 ? a[i].y : s == 2 ? a[i].z : a[i].w;
                        sums[i][4 * c] = fmaf(weight, b.x, sums[i][4 * c]);
                        sums[i][4 * c + 1] = fmaf(weight, b.y, sums[i][4 * c + 1]);
                        sums[i][4 * c + 2] = fmaf(weight, b.z, sums[i][4 * c + 2]);
                        sums[i][4 * c + 3] = fmaf(weight, b.w, sums[i][4 * c + 3]);
                    }
                }
            }
        }
    }
}

// Grid: x is the span, which has every n-th chunk; y the key head, the tile of 2^shift of its query
// heads and the tile of value columns; z the tile of tokens. With one span the result goes to y,
// otherwise to parts.
template <unsigned COLS>
DEVICE void attend(const float* q, const unsigned* k, const unsigned* v, const unsigned* batch, const float* slopes,
    const float* sinks, float* all_parts, float* y, unsigned max_tokens, unsigned max_seqs, unsigned max_blocks, unsigned n_rows, unsigned n_head,
    unsigned n_head_kv, unsigned shift, unsigned d_head, unsigned d_value, unsigned k_words, unsigned v_words, unsigned n_spans,
    unsigned window, float scale, float softcap, unsigned wide, unsigned k_format, unsigned v_format) {
    // Holds queries and keys, later values and softmax weights.
    SHARED(float4, shared, (2 * ROWS * DEPTH_STRIDE + ROWS * WEIGHT_STRIDE) / 4);
    SHARED(Rows, all_rows, 1);
    Rows& rows = all_rows[0];
    float* queries = reinterpret_cast<float*>(shared);
    float* keys = queries + ROWS * DEPTH_STRIDE;
    float* weights = keys + ROWS * DEPTH_STRIDE;
    const Batch facts{batch, max_tokens};
    const unsigned heads = 1u << shift, n_tokens = real_tokens(batch, n_rows), at_span = block_index().x;
    const unsigned first_token = block_index().z * (ROWS >> shift);
    if (first_token >= n_tokens) return;
    const unsigned per_group = n_head / n_head_kv, n_tiles = (per_group + heads - 1) >> shift;
    const unsigned g = block_index().y % n_head_kv, tile = block_index().y / n_head_kv % n_tiles;
    Walk walk{Format(k_format), Format(v_format)};
    walk.q = q, walk.k = k, walk.v = v;
    walk.n_head = n_head, walk.shift = shift, walk.head = g * per_group + tile * heads;
    walk.n_heads = per_group - tile * heads < heads ? per_group - tile * heads : heads;
    walk.first_k = g * d_head, walk.first_v = g * d_value;
    walk.first_col = block_index().y / n_head_kv / n_tiles * 64 * COLS;
    walk.d_head = d_head, walk.d_value = d_value, walk.k_words = k_words, walk.v_words = v_words, walk.wide = wide;
    if (thread() < ROWS) {
        const unsigned t = first_token + (thread() >> shift);
        const bool real = t < n_tokens;
        const unsigned pos = real ? facts.pos(t) : 0;
        rows.token[thread()] = t;
        rows.first[thread()] = first_seen(pos, window);
        rows.pos[thread()] = pos;
        rows.end[thread()] = real ? end_seen(facts, t, pos, window) : 0;
        rows.seq[thread()] = real ? facts.seq(t) : NO_SEQUENCE;
    }
    barrier();
    float sums[OWN][4 * COLS], largest[OWN], total[OWN], factor[OWN];
#pragma unroll
    for (unsigned i = 0; i < OWN; i++) {
        largest[i] = LOW;
        total[i] = 0.0f;
#pragma unroll
        for (unsigned c = 0; c < 4 * COLS; c++) sums[i][c] = 0.0f;
    }
    // Processes the tile's sequences in turn, usually one; rows of other sequences are masked.
    for (unsigned asking = 0; asking < ROWS; asking += heads) {
        const unsigned seq = rows.seq[asking];
        unsigned from = NO_SEQUENCE, end = 0;
        bool new_one = seq != NO_SEQUENCE;
        for (unsigned row = 0; row < ROWS; row += heads) {
            if (rows.seq[row] != seq) continue;
            if (row < asking) new_one = false;
            from = rows.first[row] < from ? rows.first[row] : from;
            end = rows.end[row] > end ? rows.end[row] : end;
        }
        if (!new_one) continue;
        walk.blocks = facts.blocks(seq, max_seqs, max_blocks);
        for (unsigned start = first_chunk(from, at_span, n_spans); start < end; start += n_spans * CHUNK) {
            float scores[OWN][OWN];
            multiply_keys(walk, rows, queries, keys, start, from, end, scores);
            weigh(rows, seq, start, scale, softcap, slopes ? slopes + walk.head : nullptr, shift, walk.n_heads, scores, weights,
                largest, total, factor);
#pragma unroll
            for (unsigned i = 0; i < OWN; i++) {
#pragma unroll
                for (unsigned c = 0; c < 4 * COLS; c++) sums[i][c] *= factor[i];
            }
            add_values<COLS>(walk, weights, queries, start, from, end, sums);
        }
    }
    const unsigned tr = thread() / SIDE, tc = thread() % SIDE;
    const Parts parts(all_parts, n_rows, n_head, n_spans, d_value);
#pragma unroll
    for (unsigned i = 0; i < OWN; i++) {
        const unsigned row = tr + SIDE * i, h = row & (heads - 1);
        if (rows.seq[row] == NO_SEQUENCE || h >= walk.n_heads) continue;
        const size_t at = size_t(rows.token[row]) * n_head + walk.head + h;
        float share = 1.0f;
        float* to = parts.sums + (at * n_spans + at_span) * d_value;
        if (n_spans == 1) {
            const float sink = sinks ? sinks[walk.head + h] : LOW;
            const float most = fmaxf(largest[i], sink), own = expf(largest[i] - most);
            share = own / (total[i] * own + (sinks ? expf(sink - most) : 0.0f));
            to = y + at * d_value;
        } else if (walk.first_col == 0 && tc == 0) {
            float* own = parts.facts + 2 * (at * n_spans + at_span);
            own[0] = largest[i];
            own[1] = total[i];
        }
#pragma unroll
        for (unsigned c = 0; c < COLS; c++) {
#pragma unroll
            for (unsigned s = 0; s < 4; s++) {
                const unsigned col = walk.first_col + 64 * c + 4 * tc + s;
                if (col < d_value) to[col] = sums[i][4 * c + s] * share;
            }
        }
    }
}

#define PARAMETERS \
    const float* q, const unsigned* k, const unsigned* v, const unsigned* batch, const float* slopes, const float* sinks, \
    float* all_parts, float* y, unsigned max_tokens, unsigned max_seqs, unsigned max_blocks, unsigned n_rows, unsigned n_head, \
    unsigned n_head_kv, unsigned shift, unsigned d_head, unsigned d_value, unsigned k_words, unsigned v_words, \
    unsigned n_spans, unsigned window, float scale, float softcap, unsigned wide, unsigned k_format, unsigned v_format
#define ARGUMENTS \
    q, k, v, batch, slopes, sinks, all_parts, y, max_tokens, max_seqs, max_blocks, n_rows, n_head, n_head_kv, shift, d_head, d_value, \
    k_words, v_words, n_spans, window, scale, softcap, wide, k_format, v_format

KERNEL(attention_64)(PARAMETERS) { attend<1>(ARGUMENTS); }
EXPORT(attention_64)
KERNEL(attention_128)(PARAMETERS) { attend<2>(ARGUMENTS); }
EXPORT(attention_128)
KERNEL(attention_256)(PARAMETERS) { attend<4>(ARGUMENTS); }
EXPORT(attention_256)
#undef PARAMETERS
#undef ARGUMENTS

// Scores of the blocks of positions that sparse attention chooses from (op::LightningIndexer): the
// weighted sum over the heads of the positive part of the products of the queries with the block's key,
// which is at its last position, or at the block's row of compressed keys.
//
// A block processes 64 keys of one token at a time. A thread has two keys and four heads at once, and
// every fourth four of the heads; the four parts of a score are added in order.
#include "lib/attention.cuh"

using namespace attention;

static constexpr unsigned THREADS = 128, KEYS = 64, HEADS = 4, SETS = THREADS / 32;
// The most values of a head. Rows in shared memory are padded by four values, so that threads which read
// the same column of neighbouring rows use different banks.
static constexpr unsigned MOST = 128, STRIDE = MOST + 4;

typedef cache::Choice<cache::FORMAT> Format;

// Copies `n` rows from `row(i)`, of d_head values; zeros past the end of a row, and for missing rows.
template <class Row> DEVICE void copy_rows(float* to, unsigned n, unsigned d_head, Row row) {
    const unsigned n_fours = (d_head + 3) / 4;
    for (unsigned i = thread(); i < n * n_fours; i += THREADS) {
        const float* from = row(i / n_fours);
        const unsigned at = i % n_fours * 4;
        float own[4];
        for (unsigned j = 0; j < 4; j++) own[j] = from && at + j < d_head ? from[at + j] : 0.0f;
        store4(to + i / n_fours * STRIDE + at, make_float4(own[0], own[1], own[2], own[3]));
    }
}

// Copies the keys from `first` on, in F32; zeros for keys that the token does not see.
DEVICE void copy_keys(Format format, float* to, const unsigned* k, const unsigned* blocks, unsigned first, unsigned n_keys,
    unsigned pool, bool compressed, unsigned d_head, unsigned k_words, bool wide) {
    const unsigned n_pieces = (d_head + PIECE - 1) / PIECE;
    for (unsigned i = thread(); i < KEYS * n_pieces; i += THREADS) {
        const unsigned key = first + i / n_pieces, piece = PIECE * (i % n_pieces), pos = key * pool + pool - 1;
        const unsigned* row = nullptr;
        if (key < n_keys) {
            const size_t at = compressed ? block_row(blocks, key, pool) : size_t(blocks[pos / 32]) * 32 + pos % 32;
            row = k + at * k_words;
        }
        float own[1][PIECE];
        format.visit(LoadPieces<1, false>{&row, 0, piece, d_head, wide, own});
        store_piece(to + i / n_pieces * STRIDE + piece, own[0]);
    }
}

// Adds the parts of the scores of a thread's two keys that the heads from `head` on have.
DEVICE void add_heads(const float* queries, const float* keys, const float* weights, unsigned head, unsigned n_head, unsigned d_head,
    float (&scores)[2]) {
    float dots[HEADS][2] = {};
    const float* own = keys + thread() % 32 * STRIDE;
#pragma unroll 1
    for (unsigned c = 0; c < d_head; c += 4) {
        const float4 a = load4(own + c), b = load4(own + 32 * STRIDE + c);
#pragma unroll
        for (unsigned h = 0; h < HEADS; h++) {
            const float4 q = load4(queries + h * STRIDE + c);
            dots[h][0] = fmaf(q.w, a.w, fmaf(q.z, a.z, fmaf(q.y, a.y, fmaf(q.x, a.x, dots[h][0]))));
            dots[h][1] = fmaf(q.w, b.w, fmaf(q.z, b.z, fmaf(q.y, b.y, fmaf(q.x, b.x, dots[h][1]))));
        }
    }
#pragma unroll
    for (unsigned h = 0; h < HEADS; h++) {
        const float weight = weights && head + h < n_head ? weights[head + h] : 1.0f;
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            // A NaN must not become 0.
            if (head + h < n_head) scores[i] = fmaf(weight, dots[h][i] <= 0.0f ? 0.0f : dots[h][i], scores[i]);
        }
    }
}

// Grid: x deals the tiles of 64 keys, y is the token, counted from `first_token`. `scores` has a row of
// `stride` for each of these tokens; without `weights`, those of the heads are 1; a token selects `top_k`
// blocks.
KERNEL(index_scores)(const float* q, const float* weights, const unsigned* k, const unsigned* batch, float* scores, unsigned max_tokens,
    unsigned max_seqs, unsigned max_blocks, unsigned n_rows, unsigned first_token, unsigned n_head, unsigned d_head, unsigned k_words,
    unsigned top_k, unsigned pool, unsigned compressed, unsigned stride, unsigned wide, unsigned k_format) {
    SHARED(float4, shared, (KEYS + SETS * HEADS) * STRIDE / 4);
    SHARED(float, sums, SETS * KEYS);
    float *keys = reinterpret_cast<float*>(shared), *queries = keys + KEYS * STRIDE;
    const Batch facts{batch, max_tokens};
    const unsigned t = first_token + block_index().y;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned n_seen = facts.pos(t) + 1, n_keys = n_seen / pool;
    // Such a token selects all blocks.
    if (n_keys <= top_k) return;
    const unsigned* blocks = facts.blocks(facts.seq(t), max_seqs, max_blocks);
    const float *own_q = q + size_t(t) * n_head * d_head, *own_weights = weights ? weights + size_t(t) * n_head : nullptr;
    const unsigned set = thread() / 32;
    for (unsigned first = block_index().x * KEYS; first < n_keys; first += grid_size().x * KEYS) {
        copy_keys(Format(k_format), keys, k, blocks, first, n_keys, pool, compressed, d_head, k_words, wide);
        float own[2] = {};
        for (unsigned head = 0; head < n_head; head += SETS * HEADS) {
            copy_rows(queries, SETS * HEADS, d_head,
                [=](unsigned h) { return head + h < n_head ? own_q + size_t(head + h) * d_head : nullptr; });
            barrier();
            add_heads(queries + set * HEADS * STRIDE, keys, own_weights, head + set * HEADS, n_head, d_head, own);
            barrier();
        }
        sums[set * KEYS + thread() % 32] = own[0];
        sums[set * KEYS + 32 + thread() % 32] = own[1];
        barrier();
        if (thread() < KEYS && first + thread() < n_keys) {
            float sum = sums[thread()];
            for (unsigned s = 1; s < SETS; s++) sum += sums[s * KEYS + thread()];
            scores[size_t(block_index().y) * stride + first + thread()] = sum;
        }
    }
}
EXPORT(index_scores)

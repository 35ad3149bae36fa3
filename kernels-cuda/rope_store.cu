// Rotates queries and keys, and writes keys and values to their cache rows: two `rope` launches and
// a `store_kv` launch in one. One block per head of a token: query heads first, then key heads with
// their value heads. Further blocks prefetch.
#include "cache/cache.cuh"
#include "lib/batch.cuh"
#include "lib/prefetch.cuh"
#include "lib/turn.cuh"

// Stores a head's columns of one half of the cache; called by all threads of a warp.
struct StoreHead {
    const float* row;
    unsigned n_cols, head, width;
    unsigned* to;
    bool live;

    template <class C> DEVICE void operator()(C format) const {
        const unsigned n = format.threads(width);
        for (unsigned begin = 0; begin < n; begin += block_size().x) {
            const unsigned i = begin + thread();
            format.store(row, n_cols, head * n + i, to, live && i < n);
        }
    }
};

// Heads are whole blocks of 32 values, so the threads of a head (`threads` in `cache/`) follow
// those of the previous heads.
KERNEL(rope_store)(const float* freqs, const unsigned* batch, float* q, float* k, const float* v, unsigned* cached_k,
    unsigned* cached_v, unsigned max_tokens, unsigned n_rows, unsigned n_head, unsigned n_head_kv, unsigned d_head,
    unsigned d_value, unsigned first, unsigned n_pairs, unsigned pair_step, unsigned pair_other, unsigned k_words,
    unsigned v_words, unsigned cache_rows, float scale, unsigned k_format, unsigned v_format, const unsigned char* ahead,
    unsigned n_lines) {
    if (prefetches(ahead, n_lines, n_head + n_head_kv)) return;
    const Batch facts{batch, max_tokens};
    const unsigned t = block_index().y;
    if (t >= real_tokens(batch, n_rows)) return;
    const bool of_keys = block_index().x >= n_head;
    const unsigned head = of_keys ? block_index().x - n_head : block_index().x;
    const unsigned k_cols = n_head_kv * d_head, v_cols = n_head_kv * d_value;
    float* row = of_keys ? k + size_t(t) * k_cols : q + size_t(t) * n_head * d_head;
    const float pos = float(facts.pos(t));
    for (unsigned j = thread(); j < n_pairs; j += block_size().x) {
        float* one = row + head * d_head + first + j * pair_step;
        turn_pair(one, one + pair_other, pos * freqs[j], scale);
    }
    if (!of_keys) return;
    barrier();
    const unsigned at = facts.kv_row(t);
    const bool live = at < cache_rows;
    const size_t to = live ? at : 0;
    typedef cache::Choice<cache::FORMAT> Format;
    Format(k_format).visit(StoreHead{row, k_cols, head, d_head, cached_k + to * k_words, live});
    Format(v_format).visit(StoreHead{v + size_t(t) * v_cols, v_cols, head, d_value, cached_v + to * v_words, live});
}
EXPORT(rope_store)

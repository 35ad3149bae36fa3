// Writes keys and values of the real tokens to their rows of the cache.
#include "cache/cache.cuh"
#include "lib/batch.cuh"
#include "lib/wide.cuh"

// Stores keys or values; the caller is storing thread `at`.
struct StoreHalf {
    const float* x;
    const unsigned* batch;
    unsigned* cached;
    unsigned max_tokens, n_rows, n_cols, row_words, cache_rows;
    size_t at;

    template <class C> DEVICE void operator()(C format) const {
        const Batch facts{batch, max_tokens};
        const unsigned per_row = format.threads(n_cols);
        const size_t t = at / per_row;
        const bool real = t < real_tokens(batch, n_rows);
        const unsigned row = real ? facts.kv_row(unsigned(t)) : 0;
        const bool live = real && row < cache_rows;
        format.store(x + t * n_cols, n_cols, unsigned(at % per_row), cached + size_t(row) * row_words, live);
    }
};

// The first `k_blocks` blocks store keys, the others values.
KERNEL(store_kv)(const float* k, const float* v, const unsigned* batch, unsigned* cached_k, unsigned* cached_v,
    unsigned max_tokens, unsigned n_rows, unsigned k_cols, unsigned v_cols, unsigned k_words, unsigned v_words,
    unsigned cache_rows, unsigned k_blocks, unsigned k_format, unsigned v_format) {
    typedef cache::Choice<cache::FORMAT> Format;
    const size_t at = flat_index();
    if (block_index().x < k_blocks) {
        Format(k_format).visit(StoreHalf{k, batch, cached_k, max_tokens, n_rows, k_cols, k_words, cache_rows, at});
    } else {
        const size_t from = size_t(k_blocks) * block_size().x;
        Format(v_format).visit(StoreHalf{v, batch, cached_v, max_tokens, n_rows, v_cols, v_words, cache_rows, at - from});
    }
}
EXPORT(store_kv)

// Writes keys or values of the real tokens to their rows of the cache; a thread to a piece of whole words.
#include "cache/cache.cuh"
#include "lib/batch.cuh"
#include "lib/wide.cuh"

KERNEL(store_kv)(const float* x, const unsigned* batch, unsigned* cached, unsigned max_tokens, unsigned n_rows, unsigned n_cols,
    unsigned n_pieces, unsigned row_words, unsigned cache_rows) {
    const Batch facts{batch, max_tokens};
    const size_t at = flat_index();
    const size_t t = at / n_pieces;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned row = facts.kv_row(unsigned(t));
    if (row >= cache_rows) return;
    cache::FORMAT::store(x + t * n_cols, n_cols, unsigned(at % n_pieces), cached + size_t(row) * row_words);
}
EXPORT(store_kv)

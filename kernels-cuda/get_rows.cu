// y[t] = scale * table[id of t], or y[t] += table[position of t + offset]: rows of a weight
// selected by the batch.
#include "dialect.h"
#include "formats/format.cuh"

typedef FORMAT W;

// `numbers` is the word offset in the batch of the tokens' ids or positions, `last` the last valid row.
template <bool ADD>
DEVICE void rows_by_number(const unsigned* weight, const unsigned* tables, const unsigned* batch, float* y, unsigned row_words,
                           unsigned n_cols, unsigned n_tokens, unsigned numbers, unsigned offset, unsigned last,
                           float scale) {
    const unsigned fours = (n_cols + 3) / 4;
    const unsigned q = block_index().y * block_size().x + thread();
    const unsigned token = block_index().x;
    if (q >= fours || token >= n_tokens || token >= batch[0]) return;
    const unsigned number = batch[numbers + token];
    const unsigned row = number < last && offset <= last - number ? number + offset : last;
    const float4 four = W::four(weight + (size_t)row * row_words, n_cols, q, tables);
    const float values[4] = {four.x, four.y, four.z, four.w};
    float* to = y + (size_t)token * n_cols + 4 * q;
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        if (4 * q + i < n_cols) to[i] = ADD ? to[i] + values[i] : scale * values[i];
    }
}

KERNEL(get_rows)(const unsigned* weight, const unsigned* tables, const unsigned* batch, float* y, unsigned row_words,
                 unsigned n_cols, unsigned n_tokens, unsigned numbers, unsigned offset, unsigned last, float scale) {
    rows_by_number<false>(weight, tables, batch, y, row_words, n_cols, n_tokens, numbers, offset, last, scale);
}
EXPORT(get_rows)

KERNEL(add_rows)(const unsigned* weight, const unsigned* tables, const unsigned* batch, float* y, unsigned row_words,
                 unsigned n_cols, unsigned n_tokens, unsigned numbers, unsigned offset, unsigned last) {
    rows_by_number<true>(weight, tables, batch, y, row_words, n_cols, n_tokens, numbers, offset, last, 1.0f);
}
EXPORT(add_rows)

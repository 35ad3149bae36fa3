// y[t, i] = weight[i] . x[t] + bias[i], for many tokens: a tile of rows and tokens to a block of threads. With groups, a
// token takes the rows of the groups that it uses, and y has a row for each pair of a token and a group.
#include "dialect.h"
#include "lib/tile_blocks.cuh"
#include "lib/tile_floats.cuh"

typedef FORMAT W;

// Tiles of 128 rows, or of 32 (floats: 64) for grids that would leave most of the device idle.
template <class F, bool LARGE>
DEVICE void matmul_tile(const Product& p, const Part& part) {
    if constexpr (F::FLOAT) {
        FloatTile<F, LARGE ? 2 : 1>::run(p, part);
    } else if constexpr (LARGE) {
        BlockTile<F, 4, 2, 2, 4, 2>::run(p, part);
    } else {
        BlockTile<F, 2, 4, 1, 2, 4>::run(p, part);
    }
}

KERNEL_OF(256, 2, matmul_many)(const unsigned* weight, const unsigned* tables, const unsigned* x,
                              const float* bias, const unsigned* pairs, const unsigned* group_rows, float* y,
                              unsigned y_cols, unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned n_tokens,
                              unsigned relu, unsigned n_group, unsigned x_by_pair) {
    const Product p = {weight, tables, x, bias, y, y_cols, row_words, n_cols, relu};
    matmul_tile<W, true>(p, part_of(pairs, group_rows, n_rows, n_tokens, n_group, x_by_pair));
}
EXPORT(matmul_many)

KERNEL_OF(256, 2, matmul_some)(const unsigned* weight, const unsigned* tables, const unsigned* x,
                              const float* bias, const unsigned* pairs, const unsigned* group_rows, float* y,
                              unsigned y_cols, unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned n_tokens,
                              unsigned relu, unsigned n_group, unsigned x_by_pair) {
    const Product p = {weight, tables, x, bias, y, y_cols, row_words, n_cols, relu};
    matmul_tile<W, false>(p, part_of(pairs, group_rows, n_rows, n_tokens, n_group, x_by_pair));
}
EXPORT(matmul_some)

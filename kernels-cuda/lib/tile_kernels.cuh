// The kernels of matmul_many.cu and matmul_plain.cu: tiles of 128 rows, or of 32 (floats: 64) for
// grids that would leave most of the device idle.
#pragma once
#include "lib/tile_matrix.cuh"
#include "lib/tile_matrix_floats.cuh"

template <class F, bool MATRIX, unsigned ROWS>
DEVICE void matmul_tile(const Product& p, const Part& part) {
    if constexpr (F::FLOAT) {
        constexpr unsigned V = ROWS == 128 ? 2 : 1;
        if constexpr (MATRIX) {
            MatrixFloatTile<F, V>::run(p, part);
        } else {
            FloatTile<F, V>::run(p, part);
        }
    } else {
        typedef BlockStages<F, ROWS, ROWS == 128 ? 2 : 4> Stages;
        if constexpr (MATRIX) {
            multiply_blocks<Stages, MatrixProducts<Stages>>(p, part);
        } else {
            multiply_blocks<Stages, DotProducts<Stages>>(p, part);
        }
    }
}

// `W` is the weight's format, `MATRIX` whether matrix instructions are used.
#define MATMUL_KERNEL(name, MATRIX, ROWS)                                                                           \
    KERNEL_OF(256, 2, name)(const unsigned* weight, const unsigned* tables, const unsigned* x, const float* bias,   \
                            const unsigned* pairs, const unsigned* group_rows, float* y, unsigned y_cols,           \
                            unsigned n_rows, unsigned row_words, unsigned n_cols, unsigned n_tokens, unsigned relu, \
                            unsigned n_group, unsigned x_by_pair) {                                                 \
        const Product p = {weight, tables, x, bias, y, y_cols, row_words, n_cols, relu};                            \
        matmul_tile<W, MATRIX, ROWS>(p, part_of(pairs, group_rows, n_rows, n_tokens, n_group, x_by_pair));          \
    }                                                                                                               \
    EXPORT(name)

// Products of one MMA fragment, which the host compares with its own when it opens a device
// (`backends/simt/src/self_check.rs`). All warps compute the same products.
#include "dialect.h"
#include "lib/split.cuh"

// Multiplies 16 rows with all columns, of 8 words (32 bytes) each. Writes three matrices, 16 by 16: the
// sums of all 32 products, of the first 16, and of the other 16. `n_columns` receives the number of
// columns, or 0 without matrix instructions.
KERNEL(check_bytes)(const unsigned* rows, const unsigned* columns, int* sums, unsigned* n_columns) {
#if HAS_MMA
    const MmaBytes::Left left = MmaBytes::left(rows + MmaBytes::start(8), 8);
    const MmaBytes::Right right = MmaBytes::right(columns + MmaBytes::start(8), 8);
    int all[MmaBytes::OWN] = {}, first[MmaBytes::OWN] = {}, second[MmaBytes::OWN] = {};
    MmaBytes::multiply(all, left, right);
    MmaBytes::multiply_halves(first, second, left, right);
    for (unsigned i = 0; i < MmaBytes::OWN; i++) {
        const unsigned row = MmaBytes::row(i / MmaBytes::OWN_COLUMNS), column = MmaBytes::column(i % MmaBytes::OWN_COLUMNS);
        sums[16 * row + column] = all[i];
        sums[16 * row + column + 256] = first[i];
        sums[16 * row + column + 512] = second[i];
    }
    if (thread() == 0) n_columns[0] = MmaBytes::COLUMNS;
#else
    if (thread() == 0) n_columns[0] = 0;
#endif
}
EXPORT(check_bytes)

// Multiplies 16 rows with 8 columns, of 8 floats each; the sums are 16 by 8.
KERNEL(check_floats)(const float* rows, const float* columns, float* sums, unsigned* n_columns) {
#if HAS_MMA_FLOATS
    const unsigned g = thread() % 32 / 4, t = thread() % 4;
    const Split left[4] = {split<false>(rows[8 * g + t]), split<false>(rows[8 * (g + 8) + t]),
                           split<false>(rows[8 * g + t + 4]), split<false>(rows[8 * (g + 8) + t + 4])};
    const Split right[2] = {split<false>(columns[8 * g + t]), split<false>(columns[8 * g + t + 4])};
    float own[4] = {};
    mma_split<false>(own, left, right);
    for (unsigned i = 0; i < 4; i++) sums[8 * (g + i / 2 * 8) + 2 * t + i % 2] = own[i];
    if (thread() == 0) n_columns[0] = 8;
#else
    if (thread() == 0) n_columns[0] = 0;
#endif
}
EXPORT(check_floats)

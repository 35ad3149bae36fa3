// Partial sums of y[t] = sum over rows r of h[t, r] * down[r], for prefill, with matrix
// instructions if available.
#include "dialect.h"
#include "lib/tile_down_matrix.cuh"

typedef FORMAT W;

DOWN_KERNEL(down_many, MatrixDown)

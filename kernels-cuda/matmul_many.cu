// y[t, i] = weight[i] . x[t] + bias[i], for prefill (GEMM): a tile of rows and tokens per block, with
// matrix instructions if available. With experts, a token is multiplied with the rows of the experts
// that it uses, and y has a row for each pair of a token and an expert.
#include "dialect.h"
#include "lib/tile_kernels.cuh"

typedef FORMAT W;

MATMUL_KERNEL(matmul_many, true, 128)
MATMUL_KERNEL(matmul_some, true, 32)

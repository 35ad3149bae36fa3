// matmul_many.cu without matrix instructions: for devices where they are missing, slow or wrong.
#include "dialect.h"
#include "lib/tile_kernels.cuh"

typedef FORMAT W;

MATMUL_KERNEL(matmul_many, false, 128)
MATMUL_KERNEL(matmul_some, false, 32)

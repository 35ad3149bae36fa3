// matmul_many.cu without matrix units: for devices that have none, none that helps, or some whose products are wrong.
#include "dialect.h"
#include "lib/tile_kernels.cuh"

typedef FORMAT W;

MATMUL_KERNEL(matmul_many, false, 128)
MATMUL_KERNEL(matmul_some, false, 32)

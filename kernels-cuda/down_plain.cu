// down_many.cu without matrix instructions: for devices where they are missing, slow or wrong.
#include "dialect.h"
#include "lib/tile_down_plain.cuh"

typedef FORMAT W;

DOWN_KERNEL(down_many, PlainDown)

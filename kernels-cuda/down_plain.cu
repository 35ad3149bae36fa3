// down_many.cu without matrix units: for devices that have none, none that helps, or some whose products are wrong.
#include "dialect.h"
#include "lib/tile_down_plain.cuh"

typedef FORMAT W;

DOWN_KERNEL(down_many, PlainDown)

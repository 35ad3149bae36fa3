#pragma once
#include "cache/nibbles.cuh"

namespace cache {

struct q4_0 : nibble_blocks {
    DEVICE q4_0() : nibble_blocks(false, false, false) {}
};

}  // namespace cache

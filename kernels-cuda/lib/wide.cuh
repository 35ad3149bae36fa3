#pragma once
// Vector loads of four values, for aligned pointers.
#include "dialect.h"

/// Whether a pointer is aligned for loads and stores of 16 bytes.
DEVICE bool is_wide(const void* at) { return reinterpret_cast<size_t>(at) % 16 == 0; }

DEVICE float4 load4(const float* at) { return *reinterpret_cast<const float4*>(at); }
DEVICE void store4(float* at, float4 v) { *reinterpret_cast<float4*>(at) = v; }

/// Index of this thread in a one-dimensional grid.
DEVICE size_t flat_index() { return size_t(block_index().x) * block_size().x + thread(); }

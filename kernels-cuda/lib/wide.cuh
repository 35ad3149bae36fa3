#pragma once
// Four values at once where they lie so.
#include "dialect.h"

/// Whether 16 bytes are loaded and stored here at once.
DEVICE bool is_wide(const void* at) { return reinterpret_cast<size_t>(at) % 16 == 0; }

DEVICE float4 load4(const float* at) { return *reinterpret_cast<const float4*>(at); }
DEVICE void store4(float* at, float4 v) { *reinterpret_cast<float4*>(at) = v; }

/// This thread among all of a grid in one dimension.
DEVICE size_t flat_index() { return size_t(block_index().x) * block_size().x + thread(); }

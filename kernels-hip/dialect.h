// One guard for all dialects: the first one that is included is the one.
#ifndef DIALECT
#define DIALECT

// The words kernels are written in, for HIP: hiprtc and clang, of ROCm 5 to 7. kernels-cuda/dialect.h says what they mean.
// Kernels themselves are in kernels-cuda/; this folder holds what is AMD's own.

#if !defined(__HIPCC_RTC__)
#include <hip/hip_runtime.h>
#endif

// Products are fused only where fmaf says so; clang would fuse what it can.
#pragma clang fp contract(off)

#define KERNEL(name) extern "C" __global__ void name
// How many blocks are left room for means other units here.
#define KERNEL_OF(threads, blocks, name) extern "C" __global__ void __launch_bounds__(threads) name
#define EXPORT(name)
#define DEVICE __device__ __forceinline__

#define SHARED(T, name, n) __shared__ T name[n]
#define DYNAMIC_SHARED(T, name)                                                     \
    extern __shared__ __attribute__((aligned(16))) unsigned char dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(dynamic_shared)

// 64 on CDNA, 32 on RDNA: known when code is generated, but no constant expression.
#define WAVE (__builtin_amdgcn_wavefrontsize())
#define HAS_MMA 0
#define HAS_MMA_FLOATS 0

/// Thousands of ticks a second of the clock that only goes forward: hipDeviceAttributeWallClockRate.
#if !defined(WALL_CLOCK_KHZ)
#define WALL_CLOCK_KHZ 100000
#endif

DEVICE unsigned thread() { return threadIdx.x; }
DEVICE uint3 block_index() { return make_uint3(blockIdx.x, blockIdx.y, blockIdx.z); }
DEVICE uint3 block_size() { return make_uint3(blockDim.x, blockDim.y, blockDim.z); }
DEVICE uint3 grid_size() { return make_uint3(gridDim.x, gridDim.y, gridDim.z); }
DEVICE unsigned lane() { return threadIdx.x % WAVE; }

DEVICE void barrier() { __syncthreads(); }

template <class T> DEVICE T shfl(T v, unsigned from) {
    static_assert(sizeof(T) == 4, "words only");
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(int(from % WAVE * 4), __builtin_bit_cast(int, v)));
}
template <class T> DEVICE T shfl_xor(T v, unsigned offset) { return shfl(v, lane() ^ offset); }
template <class T> DEVICE T shfl_down(T v, unsigned offset) {
    const unsigned from = lane() + offset;
    return shfl(v, from < WAVE ? from : lane());
}

DEVICE unsigned long long ballot(bool p) { return __ballot(p); }
DEVICE bool any(bool p) { return __ballot(p) != 0; }
DEVICE unsigned popc(unsigned v) { return __builtin_popcount(v); }
DEVICE unsigned popcll(unsigned long long v) { return __builtin_popcountll(v); }

DEVICE int dot4(int a, int b, int c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || \
    defined(__gfx942__) || defined(__gfx950__) || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || \
    defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) || \
    defined(__gfx1036__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    for (int i = 0; i < 32; i += 8) {
        c += int((signed char)(a >> i)) * int((signed char)(b >> i));
    }
    return c;
#endif
}

DEVICE unsigned bits(float v) { return __builtin_bit_cast(unsigned, v); }
DEVICE float from_bits(unsigned v) { return __builtin_bit_cast(float, v); }
DEVICE float half_to_float(unsigned short v) { return float(__builtin_bit_cast(_Float16, v)); }
DEVICE unsigned short float_to_half(float v) { return __builtin_bit_cast(unsigned short, _Float16(v)); }
// Correctly rounded unless a compiler is told otherwise (-fno-hip-fp32-correctly-rounded-divide-sqrt).
DEVICE float divide(float a, float b) { return a / b; }

typedef unsigned Words2 __attribute__((ext_vector_type(2)));
typedef unsigned Words4 __attribute__((ext_vector_type(4)));
DEVICE unsigned load_stream(const unsigned* at) { return __builtin_nontemporal_load(at); }
DEVICE uint2 load_stream(const uint2* at) {
    const Words2 v = __builtin_nontemporal_load(reinterpret_cast<const Words2*>(at));
    return make_uint2(v.x, v.y);
}
DEVICE uint4 load_stream(const uint4* at) {
    const Words4 v = __builtin_nontemporal_load(reinterpret_cast<const Words4*>(at));
    return make_uint4(v.x, v.y, v.z, v.w);
}
DEVICE float load_stream(const float* at) { return __builtin_nontemporal_load(at); }
DEVICE float4 load_stream(const float4* at) {
    const uint4 v = load_stream(reinterpret_cast<const uint4*>(at));
    return make_float4(from_bits(v.x), from_bits(v.y), from_bits(v.z), from_bits(v.w));
}

DEVICE unsigned atomic_add(unsigned* at, unsigned v) { return atomicAdd(at, v); }
DEVICE unsigned atomic_or(unsigned* at, unsigned v) { return atomicOr(at, v); }
DEVICE unsigned atomic_max(unsigned* at, unsigned v) { return atomicMax(at, v); }

DEVICE void fence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
DEVICE unsigned load_system(const volatile unsigned* at) {
    return __hip_atomic_load(const_cast<const unsigned*>(at), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE void store_system(volatile unsigned* at, unsigned v) {
    __hip_atomic_store(const_cast<unsigned*>(at), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE unsigned long long nanoseconds() {
#if defined(__GFX11__) || defined(__GFX12__)
    const unsigned long long ticks = __builtin_amdgcn_s_sendmsg_rtnl(0x83); // MSG_RTN_GET_REALTIME
#else
    const unsigned long long ticks = __builtin_amdgcn_s_memrealtime();
#endif
    // Without the product of two large numbers: what is left of a millisecond is scaled by itself.
    return ticks / WALL_CLOCK_KHZ * 1000000 + ticks % WALL_CLOCK_KHZ * 1000000 / WALL_CLOCK_KHZ;
}
DEVICE void pause() { __builtin_amdgcn_s_sleep(4); }

#endif

// All dialects have the same include guard, so the first included dialect is used.
#ifndef DIALECT
#define DIALECT

// The kernel dialect for HIP: hiprtc and clang of ROCm 5 to 7. kernels-cuda/dialect.h documents the
// functions. Kernels are in kernels-cuda/; this folder has only the files for AMD.

#if !defined(__HIPCC_RTC__)
#include <hip/hip_runtime.h>
#endif

// Multiply and add are fused only by fmaf; clang would fuse wherever it can.
#pragma clang fp contract(off)

#define KERNEL(name) extern "C" __global__ void name
// The second launch bound has another meaning in HIP, so it is dropped.
#define KERNEL_OF(threads, blocks, name) extern "C" __global__ void __launch_bounds__(threads) name
#define EXPORT(name)
#define DEVICE __device__ __forceinline__

#define SHARED(T, name, n) __shared__ T name[n]
#define DYNAMIC_SHARED(T, name)                                                     \
    extern __shared__ __attribute__((aligned(16))) unsigned char dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(dynamic_shared)

// Wavefront size, 64 on CDNA and 32 on RDNA: known during code generation, but not a constant expression. Compilers up to
// ROCm 6.1 lack the builtin, and ROCm 7 the macro.
#if __has_builtin(__builtin_amdgcn_wavefrontsize)
#define WAVE (__builtin_amdgcn_wavefrontsize())
#else
#define WAVE unsigned(__AMDGCN_WAVEFRONT_SIZE)
#endif
// Matrix instructions for bytes: WMMA of RDNA 3 and 4, MFMA of CDNA 1 and 2, and of CDNA 3 and later.
#if defined(__GFX11__) && __has_builtin(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32)
#define HAS_MMA 1
#define WMMA_RDNA3
#elif (defined(__gfx1200__) || defined(__gfx1201__)) && __has_builtin(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12)
#define HAS_MMA 1
#define WMMA_RDNA4
#elif (defined(__gfx908__) || defined(__gfx90a__)) && __has_builtin(__builtin_amdgcn_mfma_i32_16x16x16i8)
#define HAS_MMA 1
#define MFMA_CDNA1
#elif (defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)) && \
    __has_builtin(__builtin_amdgcn_mfma_i32_16x16x32_i8)
#define HAS_MMA 1
#define MFMA_CDNA3
#else
#define HAS_MMA 0
#endif
#define HAS_MMA_FLOATS 0

/// Rate of the monotonic clock in kHz: hipDeviceAttributeWallClockRate.
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

// Byte indices 0 to 3 select from the second operand, 4 to 7 from the first.
DEVICE unsigned looked_up(uint4 table, unsigned places) {
    const unsigned of_eight = places & 0x07070707u, half = 0x03020100u | (places & 0x08080808u) >> 1;
    const unsigned low = __builtin_amdgcn_perm(table.y, table.x, of_eight);
    return __builtin_amdgcn_perm(__builtin_amdgcn_perm(table.w, table.z, of_eight), low, half);
}
DEVICE uint2 lookup16(uint4 table, unsigned places) {
    return make_uint2(looked_up(table, places), looked_up(table, places >> 4));
}

DEVICE unsigned bits(float v) { return __builtin_bit_cast(unsigned, v); }
DEVICE float from_bits(unsigned v) { return __builtin_bit_cast(float, v); }
DEVICE float half_to_float(unsigned short v) { return float(__builtin_bit_cast(_Float16, v)); }
DEVICE unsigned short float_to_half(float v) { return __builtin_bit_cast(unsigned short, _Float16(v)); }
// Correctly rounded unless disabled by the compiler option
// -fno-hip-fp32-correctly-rounded-divide-sqrt.
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

// Before gfx12, no instruction reads into the L2 cache alone; the host launches no blocks for it.
DEVICE void prefetch_l2(const void*) {}

DEVICE unsigned atomic_add(unsigned* at, unsigned v) { return atomicAdd(at, v); }
DEVICE unsigned atomic_or(unsigned* at, unsigned v) { return atomicOr(at, v); }
DEVICE unsigned atomic_max(unsigned* at, unsigned v) { return atomicMax(at, v); }

DEVICE void fence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
DEVICE unsigned load_system(const volatile unsigned* at) {
    return __hip_atomic_load(const_cast<const unsigned*>(at), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE uint2 load_system(const volatile uint2* at) {
    const unsigned long long* both = reinterpret_cast<const unsigned long long*>(const_cast<const uint2*>(at));
    const unsigned long long v = __hip_atomic_load(both, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    return make_uint2(unsigned(v), unsigned(v >> 32));
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
    // Avoids the product of two large numbers: the remainder of a millisecond is scaled
    // separately.
    return ticks / WALL_CLOCK_KHZ * 1000000 + ticks % WALL_CLOCK_KHZ * 1000000 / WALL_CLOCK_KHZ;
}
DEVICE void pause() { __builtin_amdgcn_s_sleep(4); }

#if HAS_MMA
// A lane holds the row of A and the column of B with its number modulo 16, and a column of D. The
// groups of 16 lanes share the 4 words of each half of a row; on RDNA 3, every group holds all 4
// words. Sources: "How to accelerate AI applications on RDNA 3 using WMMA" and "Using the Matrix
// Cores of AMD RDNA 4 architecture GPUs" (GPUOpen), "AMD matrix cores" (AMD lab notes).
struct MmaBytes {
#if defined(WMMA_RDNA3)
    static constexpr unsigned LANES = 32, WORDS = 4, APART = 0, ROW_STEP = 2, ROW_APART = 1;
#elif defined(WMMA_RDNA4)
    static constexpr unsigned LANES = 32, WORDS = 2, APART = 2, ROW_STEP = 1, ROW_APART = 8;
#else
    static constexpr unsigned LANES = 64, WORDS = 1, APART = 1, ROW_STEP = 1, ROW_APART = 4;
#endif
    static constexpr unsigned COLUMNS = 16, OWN_ROWS = 256 / LANES, OWN_COLUMNS = 1, OWN = OWN_ROWS;
    typedef int Words __attribute__((ext_vector_type(WORDS < 2 ? 2 : WORDS)));
    typedef int Sums __attribute__((ext_vector_type(OWN)));
    struct Left { unsigned words[2][WORDS]; };
    typedef Left Right;

    static DEVICE unsigned group() { return thread() % LANES / 16; }
    static DEVICE unsigned row(unsigned i) { return ROW_STEP * i + ROW_APART * group(); }
    static DEVICE unsigned column(unsigned) { return thread() % 16; }
    static DEVICE unsigned start(unsigned stride) { return thread() % 16 * stride + APART * group(); }
    static DEVICE Left left(const unsigned* from, unsigned) {
        Left all;
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned i = 0; i < WORDS; i++) all.words[half][i] = from[4 * half + i];
        }
        return all;
    }
    static DEVICE Right right(const unsigned* from, unsigned stride) { return left(from, stride); }

#if defined(MFMA_CDNA3)
    static DEVICE long long pair(unsigned lower, unsigned upper) { return (long long)upper << 32 | lower; }
    static DEVICE Sums add(Sums d, long long a, long long b) { return __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, d, 0, 0, 0); }
    static DEVICE Sums half(Sums d, const Left& a, const Right& b, unsigned which) {
        return add(d, pair(a.words[which][0], 0), pair(b.words[which][0], 0));
    }
    static DEVICE Sums both(Sums d, const Left& a, const Right& b) {
        return add(d, pair(a.words[0][0], a.words[1][0]), pair(b.words[0][0], b.words[1][0]));
    }
#else
    static DEVICE Words half_words(const Left& from, unsigned which) {
        Words words = {};
        for (unsigned i = 0; i < WORDS; i++) words[i] = int(from.words[which][i]);
        return words;
    }
    static DEVICE Sums half(Sums d, const Left& a, const Right& b, unsigned which) {
#if defined(WMMA_RDNA3)
        const Words left = half_words(a, which), right = half_words(b, which);
        return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, left, true, right, d, false);
#elif defined(WMMA_RDNA4)
        const Words left = half_words(a, which), right = half_words(b, which);
        return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, left, true, right, d, false);
#else
        return __builtin_amdgcn_mfma_i32_16x16x16i8(int(a.words[which][0]), int(b.words[which][0]), d, 0, 0, 0);
#endif
    }
    static DEVICE Sums both(Sums d, const Left& a, const Right& b) { return half(half(d, a, b, 0), a, b, 1); }
#endif

    static DEVICE Sums sums_of(const int (&d)[OWN]) {
        Sums sums;
        for (unsigned i = 0; i < OWN; i++) sums[i] = d[i];
        return sums;
    }
    static DEVICE void put(int (&d)[OWN], Sums sums) {
        for (unsigned i = 0; i < OWN; i++) d[i] = sums[i];
    }
    static DEVICE void multiply(int (&d)[OWN], const Left& a, const Right& b) { put(d, both(sums_of(d), a, b)); }
    static DEVICE void multiply_halves(int (&first)[OWN], int (&second)[OWN], const Left& a, const Right& b) {
        put(first, half(sums_of(first), a, b, 0));
        put(second, half(sums_of(second), a, b, 1));
    }
};
#endif

#endif

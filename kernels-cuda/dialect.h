// All dialects have the same include guard, so the first included dialect is used.
#ifndef DIALECT
#define DIALECT

// The kernel dialect for CUDA: nvrtc and nvcc, sm_75 and later. The same macros and functions are
// in kernels-hip/dialect.h and, for tests on the CPU, in backends/fakes/shim/dialect.h; the
// include path selects one. All other files in this folder are independent of the vendor.
//
// Rules for all three:
// - Blocks are one-dimensional, a multiple of 64 threads.
// - shfl*, ballot, any, MmaBytes and mma_tf32 are called by whole warps: no lane has returned or diverged.
// - shfl takes the lane modulo WAVE; shfl_xor needs an offset below WAVE; past the last lane, shfl_down returns the lane's own value.
// - Atomics return the old value, and order no other memory access.
// - Multiply and add are fused only by fmaf: kernels are compiled with -fmad=false.

/// A kernel: KERNEL(add)(const float* a, float* x, unsigned n) { ... }, and after it EXPORT(add).
#define KERNEL(name) extern "C" __global__ void name
/// A kernel for blocks of `threads` threads, compiled so that `blocks` blocks fit on a
/// multiprocessor.
#define KERNEL_OF(threads, blocks, name) extern "C" __global__ void __launch_bounds__(threads, blocks) name
#define EXPORT(name)
#define DEVICE __device__ __forceinline__

/// Shared memory of a block, initially undefined.
#define SHARED(T, name, n) __shared__ T name[n]
/// Dynamic shared memory, of the size given by the launch; one per kernel, aligned for all types.
#define DYNAMIC_SHARED(T, name)                                     \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(dynamic_shared)

/// Warp size.
#define WAVE 32u
/// Whether MmaBytes is available.
#define HAS_MMA 1
/// Whether mma_tf32 is available.
#define HAS_MMA_FLOATS (__CUDA_ARCH__ >= 800)

DEVICE unsigned thread() { return threadIdx.x; }
DEVICE uint3 block_index() { return blockIdx; }
DEVICE dim3 block_size() { return blockDim; }
DEVICE dim3 grid_size() { return gridDim; }
DEVICE unsigned lane() { return threadIdx.x % WAVE; }

/// Waits for all threads of the block that have not returned, and makes their writes visible to
/// each other.
DEVICE void barrier() { __syncthreads(); }

// T: unsigned, int, float.
template <class T> DEVICE T shfl(T v, unsigned from) { return __shfl_sync(~0u, v, from); }
template <class T> DEVICE T shfl_xor(T v, unsigned offset) { return __shfl_xor_sync(~0u, v, offset); }
template <class T> DEVICE T shfl_down(T v, unsigned offset) { return __shfl_down_sync(~0u, v, offset); }

// CUDA's headers still define functions of these names, deprecated since independent thread
// scheduling.
#define ballot ballot_of_wave
#define any any_of_wave

/// A bit for each lane.
DEVICE unsigned long long ballot(bool p) { return __ballot_sync(~0u, p); }
DEVICE bool any(bool p) { return __any_sync(~0u, p); }
DEVICE unsigned popc(unsigned v) { return __popc(v); }
DEVICE unsigned popcll(unsigned long long v) { return __popcll(v); }

/// c plus the sum of the products of the 4 signed bytes of a and b.
DEVICE int dot4(int a, int b, int c) {
    int v;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c)); // nvrtc 12.0 has no __dp4a
    return v;
}

// Selects four of the eight bytes of a (bytes 0 to 3) and b (4 to 7) by the lower three bits of four
// nibbles.
DEVICE unsigned permuted(unsigned a, unsigned b, unsigned nibbles) {
    unsigned v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(nibbles));
    return v;
}
/// Looks up bytes in a table of 16: at the lower nibbles (x) and at the upper nibbles (y) of the four
/// bytes of `places`.
DEVICE uint2 lookup16(uint4 table, unsigned places) {
    // A fourth bit would select the byte's sign.
    const unsigned of_eight = places & 0x77777777u, half = 0x32103210u | (places & 0x88888888u) >> 1;
    unsigned found[2];
    for (int i = 0; i < 2; i++) {
        const unsigned low = permuted(table.x, table.y, of_eight >> 16 * i);
        found[i] = permuted(low, permuted(table.z, table.w, of_eight >> 16 * i), half >> 16 * i);
    }
    return make_uint2(permuted(found[0], found[1], 0x6420u), permuted(found[0], found[1], 0x7531u));
}

DEVICE unsigned bits(float v) { return __float_as_uint(v); }
DEVICE float from_bits(unsigned v) { return __uint_as_float(v); }

DEVICE float half_to_float(unsigned short v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
    return f;
}

/// Rounds to nearest, ties to even.
DEVICE unsigned short float_to_half(float v) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

/// Correctly rounded division.
DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }

// Loads data that this launch reads once, without allocating a line of the L1 cache.
DEVICE unsigned load_stream(const unsigned* at) {
    unsigned v;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}
DEVICE uint2 load_stream(const uint2* at) {
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}
DEVICE uint4 load_stream(const uint4* at) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(at));
    return v;
}
DEVICE float load_stream(const float* at) { return from_bits(load_stream(reinterpret_cast<const unsigned*>(at))); }
DEVICE float4 load_stream(const float4* at) {
    const uint4 v = load_stream(reinterpret_cast<const uint4*>(at));
    return make_float4(from_bits(v.x), from_bits(v.y), from_bits(v.z), from_bits(v.w));
}

/// Starts to bring the cache line of global memory at `at` into the L2 cache.
DEVICE void prefetch_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

DEVICE unsigned atomic_add(unsigned* at, unsigned v) { return atomicAdd(at, v); }
DEVICE unsigned atomic_or(unsigned* at, unsigned v) { return atomicOr(at, v); }
DEVICE unsigned atomic_max(unsigned* at, unsigned v) { return atomicMax(at, v); }

// Hand-offs with the host, through memory that both access.

/// Earlier writes of this thread become visible, also to the host, before its later writes; reads
/// keep their order too.
DEVICE void fence_system() { __threadfence_system(); }
DEVICE unsigned load_system(const volatile unsigned* at) {
    unsigned v;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
/// Reads two words, aligned to 8 bytes, at once; each is as recent as if read alone.
DEVICE uint2 load_system(const volatile uint2* at) {
    unsigned long long v;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return make_uint2(unsigned(v), unsigned(v >> 32));
}
DEVICE void store_system(volatile unsigned* at, unsigned v) {
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
/// A monotonic clock; its resolution is some microseconds or finer.
DEVICE unsigned long long nanoseconds() {
    unsigned long long v;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v)::"memory");
    return v;
}
/// Pauses a thread that polls.
DEVICE void pause() { __nanosleep(100); }

// D (16 x 8, int) += A (16 x 32, signed bytes) * B (32 x 8, signed bytes), by a warp of 32.
// Element layout, with g = lane / 4, t = lane % 4, and i = 0..3 for the bytes of a word, lowest
// first:
//
//   a[0]: A[g    ][4 t + i]        b[0]: B[4 t + i     ][g]       d[0]: D[g    ][2 t    ]
//   a[1]: A[g + 8][4 t + i]        b[1]: B[4 t + i + 16][g]       d[1]: D[g    ][2 t + 1]
//   a[2]: A[g    ][4 t + i + 16]                                  d[2]: D[g + 8][2 t    ]
//   a[3]: A[g + 8][4 t + i + 16]                                  d[3]: D[g + 8][2 t + 1]
//
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k32". Before sm_80, four m8n8k16
// instructions compute the same integers; their fragments are quarters of these.
DEVICE void mma_s8_half(int d[4], const unsigned a[2], unsigned b) {
    for (int i = 0; i < 2; i++) {
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(d[2 * i]), "+r"(d[2 * i + 1])
            : "r"(a[i]), "r"(b));
    }
}
DEVICE void mma_s8(int d[4], const unsigned a[4], const unsigned b[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_s8_half(d, a, b[0]);
    mma_s8_half(d, a + 2, b[1]);
#endif
}

/// D (16 x COLUMNS, int) += A (16 x 32, signed bytes) * B (32 x COLUMNS, signed bytes), by a warp
/// of LANES, each of which holds OWN_ROWS by OWN_COLUMNS elements of D: element OWN_COLUMNS * i +
/// j is at row(i), column(j). A row of A and a column of B are 8 consecutive words each; how they
/// are distributed over lanes depends on the dialect.
struct MmaBytes {
    static constexpr unsigned LANES = 32, COLUMNS = 8, OWN_ROWS = 2, OWN_COLUMNS = 2, OWN = OWN_ROWS * OWN_COLUMNS;
    struct Left { unsigned words[4]; };
    struct Right { unsigned words[2]; };

    static DEVICE unsigned row(unsigned i) { return thread() % 32 / 4 + 8 * i; }
    static DEVICE unsigned column(unsigned j) { return 2 * (thread() % 4) + j; }
    /// Offset at which a lane starts to read rows or columns that are `stride` words apart.
    static DEVICE unsigned start(unsigned stride) { return thread() % 32 / 4 * stride + thread() % 4; }
    /// A lane's elements of 16 rows of A, and of the columns of B.
    static DEVICE Left left(const unsigned* from, unsigned stride) {
        return {{from[0], from[8 * stride], from[4], from[8 * stride + 4]}};
    }
    static DEVICE Right right(const unsigned* from, unsigned) { return {{from[0], from[4]}}; }
    static DEVICE void multiply(int (&d)[OWN], const Left& a, const Right& b) { mma_s8(d, a.words, b.words); }
    /// Adds the first 16 of 32 products to `first`, and the other 16 to `second`.
    static DEVICE void multiply_halves(int (&first)[OWN], int (&second)[OWN], const Left& a, const Right& b) {
#if __CUDA_ARCH__ >= 800
        const unsigned lower[2] = {b.words[0], 0}, upper[2] = {0, b.words[1]};
        mma_s8(first, a.words, lower);
        mma_s8(second, a.words, upper);
#else
        mma_s8_half(first, a.words, b.words[0]);
        mma_s8_half(second, a.words + 2, b.words[1]);
#endif
    }
};

// D (16 x 8) += A (16 x 8) * B (8 x 8), floats, by a warp of 32. Only the upper 10 mantissa bits
// of A and B are used; the others must be 0. With g and t as above:
//
//   a[0]: A[g    ][t    ]          b[0]: B[t    ][g]           d[0]: D[g    ][2 t    ]
//   a[1]: A[g + 8][t    ]          b[1]: B[t + 4][g]           d[1]: D[g    ][2 t + 1]
//   a[2]: A[g    ][t + 4]                                      d[2]: D[g + 8][2 t    ]
//   a[3]: A[g + 8][t + 4]                                      d[3]: D[g + 8][2 t + 1]
//
// Products are exact; their sums may be truncated at the last place instead of rounded, so long
// sums must be added elsewhere. Source: PTX ISA, "Matrix Fragments for mma.m16n8k8".
#if HAS_MMA_FLOATS
DEVICE void mma_tf32(float d[4], const unsigned a[4], const unsigned b[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#endif

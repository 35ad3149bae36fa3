// All dialects have this include guard, so that only the first included one is used.
#ifndef DIALECT
#define DIALECT

// The kernel dialect for tests on the CPU. kernels-cuda/dialect.h documents the dialect. The shim
// detects errors that may go unnoticed on a device: see shim.h.

#include "shim.h"

#include <math.h>
#include <string.h>

#define KERNEL(name) static void name
#define KERNEL_OF(threads, blocks, name) static void name
#define EXPORT(name) static const shim::Export export_##name(SHIM_UNIT, #name, name);
#define DEVICE inline

#define SHARED(T, name, n)   \
    static char key_##name; \
    T(&name)[n] = *static_cast<T(*)[n]>(shim::shared(&key_##name, sizeof(T) * (n), alignof(T)))
#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(shim::view->dynamic)

#define WAVE (shim::view->wave)
#define HAS_MMA 1
#define HAS_MMA_FLOATS 1

// These types are aligned as on devices, so that a sanitiser detects misaligned accesses.
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
typedef shim::Index uint3;
DEVICE uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
DEVICE uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
DEVICE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
DEVICE int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
DEVICE float2 make_float2(float x, float y) { return {x, y}; }
DEVICE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

DEVICE unsigned thread() { return shim::view->thread; }
DEVICE uint3 block_index() { return shim::view->block; }
DEVICE uint3 block_size() { return shim::view->size; }
DEVICE uint3 grid_size() { return shim::view->grid; }
DEVICE unsigned lane() { return shim::view->thread & (WAVE - 1); }

// The caller's line distinguishes lanes that wait in different branches.
DEVICE void barrier(int line = __builtin_LINE()) { shim::barrier(line); }

DEVICE unsigned bits(float v) {
    unsigned u;
    memcpy(&u, &v, 4);
    return u;
}
DEVICE float from_bits(unsigned u) {
    float v;
    memcpy(&v, &u, 4);
    return v;
}

DEVICE unsigned shfl(unsigned v, unsigned from, int line = __builtin_LINE()) {
    return shim::exchange(v, from & (WAVE - 1), line);
}
DEVICE int shfl(int v, unsigned from, int line = __builtin_LINE()) { return int(shfl(unsigned(v), from, line)); }
DEVICE float shfl(float v, unsigned from, int line = __builtin_LINE()) { return from_bits(shfl(bits(v), from, line)); }
template <class T> DEVICE T shfl_xor(T v, unsigned offset, int line = __builtin_LINE()) {
    return shfl(v, lane() ^ offset, line);
}
template <class T> DEVICE T shfl_down(T v, unsigned offset, int line = __builtin_LINE()) {
    const unsigned from = lane() + offset;
    return shfl(v, from < WAVE ? from : lane(), line);
}
DEVICE unsigned long long ballot(bool p, int line = __builtin_LINE()) { return shim::ballot(p, line); }
DEVICE bool any(bool p, int line = __builtin_LINE()) { return shim::ballot(p, line) != 0; }
DEVICE unsigned popc(unsigned v) { return __builtin_popcount(v); }
DEVICE unsigned popcll(unsigned long long v) { return __builtin_popcountll(v); }

DEVICE int dot4(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) {
        c += int((signed char)(unsigned(a) >> i)) * int((signed char)(unsigned(b) >> i));
    }
    return c;
}

DEVICE uint2 lookup16(uint4 table, unsigned places) {
    const unsigned words[4] = {table.x, table.y, table.z, table.w};
    uint2 found = {0, 0};
    for (unsigned i = 0; i < 4; i++) {
        const unsigned low = places >> 8 * i & 15, high = places >> (8 * i + 4) & 15;
        found.x |= (words[low / 4] >> low % 4 * 8 & 0xff) << 8 * i;
        found.y |= (words[high / 4] >> high % 4 * 8 & 0xff) << 8 * i;
    }
    return found;
}

DEVICE float half_to_float(unsigned short h) {
    // The multiplication corrects the exponent's bias and normalises subnormal numbers.
    const float wide = from_bits((h & 0x7fffu) << 13) * from_bits(0x77800000u);
    const unsigned infinite = (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
    return from_bits(bits(wide) | infinite | (h & 0x8000u) << 16);
}
DEVICE unsigned short float_to_half(float v) {
    const unsigned sign = bits(v) >> 16 & 0x8000u, size = bits(v) & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00u | (size >> 13 & 0x3ffu);
    if (size >= 0x477ff000u) return sign | 0x7c00u;
    // The last mantissa bit of 0.5 has the value of the smallest subnormal f16 number, so the sum
    // rounds to a multiple of that number.
    if (size < 0x38800000u) return sign | (bits(from_bits(size) + 0.5f) - 0x3f000000u);
    const unsigned even = size + 0xfffu + (size >> 13 & 1);
    return sign | (even - 0x38000000u) >> 13;
}
DEVICE float divide(float a, float b) { return a / b; }

template <class T> DEVICE T load_stream(const T* at) { return *at; }

// Reads the line, so that a line outside of all allocations is noticed.
DEVICE void prefetch_l2(const void* at) {
    const volatile char* bytes = static_cast<const volatile char*>(at);
    (void)bytes[0];
    (void)bytes[127];
}

DEVICE unsigned atomic_add(unsigned* at, unsigned v) { return __atomic_fetch_add(at, v, __ATOMIC_RELAXED); }
DEVICE unsigned atomic_or(unsigned* at, unsigned v) { return __atomic_fetch_or(at, v, __ATOMIC_RELAXED); }
DEVICE unsigned atomic_max(unsigned* at, unsigned v) {
    unsigned old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(at, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

DEVICE void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE unsigned load_system(const volatile unsigned* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
DEVICE uint2 load_system(const volatile uint2* at) {
    // The host writes one word at a time, so two loads of one word each are equivalent.
    const volatile unsigned* words = reinterpret_cast<const volatile unsigned*>(at);
    if (reinterpret_cast<uintptr_t>(at) % 8 != 0) __builtin_trap();
    return {__atomic_load_n(words, __ATOMIC_RELAXED), __atomic_load_n(words + 1, __ATOMIC_RELAXED)};
}
DEVICE void store_system(volatile unsigned* at, unsigned v) { __atomic_store_n(at, v, __ATOMIC_RELAXED); }
DEVICE unsigned long long nanoseconds() { return shim::nanoseconds(); }
DEVICE void pause() { shim::pause(); }

DEVICE void mma_s8(int d[4], const unsigned a[4], const unsigned b[2], int line = __builtin_LINE()) {
    shim::mma_s8(d, a, b, line);
}
// NVIDIA's layout: see kernels-cuda/dialect.h.
struct MmaBytes {
    static constexpr unsigned LANES = 32, COLUMNS = 8, OWN_ROWS = 2, OWN_COLUMNS = 2, OWN = OWN_ROWS * OWN_COLUMNS;
    struct Left { unsigned words[4]; };
    struct Right { unsigned words[2]; };

    static unsigned row(unsigned i) { return thread() % 32 / 4 + 8 * i; }
    static unsigned column(unsigned j) { return 2 * (thread() % 4) + j; }
    static unsigned start(unsigned stride) { return thread() % 32 / 4 * stride + thread() % 4; }
    static Left left(const unsigned* from, unsigned stride) {
        return {{from[0], from[8 * stride], from[4], from[8 * stride + 4]}};
    }
    static Right right(const unsigned* from, unsigned) { return {{from[0], from[4]}}; }
    static void multiply(int (&d)[OWN], const Left& a, const Right& b) { mma_s8(d, a.words, b.words); }
    static void multiply_halves(int (&first)[OWN], int (&second)[OWN], const Left& a, const Right& b) {
        const unsigned lower[2] = {b.words[0], 0}, upper[2] = {0, b.words[1]};
        mma_s8(first, a.words, lower);
        mma_s8(second, a.words, upper);
    }
};
DEVICE void mma_tf32(float d[4], const unsigned a[4], const unsigned b[2], int line = __builtin_LINE()) {
    shim::mma_tf32(d, a, b, line);
}

#endif

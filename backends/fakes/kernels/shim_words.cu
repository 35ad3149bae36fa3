// Kernels that test functions of the dialect, which kernels-cuda/dialect.h documents.
#include "dialect.h"

// For each thread 8 words: lane, three shuffles, a ballot (two words), any, and the block's sum of
// thread numbers.
KERNEL(words_of_waves)(unsigned* x) {
    SHARED(unsigned, sums, 32);
    unsigned* out = x + thread() * 8;
    out[0] = lane();
    out[1] = shfl(thread() * 3, 5u);
    out[2] = unsigned(shfl_xor(int(thread()), 3u));
    out[3] = unsigned(shfl_down(float(thread()), 7u));
    const unsigned long long odd = ballot(thread() % 2 == 1);
    out[4] = unsigned(odd);
    out[5] = unsigned(odd >> 32);
    out[6] = any(lane() == 9) + 2 * any(lane() == WAVE);
    unsigned sum = thread();
    for (unsigned o = WAVE / 2; o > 0; o /= 2) sum += shfl_xor(sum, o);
    if (lane() == 0) sums[thread() / WAVE] = sum;
    barrier();
    sum = 0;
    for (unsigned i = 0; i < block_size().x / WAVE; i++) sum += sums[i];
    out[7] = sum;
}
EXPORT(words_of_waves)

// Counts the words of uninitialised shared memory that hold the shim's NaN.
KERNEL(fresh_memory)(unsigned* x, unsigned n) {
    SHARED(unsigned, fixed, 64);
    DYNAMIC_SHARED(unsigned, dynamic);
    unsigned n_poisoned = 0;
    if (thread() == 0) {
        for (unsigned i = 0; i < 64; i++) n_poisoned += fixed[i] == 0xffe1ffe1u && from_bits(fixed[i]) != from_bits(fixed[i]);
        for (unsigned i = 0; i < n; i++) n_poisoned += dynamic[i] == 0xffe1ffe1u;
        x[block_index().x] = n_poisoned;
        // The next block must not see these values.
        for (unsigned i = 0; i < 64; i++) fixed[i] = 1;
        for (unsigned i = 0; i < n; i++) dynamic[i] = 1;
    }
}
EXPORT(fresh_memory)

// D = D + A B, with 16 rows of A and 8 columns of B, of 32 bytes each. All waves do the same.
KERNEL(small_product)(const unsigned* a, const unsigned* b, int* d) {
    int sum[MmaBytes::OWN];
    const auto at = [](unsigned i) {
        return MmaBytes::row(i / MmaBytes::OWN_COLUMNS) * 8 + MmaBytes::column(i % MmaBytes::OWN_COLUMNS);
    };
    for (unsigned i = 0; i < MmaBytes::OWN; i++) sum[i] = d[at(i)];
    barrier();
    const unsigned start = MmaBytes::start(8);
    MmaBytes::multiply(sum, MmaBytes::left(a + start, 8), MmaBytes::right(b + start, 8));
    if (thread() >= MmaBytes::LANES) return;
    for (unsigned i = 0; i < MmaBytes::OWN; i++) d[at(i)] = sum[i];
}
EXPORT(small_product)

// D = D + A B, with 16 rows of A and 8 columns of B, of 8 floats each. All waves do the same.
KERNEL(small_product_of_floats)(const unsigned* a, const unsigned* b, float* d) {
    const unsigned g = lane() % 32 / 4, t = lane() % 4;
    const unsigned left[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    const unsigned right[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
    float sum[4];
    for (unsigned i = 0; i < 4; i++) sum[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    barrier();
    mma_tf32(sum, left, right);
    if (thread() >= 32) return;
    for (unsigned i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
EXPORT(small_product_of_floats)

// Each thread looks up the 8 nibbles of one word in a table of 16 bytes.
KERNEL(look_up)(const unsigned* table, const unsigned* places, unsigned* found) {
    const uint2 both = lookup16(make_uint4(table[0], table[1], table[2], table[3]), places[thread()]);
    found[2 * thread()] = both.x;
    found[2 * thread() + 1] = both.y;
}
EXPORT(look_up)

// Counts wrong conversions of all f16 values (wrong[0]) and of the floats (wrong[1]).
KERNEL(halves)(const unsigned* floats, const unsigned* halves, unsigned n, unsigned* wrong) {
    const unsigned i = block_index().x * block_size().x + thread();
    if (i < 65536) {
        const float v = half_to_float(static_cast<unsigned short>(i));
        if (v == v && float_to_half(v) != i) atomic_add(wrong, 1);
        if (v != v && (i & 0x7fffu) <= 0x7c00u) atomic_add(wrong, 1);
    }
    if (i < n && float_to_half(from_bits(floats[i])) != halves[i]) atomic_add(wrong + 1, 1);
}
EXPORT(halves)

// Thread 0 of each block copies two words with one load.
KERNEL(load_both)(const uint2* from, unsigned* to) {
    if (thread() != 0) return;
    const uint2 both = load_system(from + block_index().x);
    to[2 * block_index().x] = both.x;
    to[2 * block_index().x + 1] = both.y;
}
EXPORT(load_both)

// Waits until the host sets `go`, then stores `go` + 1 in `answer`. Gives up after `milliseconds`.
KERNEL(wait_for_host)(const unsigned* go, unsigned* answer, unsigned milliseconds) {
    SHARED(unsigned, came, 1);
    if (thread() == 0) {
        const unsigned long long start = nanoseconds();
        came[0] = 1;
        while (load_system(go) == 0) {
            if (nanoseconds() - start > milliseconds * 1000000ull) {
                came[0] = 0;
                break;
            }
            pause();
        }
    }
    barrier();
    fence_system();
    if (came[0] != 0 && thread() == 1) store_system(answer, load_system(go) + 1);
}
EXPORT(wait_for_host)

KERNEL(atomics)(unsigned* x) {
    atomic_add(x, 1);
    atomic_or(x + 1, 1u << thread() % 32);
    atomic_max(x + 2, block_index().x * block_size().x + thread());
}
EXPORT(atomics)

// x[i] = a * x[i] + i, with threads of a three-dimensional grid.
KERNEL(scale)(float* x, float a, unsigned n) {
    const uint3 at = block_index(), size = grid_size();
    const unsigned i = ((at.z * size.y + at.y) * size.x + at.x) * block_size().x + thread();
    if (i < n) x[i] = fmaf(a, x[i], float(i));
}
EXPORT(scale)

// y = W x, for a matrix and a vector of signed bytes; one thread block per row.
KERNEL(rows)(const unsigned* w, const unsigned* x, float* y, unsigned n_blocks) {
    SHARED(float, part, 32);
    const unsigned* row = w + size_t(block_index().x) * n_blocks * 8;
    float sum = 0.0f;
    for (unsigned b = thread(); b < n_blocks; b += block_size().x) {
        int dot = 0;
        for (unsigned j = 0; j < 8; j++) dot = dot4(int(row[b * 8 + j]), int(x[b * 8 + j]), dot);
        sum += float(dot);
    }
    for (unsigned o = WAVE / 2; o > 0; o /= 2) sum += shfl_xor(sum, o);
    if (lane() == 0) part[thread() / WAVE] = sum;
    barrier();
    if (thread() != 0) return;
    sum = 0.0f;
    for (unsigned i = 0; i < block_size().x / WAVE; i++) sum += part[i];
    y[block_index().x] = sum;
}
EXPORT(rows)

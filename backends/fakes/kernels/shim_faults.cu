// Kernels with one fault each, for the tests of the shim.
#include "dialect.h"

KERNEL(barrier_in_a_branch)(unsigned* x) {
    if (thread() < 32) barrier();
    x[thread()] = 1;
}
EXPORT(barrier_in_a_branch)

KERNEL(barriers_in_both_branches)(unsigned* x) {
    if (thread() < 64) {
        barrier();
    } else {
        barrier();
    }
    x[thread()] = 1;
}
EXPORT(barriers_in_both_branches)

KERNEL(shuffle_in_half_a_wave)(unsigned* x) {
    unsigned v = 0;
    if (lane() < 16) v = shfl_xor(thread(), 1u);
    barrier();
    x[thread()] = v;
}
EXPORT(shuffle_in_half_a_wave)

KERNEL(shuffle_after_lanes_returned)(unsigned* x) {
    if (lane() < 16) return;
    x[thread()] = shfl_xor(thread(), 1u);
}
EXPORT(shuffle_after_lanes_returned)

KERNEL(shuffles_in_both_branches)(unsigned* x) {
    unsigned v = 0;
    if (lane() < 16) {
        v = shfl_xor(thread(), 1u);
    } else {
        v = shfl_xor(thread(), 2u);
    }
    x[thread()] = v;
}
EXPORT(shuffles_in_both_branches)

// The shim does not detect this fault, but its shuffled orders give wrong data.
KERNEL(missing_barrier)(unsigned* x) {
    SHARED(unsigned, shared, 1024);
    shared[thread()] = thread();
    x[thread()] = shared[(thread() + 1) % block_size().x];
}
EXPORT(missing_barrier)

KERNEL(past_a_shared_array)(unsigned* x) {
    SHARED(unsigned, shared, 256);
    shared[thread() + 1] = 0;
    x[thread()] = 0;
}
EXPORT(past_a_shared_array)

KERNEL(past_dynamic_memory)(unsigned* x, unsigned n) {
    DYNAMIC_SHARED(unsigned, shared);
    shared[n] = 0;
    x[thread()] = 0;
}
EXPORT(past_dynamic_memory)

KERNEL(too_much_shared)(unsigned* x) {
    SHARED(unsigned, shared, 20000);
    shared[thread()] = 0;
    x[thread()] = shared[thread()];
}
EXPORT(too_much_shared)

// Writes past the end of `x`, which faults where the memory after `x` is unmapped.
KERNEL(past_an_allocation)(unsigned* x, unsigned n) { x[n + thread()] = 0; }
EXPORT(past_an_allocation)

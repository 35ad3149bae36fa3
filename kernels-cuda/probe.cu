// What a device is tried with when it is opened (`backends/simt/src/probe.rs`).
#include "dialect.h"

// As little as a launch can be.
KERNEL(probe_nothing)(unsigned* word) {
    if (word != nullptr && thread() == 0) { *word = 0; }
}
EXPORT(probe_nothing)

// Waits for word 0 of host memory to be 1, at most so long, and sets word 1 to what it saw.
KERNEL(probe_echo)(unsigned* words, unsigned limit_ms) {
    if (thread() != 0) { return; }
    const unsigned long long end = nanoseconds() + 1000000ull * limit_ms;
    unsigned seen = load_system(words);
    while (seen != 1u && nanoseconds() < end) {
        pause();
        seen = load_system(words);
    }
    fence_system();
    store_system(words + 1, seen);
}
EXPORT(probe_echo)

// Adds a word to a sum; many of them behind each other tell whether all ran, once each, in order, and saw what was there.
KERNEL(probe_count)(unsigned* sum, const unsigned* word) {
    if (thread() == 0) { *sum = 3u * *sum + *word; }
}
EXPORT(probe_count)

// Kernels that measure a device when it is opened (`backends/simt/src/probe.rs`).
#include "dialect.h"

// The smallest possible launch.
KERNEL(probe_nothing)(unsigned* word) {
    if (word != nullptr && thread() == 0) { *word = 0; }
}
EXPORT(probe_nothing)

// Waits until word 0 of host memory is 1, up to the time limit, and sets word 1 to the value it
// read.
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

// Updates a sum with a word. After a chain of launches, the sum shows whether each launch ran once,
// in order, and with the current word.
KERNEL(probe_count)(unsigned* sum, const unsigned* word) {
    if (thread() == 0) { *sum = 3u * *sum + *word; }
}
EXPORT(probe_count)

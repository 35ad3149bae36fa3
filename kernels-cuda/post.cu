// Writes a post to its mailbox, which is in host memory, and sets its flag.
#include "lib/batch.cuh"
#include "lib/wide.cuh"

// Copies n words with all threads of the grid.
static DEVICE void send(unsigned* to, const unsigned* from, size_t n) {
    const size_t step = size_t(grid_size().x) * block_size().x;
    size_t done = 0;
    if (is_wide(to) && is_wide(from)) {
        done = n / 4 * 4;
        for (size_t i = 4 * flat_index(); i < done; i += 4 * step) {
            *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
        }
    }
    for (size_t i = done + flat_index(); i < n; i += step) to[i] = from[i];
}

// Word 0 of `out` is the number of tokens, word 1 the flag: the number of the step, written last.
// `at_...` are word offsets in `out`. If a wait of this step has timed out (step[1] is the last such
// step), the host may still read an earlier post, so nothing is written.
KERNEL(post)(const unsigned* batch, const float* x, unsigned n_in, unsigned max_rows, const float* weights, unsigned n_weights,
    const unsigned* ids, const unsigned* count, const unsigned* members, unsigned capacity, unsigned words_held,
    unsigned words_sent, unsigned* out, unsigned at_count, unsigned at_x, unsigned at_weights, unsigned at_ids,
    unsigned at_members, const unsigned* step, unsigned* arrived) {
    if (step[1] == step[0]) return;
    const unsigned n_tokens = real_tokens(batch, max_rows);
    send(out + at_x, reinterpret_cast<const unsigned*>(x), size_t(n_tokens) * n_in);
    if (weights) send(out + at_weights, reinterpret_cast<const unsigned*>(weights), size_t(n_tokens) * n_weights);
    unsigned n_ids = 0;
    if (members) {
        n_ids = *count < capacity ? *count : capacity;
        send(out + at_ids, ids, n_ids);
        if (words_held == words_sent) {
            send(out + at_members, members, size_t(n_ids) * words_sent);
        } else {
            const size_t n = size_t(n_ids) * words_sent;
            for (size_t i = flat_index(); i < n; i += size_t(grid_size().x) * block_size().x) {
                out[at_members + i] = members[i / words_sent * words_held + i % words_sent];
            }
        }
    }
    fence_system();
    barrier();
    if (thread() != 0) return;
    fence_system();
    if (atomic_add(arrived, 1) + 1 != grid_size().x) return;
    // All other blocks have counted themselves, so the counter is unused until the next post.
    fence_system();
    *arrived = 0;
    out[0] = n_tokens;
    if (members) out[at_count] = n_ids;
    fence_system();
    store_system(out + 1, *step);
}
EXPORT(post)

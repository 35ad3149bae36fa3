// Rotates pairs of values of every head by position times frequency, in place; a thread per pair.
#include "lib/batch.cuh"
#include "lib/turn.cuh"
#include "lib/wide.cuh"

// Pair j is value j * pair_step of the rotated values, and the value `pair_other` after it.
KERNEL(rope)(const float* freqs, const unsigned* batch, float* x, unsigned max_tokens, unsigned n_rows, unsigned n_head,
    unsigned d_head, unsigned first, unsigned n_pairs, unsigned pair_step, unsigned pair_other, float scale) {
    const Batch facts{batch, max_tokens};
    const size_t at = flat_index();
    const unsigned j = unsigned(at % n_pairs);
    const unsigned h = unsigned(at / n_pairs % n_head);
    const size_t t = at / n_pairs / n_head;
    if (t >= real_tokens(batch, n_rows)) return;
    float* one = x + (t * n_head + h) * d_head + first + j * pair_step;
    turn_pair(one, one + pair_other, float(facts.pos(unsigned(t))) * freqs[j], scale);
}
EXPORT(rope)

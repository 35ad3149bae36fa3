// Keys of the blocks that end in this step (op::CompressKeys): means of values with learned weights, normed and rotated, for
// the tokens at the last position of a block. A block of threads per token. Earlier positions are tokens of the step, or in
// the state, which `compress_state` then brings up to date.
#include "cache/cache.cuh"
#include "lib/attention.cuh"
#include "lib/turn.cuh"

using namespace attention;

static constexpr unsigned MOST = 1024;

typedef cache::Choice<cache::FORMAT> Format;

// The values of a position and its gates.
struct Position {
    const float *values, *gates;
};

// Walks from a token back through the positions of its sequence.
struct Walk {
    const Batch& facts;
    const float *values, *gates, *state;
    unsigned width, n, seq, token, pos;
    bool in_step;

    DEVICE Position here() const {
        if (in_step) return {values + size_t(token) * width, gates + size_t(token) * width};
        const float* slot = state + (size_t(seq) * n + pos % n) * 2 * width;
        return {slot, slot + width};
    }
    DEVICE void back() {
        pos--;
        while (in_step) {
            if (token == 0) in_step = false;
            else if (facts.seq(--token) == seq) break;
        }
    }
};

// The mean of column `i` over the last `n` positions of a token.
static DEVICE float mean_of(Walk walk, const float* ape, unsigned ratio, unsigned d, unsigned i) {
    const unsigned block = walk.pos / ratio, n_seen = walk.pos + 1, n = walk.n < n_seen ? walk.n : n_seen;
    float most = LOW, sum = 0.0f, total = 0.0f;
    for (unsigned j = 0; j < n; j++) {
        if (j > 0) walk.back();
        const unsigned c = walk.pos / ratio == block ? walk.width - d + i : i;
        const Position own = walk.here();
        const float gate = own.gates[c] + ape[size_t(walk.pos % ratio) * walk.width + c];
        // What was added so far had a smaller maximum.
        const float larger = fmaxf(most, gate), fade = expf(most - larger), weight = expf(gate - larger);
        sum = fmaf(weight, own.values[c], sum * fade);
        total = fmaf(total, fade, weight);
        most = larger;
    }
    return sum / total;
}

// Stores a key; a visitor of `cache::Choice`.
struct StoreKey {
    const float* key;
    unsigned* row;
    unsigned d;

    template <class C> DEVICE void operator()(C format) const {
        const unsigned n = format.threads(d);
        for (unsigned first = 0; first < n; first += block_size().x) {
            const unsigned i = first + thread();
            format.store(key, d, i < n ? i : 0, row, i < n);
        }
    }
};

KERNEL(compress_keys)(const float* values, const float* gates, const float* ape, const float* norm, const float* freqs,
    const float* state, const unsigned* batch, unsigned* cached, unsigned max_tokens, unsigned n_rows, unsigned width, unsigned d,
    unsigned ratio, unsigned n_positions, unsigned n_pairs, unsigned pair_step, unsigned pair_other, unsigned k_words, float eps,
    unsigned k_format) {
    SHARED(float, key, MOST);
    const Batch facts{batch, max_tokens};
    const unsigned t = block_index().x;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned pos = facts.pos(t);
    if ((pos + 1) % ratio != 0) return;
    const Walk walk{facts, values, gates, state, width, n_positions, facts.seq(t), t, pos, true};
    float squares = 0.0f;
    for (unsigned i = thread(); i < d; i += block_size().x) {
        const float mean = mean_of(walk, ape, ratio, d, i);
        key[i] = mean;
        squares = fmaf(mean, mean, squares);
    }
    const float factor = 1.0f / sqrtf(sum_block(squares) / float(d) + eps);
    for (unsigned i = thread(); i < d; i += block_size().x) key[i] *= factor * norm[i];
    barrier();
    float* rotated = key + d - 2 * n_pairs;
    for (unsigned j = thread(); j < n_pairs; j += block_size().x) {
        float* one = rotated + j * pair_step;
        turn_pair(one, one + pair_other, float(pos + 1 - ratio) * freqs[j], 1.0f);
    }
    barrier();
    const unsigned row = facts.kv_row(t) / (ratio < 32 ? ratio : 32);
    Format(k_format).visit(StoreKey{key, cached + size_t(row) * k_words, d});
}
EXPORT(compress_keys)

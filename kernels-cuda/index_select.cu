// Lists the positions of the blocks of the highest scores of a token, in ascending order, then those of
// the incomplete block; or those of a window, then the rows of the blocks' compressed keys
// (op::LightningIndexer, op::ListBlocks). A block of threads per token. The lowest of the selected
// scores is found byte by byte, from the highest byte on, by counting the scores that have each value
// there (radix selection).
#include "lib/attention.cuh"

using namespace attention;

static constexpr unsigned THREADS = 256, AT_ONCE = 4, WORDS = THREADS / 32;

// Maps scores to words with the same order; 0 is equal to -0, and NaN is below all numbers.
static DEVICE unsigned order_of(float score) {
    if (score != score) return 0;
    const unsigned word = bits(score == 0.0f ? 0.0f : score);
    return word >> 31 ? ~word : word | 0x80000000u;
}

struct Lowest {
    // The lowest selected word, and how many of the blocks that have it are selected.
    unsigned word, n;
};

// The lowest of the `n_wanted` highest of the `n` words.
static DEVICE Lowest lowest_of(const float* scores, unsigned n, unsigned n_wanted) {
    SHARED(unsigned, counts, 256);
    SHARED(unsigned, found, 2);
    Lowest lowest{0, n_wanted};
    for (unsigned shift = 24;; shift -= 8) {
        counts[thread()] = 0;
        barrier();
        for (unsigned i = thread(); i < n; i += THREADS) {
            const unsigned word = order_of(scores[i]);
            // All words match in the first round, where no byte is known.
            if (shift == 24 || word >> (shift + 8) == lowest.word >> (shift + 8)) atomic_add(&counts[word >> shift & 255u], 1);
        }
        barrier();
        unsigned above = 0;
        for (unsigned byte = thread() + 1; byte < 256; byte++) above += counts[byte];
        if (above < lowest.n && above + counts[thread()] >= lowest.n) {
            found[0] = thread();
            found[1] = lowest.n - above;
        }
        barrier();
        lowest.word |= found[0] << shift;
        lowest.n = found[1];
        if (shift == 0) return lowest;
    }
}

// What is listed for a block: its positions, or the row of its key.
struct Listed {
    unsigned* out;
    const unsigned* blocks;
    unsigned pool, first_row;
    bool rows;

    /// Lists block `i` as the `at`-th one.
    DEVICE void put(unsigned at, unsigned i) const {
        if (rows) out[at] = (first_row + block_row(blocks, i, pool)) | CACHE_ROW;
        else for (unsigned j = 0; j < pool; j++) out[at * pool + j] = i * pool + j;
    }
};

// `scores` has a row of `stride` for each token from `first_token` on. With a window, rows from `first_row` on are
// listed after it.
KERNEL(index_select)(const float* scores, const unsigned* batch, unsigned* selected, unsigned max_tokens, unsigned max_seqs,
    unsigned max_blocks, unsigned n_rows, unsigned first_token, unsigned n_listed, unsigned pool, unsigned window, unsigned first_row,
    unsigned stride) {
    SHARED(unsigned, masks, 2 * AT_ONCE * WORDS);
    const Batch facts{batch, max_tokens};
    const unsigned t = first_token + block_index().x;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned n_seen = facts.pos(t) + 1, n = n_seen / pool;
    const unsigned top_k = window ? n_listed - window : n_listed / pool;
    unsigned* out = selected + size_t(t) * n_listed;
    const unsigned n_window = window < n_seen ? window : n_seen;
    const Listed listed{out + n_window, facts.blocks(facts.seq(t), max_seqs, max_blocks), pool, first_row, window != 0};
    for (unsigned i = thread(); i < n_window; i += THREADS) out[i] = n_seen - n_window + i;
    if (n <= top_k) {
        if (window) {
            for (unsigned i = thread(); i < n_listed - n_window; i += THREADS) {
                if (i < n) listed.put(i, i);
                else out[n_window + i] = NO_POSITION;
            }
            return;
        }
        for (unsigned i = thread(); i < n_listed; i += THREADS) out[i] = i < n_seen ? i : NO_POSITION;
        return;
    }
    scores += size_t(block_index().x) * stride;
    const Lowest lowest = lowest_of(scores, n, top_k);
    const unsigned n_entries = window ? n_window + top_k : top_k * pool;
    for (unsigned i = thread(); i < n_listed - n_entries; i += THREADS) {
        out[n_entries + i] = !window && n * pool + i < n_seen ? n * pool + i : NO_POSITION;
    }
    // Of the blocks before: those above the lowest word, and those that have it.
    unsigned n_above = 0, n_equal = 0;
    for (unsigned base = 0; base < n; base += AT_ONCE * THREADS) {
        bool above[AT_ONCE], equal[AT_ONCE];
#pragma unroll
        for (unsigned a = 0; a < AT_ONCE; a++) {
            const unsigned i = base + a * THREADS + thread(), word = i < n ? order_of(scores[i]) : 0;
            above[a] = i < n && word > lowest.word;
            equal[a] = i < n && word == lowest.word;
            const unsigned long long both[2] = {ballot(above[a]), ballot(equal[a])};
            if (lane() % 32 == 0) {
                masks[a * WORDS + thread() / 32] = unsigned(both[0] >> (lane() & 32u));
                masks[(AT_ONCE + a) * WORDS + thread() / 32] = unsigned(both[1] >> (lane() & 32u));
            }
        }
        barrier();
        const unsigned below = (1u << thread() % 32) - 1;
#pragma unroll
        for (unsigned a = 0; a < AT_ONCE; a++) {
#pragma unroll
            for (unsigned w = 0; w < WORDS; w++) {
                const unsigned one = masks[a * WORDS + w], other = masks[(AT_ONCE + a) * WORDS + w];
                if (w == thread() / 32) {
                    const unsigned before = n_equal + popc(other & below);
                    const unsigned n_before = before < lowest.n ? before : lowest.n;
                    if (above[a] || (equal[a] && before < lowest.n)) {
                        listed.put(n_above + popc(one & below) + n_before, base + a * THREADS + thread());
                    }
                }
                n_above += popc(one);
                n_equal += popc(other);
            }
        }
        barrier();
    }
}
EXPORT(index_select)

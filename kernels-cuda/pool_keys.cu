// Keys of blocks of positions (op::PoolKeys): the weighted means of the keys of their positions, for the
// tokens at the last position of a block; zeros for the others. A block of threads per token.
#include "lib/attention.cuh"

using namespace attention;

typedef cache::Choice<cache::FORMAT> Format;

// Eight values of a cached row, from value i on of the half that begins at `first`.
static DEVICE void load(Format format, const unsigned* row, unsigned first, unsigned i, unsigned d, bool wide, float* out) {
    float own[1][PIECE];
    format.visit(LoadPieces<1, true>{&row, first, i, d, wide, own});
    for (unsigned j = 0; j < PIECE; j++) out[j] = own[0][j];
}

// Adds a row of `ape`, if there is one, to gates.
static DEVICE void add_row(const float* ape, unsigned row, unsigned i, unsigned d, float* gates) {
    for (unsigned j = 0; j < PIECE; j++) gates[j] += i + j < d ? ape[size_t(row) * d + i + j] : 0.0f;
}

KERNEL(pool_keys)(const unsigned* keys, const float* ape, const unsigned* batch, float* y, unsigned max_tokens, unsigned max_seqs,
    unsigned max_blocks, unsigned n_rows, unsigned d, unsigned pool, unsigned words, unsigned wide, unsigned k_format) {
    const Batch facts{batch, max_tokens};
    const unsigned t = block_index().x;
    if (t >= real_tokens(batch, n_rows)) return;
    const unsigned end = facts.pos(t) + 1;
    const bool whole = end % pool == 0;
    const unsigned* blocks = facts.blocks(facts.seq(t), max_seqs, max_blocks);
    const Format format(k_format);
    for (unsigned i = PIECE * thread(); i < d; i += PIECE * block_size().x) {
        float most[PIECE], sum[PIECE], total[PIECE];
        for (unsigned c = 0; c < PIECE; c++) most[c] = LOW, sum[c] = 0.0f, total[c] = 0.0f;
        // The first round finds the largest gates, the second one adds up.
        for (unsigned round = ape ? 0 : 1; whole && round < 2; round++) {
            for (unsigned j = 0; j < pool; j++) {
                const unsigned pos = end - pool + j;
                const unsigned* row = keys + (size_t(blocks[pos / 32]) * 32 + pos % 32) * words;
                float gates[PIECE] = {};
                if (ape) {
                    load(format, row, d, i, d, wide, gates);
                    add_row(ape, j, i, d, gates);
                }
                if (round == 0) {
                    for (unsigned c = 0; c < PIECE; c++) most[c] = fmaxf(most[c], gates[c]);
                    continue;
                }
                float own[PIECE];
                load(format, row, 0, i, d, wide, own);
                for (unsigned c = 0; c < PIECE; c++) {
                    const float weight = ape ? expf(gates[c] - most[c]) : 1.0f;
                    sum[c] = fmaf(weight, own[c], sum[c]);
                    total[c] += weight;
                }
            }
        }
        for (unsigned c = 0; c < PIECE; c++) {
            if (i + c < d) y[size_t(t) * d + i + c] = whole ? sum[c] / total[c] : 0.0f;
        }
    }
}
EXPORT(pool_keys)

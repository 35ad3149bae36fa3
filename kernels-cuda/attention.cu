// Attention of a few tokens to all positions, or those of a window.
#include "lib/attention_few.cuh"

using namespace attention;

typedef cache::Choice<cache::FORMAT> Format;

struct Visible {
    unsigned window;

    DEVICE VisibleChunk operator()(const Batch& facts, unsigned t) const {
        const unsigned pos = facts.pos(t);
        VisibleChunk chunk;
        chunk.first = first_seen(pos, window);
        chunk.end = end_seen(facts, t, pos, window);
        return chunk;
    }
};

#define PARAMETERS \
    const float* q, const unsigned* k, const unsigned* v, const unsigned* batch, const float* slopes, float* all_parts, \
    unsigned max_tokens, unsigned max_seqs, unsigned max_blocks, unsigned n_rows, unsigned n_head, unsigned n_head_kv, unsigned d_head, \
    unsigned d_value, unsigned k_words, unsigned v_words, unsigned lanes_k, unsigned lanes_v, unsigned n_spans, \
    unsigned window, float scale, float softcap, unsigned wide, unsigned k_format, unsigned v_format
#define ARGUMENTS \
    Visible{window}, q, k, v, batch, slopes, all_parts, max_tokens, max_seqs, max_blocks, n_rows, n_head, n_head_kv, d_head, d_value, \
    k_words, v_words, lanes_k, lanes_v, n_spans, scale, softcap, wide, k_format, v_format

KERNEL(attention_1)(PARAMETERS) { attend<1, Format>(ARGUMENTS); }
EXPORT(attention_1)
KERNEL(attention_2)(PARAMETERS) { attend<2, Format>(ARGUMENTS); }
EXPORT(attention_2)
KERNEL(attention_4)(PARAMETERS) { attend<4, Format>(ARGUMENTS); }
EXPORT(attention_4)
KERNEL(attention_8)(PARAMETERS) { attend<8, Format>(ARGUMENTS); }
EXPORT(attention_8)
#undef PARAMETERS
#undef ARGUMENTS

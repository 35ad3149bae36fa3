// Attention of any number of tokens to a list of positions and cache rows (op::LightningIndexer, op::ListBlocks), a block per
// token.
// Heads share keys, many of them: there is one kernel for all numbers of heads.
#include "lib/attention_few.cuh"

using namespace attention;

typedef cache::Choice<cache::FORMAT> Format;

struct Selected {
    const unsigned* list;
    unsigned n_listed;

    DEVICE SelectedChunk operator()(const Batch&, unsigned t) const {
        SelectedChunk chunk;
        chunk.list = list + size_t(t) * n_listed;
        chunk.first = 0;
        chunk.end = n_selected(chunk.list, n_listed);
        return chunk;
    }
};

KERNEL(attention_selected)(const float* q, const unsigned* k, const unsigned* v, const unsigned* batch, const unsigned* selected,
    float* all_parts, unsigned max_tokens, unsigned max_seqs, unsigned max_blocks, unsigned n_rows, unsigned n_head, unsigned n_head_kv,
    unsigned d_head, unsigned d_value, unsigned k_words, unsigned v_words, unsigned lanes_k, unsigned lanes_v, unsigned n_spans,
    unsigned n_listed, float scale, float softcap, unsigned wide, unsigned k_format, unsigned v_format) {
    attend<8, Format>(Selected{selected, n_listed}, q, k, v, batch, nullptr, all_parts, max_tokens, max_seqs, max_blocks, n_rows, n_head,
        n_head_kv, d_head, d_value, k_words, v_words, lanes_k, lanes_v, n_spans, scale, softcap, wide, k_format, v_format);
}
EXPORT(attention_selected)

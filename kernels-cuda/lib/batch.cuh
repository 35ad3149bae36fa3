#pragma once
// The batch (`hal::BatchShape`): the step's tokens with sequence, position and cache row, its
// outputs, and the block tables.
#include "dialect.h"

struct Batch {
    const unsigned* words;
    unsigned max_tokens;

    DEVICE unsigned tokens() const { return words[0]; }
    DEVICE unsigned seqs() const { return words[1]; }
    DEVICE unsigned outputs() const { return words[2]; }
    DEVICE unsigned id(unsigned t) const { return words[4 + t]; }
    DEVICE unsigned seq(unsigned t) const { return words[4 + max_tokens + t]; }
    DEVICE unsigned pos(unsigned t) const { return words[4 + 2 * max_tokens + t]; }
    DEVICE unsigned kv_row(unsigned t) const { return words[4 + 3 * max_tokens + t]; }
    DEVICE unsigned output(unsigned i) const { return words[4 + 4 * max_tokens + i]; }

    /// Number of positions of a token's sequence after the step.
    DEVICE unsigned len(unsigned t) const { return words[4 + 5 * size_t(max_tokens) + seq(t)]; }
    /// The blocks of a sequence's cache, of 32 rows each.
    DEVICE const unsigned* blocks(unsigned seq, unsigned max_seqs, unsigned max_blocks) const {
        return words + 4 + 5 * size_t(max_tokens) + max_seqs + size_t(seq) * max_blocks;
    }
};

/// Number of rows of a program that are real tokens.
DEVICE unsigned real_tokens(const unsigned* batch, unsigned n_rows) { return batch[0] < n_rows ? batch[0] : n_rows; }

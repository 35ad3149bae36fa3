// Code shared by down_many.cu and down_plain.cu: a block of 256 threads computes a tile of 128 columns
// and 64 tokens, 16 rows at a time. With experts, it reads the rows of an expert for the tokens that use
// it (`experts.cu`).
#pragma once
#include "formats/format.cuh"

struct DownWork {
    const unsigned *down, *tables;
    Side side;
    const float* h;
    float* partial;
    // `slot` is the slot of the first row, for separate scale tables. h has `h_cols` values per row,
    // and a row per token or per pair.
    unsigned slot, row_words, n_out, h_cols;
    // Begin and end of the rows; the first row of h and of the sums, and the column of h for row
    // `begin`.
    unsigned begin, end, h_first;
    size_t h_row, sums_row;
    // First token of the tile; number of all tokens.
    unsigned first_token, n;
};

template <class F>
static DEVICE float4 down_four(const unsigned* row, unsigned slot, unsigned n_out, unsigned q, const unsigned* tables,
                               const Side& side) {
    if constexpr (F::TRANSPOSED) {
        return F::four(row, slot, q, side);
    } else {
        return F::four(row, n_out, q, tables);
    }
}

// A thread's loads of 16 rows: four columns of row `thread() / 32` and of the row 8 further on, and the
// values of row `thread() % 16` for four tokens: `thread() / 16` and the tokens 16, 32 and 48 further on.
template <class W>
struct DownValues {
    float4 fours[2];
    float values[4];

    DEVICE void load(const DownWork& work, unsigned base) {
        const unsigned t = thread();
#pragma unroll
        for (unsigned k = 0; k < 2; k++) {
            const unsigned row = base + 8 * k + t / 32, q = 32 * block_index().x + t % 32;
            fours[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row < work.end && 4 * q < work.n_out) {
                const unsigned* from = work.down + (size_t)row * work.row_words;
                fours[k] = down_four<W>(from, work.slot + row, work.n_out, q, work.tables, work.side);
            }
        }
#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            const unsigned token = work.first_token + 16 * k + t / 16, row = base + t % 16;
            const bool counts = token < work.n && row < work.end;
            values[k] = counts ? work.h[(work.h_row + token) * work.h_cols + row - work.h_first] : 0.0f;
        }
    }
};

DEVICE void write_down(const DownWork& work, unsigned token, unsigned column, float sum) {
    if (token >= work.n || column >= work.n_out) return;
    work.partial[(work.sums_row + token) * work.n_out + column] = sum;
}

// The loads of the next rows are in flight while the current rows are multiplied.
template <class W, class Tile>
DEVICE void multiply_down(const DownWork& work, Tile tile) {
    DownValues<W> next;
    next.load(work, work.begin);
    for (unsigned base = work.begin; base < work.end; base += 16) {
        tile.store(next);
        barrier();
        if (base + 16 < work.end) next.load(work, base + 16);
        tile.multiply();
        barrier();
    }
    tile.write(work);
}

// With experts, selects the rows and pairs of the block's expert.
DEVICE void take_group(DownWork& work, const unsigned* pairs, const unsigned* group_rows) {
    const unsigned z = block_index().z;
    work.begin = work.h_first = group_rows[2 * z];
    work.end = group_rows[2 * z + 1];
    work.n = pairs[z + 1] - pairs[z];
    work.h_row = work.sums_row = pairs[z];
}

// Defines a kernel that computes tiles with `TILE<W>`, for the format `W`. Without experts (0), a block
// has a slice of all rows; with experts, `group_rows` holds their begin and end, and sums are by pair.
#define DOWN_KERNEL(name, TILE)                                                                                           \
    KERNEL_OF(256, 2, name)(const unsigned* down, const unsigned* tables, const unsigned* groups, const unsigned* scales, \
                            const unsigned* mins, const float* h, const unsigned* pairs, const unsigned* group_rows,      \
                            float* partial, unsigned n_rows, unsigned slot, unsigned row_words, unsigned n_out,           \
                            unsigned n_tokens, unsigned slice, unsigned h_cols, unsigned n_group, unsigned side_words,    \
                            unsigned offset, unsigned wide) {                                                             \
        SHARED(float4, memory, TILE<W>::FOURS);                                                                           \
        const Side side = {groups, scales, mins, side_words, (int)offset, wide};                                          \
        const unsigned z = block_index().z, begin = z * slice, end = begin + slice < n_rows ? begin + slice : n_rows;     \
        const size_t sums_row = (size_t)z * n_tokens;                                                                     \
        DownWork work = {down, tables, side, h, partial, slot, row_words, n_out, h_cols, begin, end, 0, 0, sums_row,      \
                         64 * block_index().y, n_tokens};                                                                 \
        if (n_group != 0) take_group(work, pairs, group_rows);                                                            \
        if (work.first_token < work.n) multiply_down<W>(work, TILE<W>{memory, {}});                                       \
    }                                                                                                                     \
    EXPORT(name)

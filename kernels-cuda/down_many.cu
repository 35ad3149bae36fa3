// Part sums of y[t] = sum over rows r of h[t, r] * down[r], for many tokens: a tile of 128 columns and 64 tokens to a block
// of 256, 4 columns of 8 tokens to a thread, 16 rows at a time. With groups, the rows of a group for the tokens that use it
// (`experts.cu`).

#include "dialect.h"
#include "formats/format.cuh"

typedef FORMAT W;

template <class F>
static DEVICE float4 down_four(const unsigned* row, unsigned slot, unsigned n_out, unsigned q, const unsigned* tables,
                               const Side& side) {
    if constexpr (F::TRANSPOSED) {
        return F::four(row, slot, q, side);
    } else {
        return F::four(row, n_out, q, tables);
    }
}

// `slot` is the first row's, where scales lie apart. Rows `h_cols` apart, of tokens or of pairs. Without groups (0), slices
// of all rows; with them, `group_rows` has where the rows of each begin and end, and sums are by pair.
KERNEL(down_many)(const unsigned* down, const unsigned* tables, const unsigned* groups, const unsigned* scales,
                  const unsigned* mins, const float* h, const unsigned* pairs, const unsigned* group_rows, float* partial,
                  unsigned n_rows, unsigned slot, unsigned row_words, unsigned n_out, unsigned n_tokens, unsigned slice,
                  unsigned h_cols, unsigned n_group, unsigned side_words, unsigned offset, unsigned wide) {
    // Four columns of 16 rows, and 16 rows of 64 tokens, 4 floats between them so that writers meet different banks.
    constexpr unsigned VALUES = 17;
    SHARED(float4, fours, 512);
    SHARED(float4, values, 16 * VALUES);
    const Side side = {groups, scales, mins, side_words, (int)offset, wide};
    const unsigned t = thread(), z = block_index().z;
    unsigned begin = z * slice, end = begin + slice < n_rows ? begin + slice : n_rows, n = n_tokens;
    // The first row of h and of the sums, and its first column.
    size_t h_row = 0, sums_row = (size_t)z * n_tokens;
    unsigned h_first = 0;
    if (n_group != 0) {
        begin = group_rows[2 * z];
        end = group_rows[2 * z + 1];
        n = pairs[z + 1] - pairs[z];
        h_row = sums_row = pairs[z];
        h_first = begin;
    }
    const unsigned first_token = 64 * block_index().y;
    if (first_token >= n) return;

    const unsigned tx = t % 32, ty = t / 32;
    float sums[8][4] = {};
    // What comes next is on its way while what is there is multiplied.
    float4 next_fours[2];
    float next_values[4];
    const auto load = [&](unsigned base) {
#pragma unroll
        for (unsigned k = 0; k < 2; k++) {
            const unsigned row = base + 8 * k + ty, q = 32 * block_index().x + tx;
            next_fours[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row < end && 4 * q < n_out) {
                next_fours[k] = down_four<W>(down + (size_t)row * row_words, slot + row, n_out, q, tables, side);
            }
        }
#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            const unsigned token = first_token + 16 * k + t / 16, row = base + t % 16;
            next_values[k] = token < n && row < end ? h[(h_row + token) * h_cols + row - h_first] : 0.0f;
        }
    };
    load(begin);
    for (unsigned base = begin; base < end; base += 16) {
        float* value = reinterpret_cast<float*>(values);
#pragma unroll
        for (unsigned k = 0; k < 2; k++) fours[32 * (8 * k + ty) + tx] = next_fours[k];
#pragma unroll
        for (unsigned k = 0; k < 4; k++) value[4 * VALUES * (t % 16) + 16 * k + t / 16] = next_values[k];
        barrier();
        if (base + 16 < end) load(base + 16);
#pragma unroll 4
        for (unsigned r = 0; r < 16; r++) {
            const float4 w = fours[32 * r + tx];
            const float4 low = values[VALUES * r + 2 * ty], high = values[VALUES * r + 2 * ty + 1];
            const float by[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (unsigned j = 0; j < 8; j++) {
                sums[j][0] = fmaf(by[j], w.x, sums[j][0]);
                sums[j][1] = fmaf(by[j], w.y, sums[j][1]);
                sums[j][2] = fmaf(by[j], w.z, sums[j][2]);
                sums[j][3] = fmaf(by[j], w.w, sums[j][3]);
            }
        }
        barrier();
    }
#pragma unroll
    for (unsigned j = 0; j < 8; j++) {
        const unsigned token = first_token + 8 * ty + j;
        if (token >= n) continue;
#pragma unroll
        for (unsigned c = 0; c < 4; c++) {
            const unsigned column = 128 * block_index().x + 4 * tx + c;
            if (column < n_out) partial[(sums_row + token) * n_out + column] = sums[j][c];
        }
    }
}
EXPORT(down_many)

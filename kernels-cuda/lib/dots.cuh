// Products of rows of a weight with few tokens, by lanes that share the rows.
//
// A lane takes every `lanes`-th unit of a row: a block of 32 values, or 16 bytes of floats. `lanes` follows from the
// columns alone (`Weight::lanes`), and a lane adds its units in order; so a product has the same bits whichever rows and
// tokens are taken together.
#pragma once
#include "formats/format.cuh"

// Tokens in Q8 blocks or as floats, by the words of them.
struct Rows {
    const unsigned* at;
    // From one token to the next; a multiple of 4 where the columns are.
    unsigned words;
    // Behind the last token, that one again.
    unsigned n;

    DEVICE const unsigned* token(unsigned t) const { return at + (size_t)(t < n ? t : n - 1) * words; }
};

template <class W, unsigned R, unsigned T, unsigned U>
DEVICE void block_dots(float (&sums)[R][T], const unsigned* const (&rows)[R], unsigned n_cols, unsigned lane,
                       unsigned lanes, const Rows& x, const unsigned* tables) {
    const unsigned nb = n_cols >> 5;
    for (unsigned first = lane; first < nb; first += U * lanes) {
        typename W::Raw raw[R][U];
#pragma unroll
        for (unsigned u = 0; u < U; u++) {
            const unsigned b = first + u * lanes;
            if (u > 0 && b >= nb) continue;
#pragma unroll
            for (unsigned r = 0; r < R; r++) raw[r][u] = W::load(rows[r], nb, b);
        }
#pragma unroll
        for (unsigned u = 0; u < U; u++) {
            const unsigned b = first + u * lanes;
            if (u > 0 && b >= nb) continue;
            Codes codes[R];
            Scales scales[R];
#pragma unroll
            for (unsigned r = 0; r < R; r++) {
                codes[r] = W::unpack(raw[r][u], b, tables);
                scales[r] = W::steps(raw[r][u], b);
            }
#pragma unroll
            for (unsigned t = 0; t < T; t++) {
                const Q8Block block = load_q8(x.token(t), b);
#pragma unroll
                for (unsigned r = 0; r < R; r++) sums[r][t] = W::dot(sums[r][t], codes[r], scales[r], block);
            }
        }
    }
}

template <class W, unsigned R, unsigned T, unsigned U>
DEVICE void float_dots(float (&sums)[R][T], const unsigned* const (&rows)[R], unsigned n_cols, unsigned lane,
                       unsigned lanes, const Rows& x) {
    constexpr unsigned PER = W::PER;
    const unsigned n_units = (n_cols + PER - 1) / PER;
    if (n_cols % PER != 0) {
        for (unsigned i = lane; i < n_units; i += lanes) {
            const unsigned end = n_cols - PER * i < PER ? n_cols - PER * i : PER;
            for (unsigned j = 0; j < end; j++) {
                const unsigned k = PER * i + j;
#pragma unroll
                for (unsigned r = 0; r < R; r++) {
                    const float value = W::one(rows[r], n_cols, k);
#pragma unroll
                    for (unsigned t = 0; t < T; t++) sums[r][t] = fmaf(value, from_bits(x.token(t)[k]), sums[r][t]);
                }
            }
        }
        return;
    }
    for (unsigned first = lane; first < n_units; first += U * lanes) {
        uint4 raw[R][U];
#pragma unroll
        for (unsigned u = 0; u < U; u++) {
            const unsigned i = first + u * lanes;
            if (u > 0 && i >= n_units) continue;
#pragma unroll
            for (unsigned r = 0; r < R; r++) raw[r][u] = load_four(rows[r] + 4 * i);
        }
#pragma unroll
        for (unsigned u = 0; u < U; u++) {
            const unsigned i = first + u * lanes;
            if (u > 0 && i >= n_units) continue;
#pragma unroll
            for (unsigned t = 0; t < T; t++) {
                const float4* from = reinterpret_cast<const float4*>(x.token(t) + PER * i);
                float values[PER];
#pragma unroll
                for (unsigned q = 0; q < PER / 4; q++) {
                    const float4 four = from[q];
                    values[4 * q] = four.x;
                    values[4 * q + 1] = four.y;
                    values[4 * q + 2] = four.z;
                    values[4 * q + 3] = four.w;
                }
#pragma unroll
                for (unsigned r = 0; r < R; r++) {
                    float row[PER];
                    W::unpack(raw[r][u], row);
#pragma unroll
                    for (unsigned j = 0; j < PER; j++) sums[r][t] = fmaf(row[j], values[j], sums[r][t]);
                }
            }
        }
    }
}

// This lane's share of the products of R rows with T tokens, added to `sums`. x in Q8 blocks for weights of blocks, else
// as floats. U units of each row are on their way at once.
template <class W, unsigned R, unsigned T, unsigned U = (R * T <= 2 ? 4 / R : 1)>
DEVICE void row_dots(float (&sums)[R][T], const unsigned* const (&rows)[R], unsigned n_cols, unsigned lane,
                     unsigned lanes, const Rows& x, const unsigned* tables) {
    if constexpr (W::FLOAT) {
        float_dots<W, R, T, U>(sums, rows, n_cols, lane, lanes, x);
    } else {
        block_dots<W, R, T, U>(sums, rows, n_cols, lane, lanes, x, tables);
    }
}

// This lane's share of the product of one row with one token.
template <class W>
DEVICE float row_dot(const unsigned* row, unsigned n_cols, unsigned lane, unsigned lanes, const unsigned* x,
                     const unsigned* tables) {
    float sums[1][1] = {{0.0f}};
    const unsigned* const rows[1] = {row};
    row_dots<W, 1, 1>(sums, rows, n_cols, lane, lanes, Rows{x, 0, 1}, tables);
    return sums[0][0];
}

// The sum over the `lanes` neighbours that share a row, the same for all of them and always in the same order. All
// threads of a wave come here together.
DEVICE float lanes_sum(float mine, unsigned lanes) {
    for (unsigned by = 1; by < lanes; by <<= 1) mine += shfl_xor(mine, by);
    return mine;
}

// Products of rows of a weight with a few tokens, by lanes that share the rows.
//
// A lane processes every `lanes`-th unit of a row: a block of 32 values, or 16 bytes of floats.
// `lanes` depends on the columns alone (`Weight::lanes`), and a lane adds its units in order, so
// the bits of a product do not depend on the rows and tokens that are processed together.
#pragma once
#include "formats/format.cuh"

// Activations of the tokens, in Q8 blocks or floats, as words.
struct Rows {
    const unsigned* at;
    // Words from one token to the next; a multiple of 4 if the number of columns is.
    unsigned words;
    // Number of tokens; missing tokens repeat the last one.
    unsigned n;

    DEVICE const unsigned* token(unsigned t) const { return at + (size_t)(t < n ? t : n - 1) * words; }
};

// Loads N values of x from an aligned address; N is a multiple of four.
template <unsigned N>
DEVICE void load_floats(float (&values)[N], const unsigned* at) {
#pragma unroll
    for (unsigned q = 0; q < N / 4; q++) {
        const float4 four = reinterpret_cast<const float4*>(at)[q];
        values[4 * q] = four.x;
        values[4 * q + 1] = four.y;
        values[4 * q + 2] = four.z;
        values[4 * q + 3] = four.w;
    }
}

// Loads and accumulates blocks.
template <class W>
struct BlockUnits {
    typedef typename W::Raw Raw;

    static DEVICE unsigned count(unsigned n_cols) { return n_cols >> 5; }
    static DEVICE Raw load(const unsigned* row, unsigned n, unsigned i) { return W::load(row, n, i); }

    template <unsigned R, unsigned T, unsigned U>
    static DEVICE void add(float (&sums)[R][T], const Raw (&raw)[R][U], unsigned u, unsigned i, const Rows& x,
                           const unsigned* tables) {
        Codes codes[R];
        Scales scales[R];
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            codes[r] = W::unpack(raw[r][u], i, tables);
            scales[r] = W::steps(raw[r][u], i);
        }
#pragma unroll
        for (unsigned t = 0; t < T; t++) {
            const Q8Block block = load_q8(x.token(t), i);
#pragma unroll
            for (unsigned r = 0; r < R; r++) sums[r][t] = W::dot(sums[r][t], codes[r], scales[r], block);
        }
    }
};

// Loads and accumulates 16 bytes of floats.
template <class W>
struct FloatUnits {
    typedef uint4 Raw;
    static constexpr unsigned PER = W::PER;

    static DEVICE unsigned count(unsigned n_cols) { return n_cols / PER; }
    static DEVICE Raw load(const unsigned* row, unsigned, unsigned i) { return load_four(row + 4 * i); }

    template <unsigned R, unsigned T, unsigned U>
    static DEVICE void add(float (&sums)[R][T], const Raw (&raw)[R][U], unsigned u, unsigned i, const Rows& x,
                           const unsigned*) {
#pragma unroll
        for (unsigned t = 0; t < T; t++) {
            float values[PER];
            load_floats(values, x.token(t) + PER * i);
#pragma unroll
            for (unsigned r = 0; r < R; r++) {
                float row[PER];
                W::unpack(raw[r][u], row);
#pragma unroll
                for (unsigned j = 0; j < PER; j++) sums[r][t] = fmaf(row[j], values[j], sums[r][t]);
            }
        }
    }
};

template <class W, bool FLOAT>
struct UnitsOf {
    typedef BlockUnits<W> Type;
};
template <class W>
struct UnitsOf<W, true> {
    typedef FloatUnits<W> Type;
};
template <class W>
using Units = typename UnitsOf<W, W::FLOAT>::Type;

// Whether rows consist of whole units.
template <class W>
DEVICE bool has_whole_units(unsigned n_cols) {
    if constexpr (W::FLOAT) return n_cols % W::PER == 0;
    return true;
}

// Processes all units, U of them at a time. Each load has its own bounds check, because NVIDIA's
// assembler moves an unconditional load down to its use, which leaves fewer loads in flight. The sums
// have a check per unit or, with TOGETHER (for one token), a single check; then x is loaded before all
// sums, which costs registers.
template <class W, unsigned R, unsigned T, unsigned U, bool TOGETHER>
DEVICE void add_units(float (&sums)[R][T], const unsigned* const (&rows)[R], unsigned n_cols, unsigned lane,
                      unsigned lanes, const Rows& x, const unsigned* tables) {
    constexpr bool ONCE = TOGETHER && T == 1 && U > 1;
    constexpr unsigned REST = ONCE ? U - 1 : U;
    const unsigned n = Units<W>::count(n_cols);
    for (unsigned first = lane; first < n; first += U * lanes) {
        typename Units<W>::Raw raw[R][U];
#pragma unroll
        for (unsigned u = 0; u < U; u++) {
            const unsigned i = first + u * lanes;
            if (u > 0 && i >= n) continue;
#pragma unroll
            for (unsigned r = 0; r < R; r++) raw[r][u] = Units<W>::load(rows[r], n, i);
        }
        if (ONCE && first + (U - 1) * lanes < n) {
#pragma unroll
            for (unsigned u = 0; u < U; u++) Units<W>::template add<R, T, U>(sums, raw, u, first + u * lanes, x, tables);
        } else {
#pragma unroll
            for (unsigned u = 0; u < REST; u++) {
                const unsigned i = first + u * lanes;
                if (u == 0 || i < n) Units<W>::template add<R, T, U>(sums, raw, u, i, x, tables);
            }
        }
    }
}

// Rows of floats whose length is not a multiple of 16 bytes.
template <class W, unsigned R, unsigned T>
DEVICE void odd_float_dots(float (&sums)[R][T], const unsigned* const (&rows)[R], unsigned n_cols, unsigned lane,
                           unsigned lanes, const Rows& x) {
    constexpr unsigned PER = W::PER;
    for (unsigned i = lane; i < (n_cols + PER - 1) / PER; i += lanes) {
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
}

// Adds this lane's units of the products of R rows with T tokens to `sums`. x has Q8 blocks for block
// formats, and floats otherwise. U units of each row are in flight at once.
template <class W, unsigned R, unsigned T, unsigned U = (R * T <= 2 ? 4 / R : 1), bool TOGETHER = true>
DEVICE void row_dots(float (&sums)[R][T], const unsigned* const (&rows)[R], unsigned n_cols, unsigned lane,
                     unsigned lanes, const Rows& x, const unsigned* tables) {
    if (has_whole_units<W>(n_cols)) {
        add_units<W, R, T, U, TOGETHER>(sums, rows, n_cols, lane, lanes, x, tables);
    } else if constexpr (W::FLOAT) {
        odd_float_dots<W, R, T>(sums, rows, n_cols, lane, lanes, x);
    }
}

// The sum of this lane's units of the product of one row with one token.
template <class W>
DEVICE float row_dot(const unsigned* row, unsigned n_cols, unsigned lane, unsigned lanes, const unsigned* x,
                     const unsigned* tables) {
    float sums[1][1] = {{0.0f}};
    const unsigned* const rows[1] = {row};
    row_dots<W, 1, 1>(sums, rows, n_cols, lane, lanes, Rows{x, 0, 1}, tables);
    return sums[0][0];
}

// The sum over the `lanes` neighbours that share a row; each gets the same sum, added in a fixed
// order. Called by all threads of a warp.
DEVICE float lanes_sum(float mine, unsigned lanes) {
    for (unsigned by = 1; by < lanes; by <<= 1) mine += shfl_xor(mine, by);
    return mine;
}

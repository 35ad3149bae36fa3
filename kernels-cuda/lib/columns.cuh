#pragma once
// Rows of a down matrix times neuron values; a thread has eight columns.
//
// A row reader is a struct with `Unit`, a thread's columns of a row; `load`; and `Sums`, the sums of one
// token, to which rows are added. In a transposed matrix, the rows of a run share a scale for each
// column, which is applied at the end of the run; other formats have no runs.

#include "formats/format.cuh"

// Code k of four as a float, minus the offset. `base` is CODE_BASE plus the offset, which avoids
// slow conversions of integers.
constexpr int CODE_BASE = 8388608 + 128;
DEVICE float code_of(unsigned codes, unsigned k, float base) {
    return from_bits(0x4b000000u | byte_of(codes ^ 0x80808080u, k)) - base;
}

template <class F>
struct FloatColumns {
    struct Unit {
        float v[8];
    };

    static DEVICE Unit load(const unsigned* row, unsigned n_out, unsigned unit, const unsigned*) {
        Unit x;
        if (n_out % 8 != 0) {
#pragma unroll
            for (unsigned k = 0; k < 8; k++) x.v[k] = F::one(row, n_out, 8 * unit + k);
            return x;
        }
        constexpr unsigned LOADS = 8 / F::PER;
#pragma unroll
        for (unsigned i = 0; i < LOADS; i++) {
            float v[F::PER];
            F::unpack(load_four(row + 4 * (LOADS * unit + i)), v);
#pragma unroll
            for (unsigned k = 0; k < F::PER; k++) x.v[F::PER * i + k] = v[k];
        }
        return x;
    }

    struct Sums {
        float v[8];

        DEVICE void clear() {
#pragma unroll
            for (unsigned k = 0; k < 8; k++) v[k] = 0.0f;
        }
        DEVICE void add(float h, const Unit& x, const Side&) {
#pragma unroll
            for (unsigned k = 0; k < 8; k++) v[k] = fmaf(h, x.v[k], v[k]);
        }
        DEVICE float sum(unsigned k) const { return v[k]; }
    };

    // The first column of a half of a unit.
    static DEVICE unsigned column(unsigned unit, unsigned half) { return 8 * unit + 4 * half; }
    static DEVICE unsigned n_units(unsigned n_out) { return (n_out + 7) / 8; }
};

// Reads blocks of 32 values: a thread has four columns of each half of a block.
template <class F>
struct BlockColumns {
    struct Unit {
        unsigned codes[2];
        Scales s;
    };

    static DEVICE Unit load(const unsigned* row, unsigned n_out, unsigned unit, const unsigned* tables) {
        const unsigned nb = n_out >> 5, b = unit >> 2, g = unit & 3;
        return Unit{{F::quad(row, nb, b, g, tables), F::quad(row, nb, b, g + 4, tables)}, F::scales(row, nb, b)};
    }

    struct Sums {
        float v[8];
        float below[2];

        DEVICE void clear() {
#pragma unroll
            for (unsigned k = 0; k < 8; k++) v[k] = 0.0f;
            below[0] = below[1] = 0.0f;
        }
        DEVICE void add(float h, const Unit& x, const Side&) {
            const float base = (float)(CODE_BASE + F::OFFSET);
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                const float by = h * (half && !F::ONE ? x.s.d1 : x.s.d0);
#pragma unroll
                for (unsigned k = 0; k < 4; k++) {
                    v[4 * half + k] = fmaf(by, code_of(x.codes[half], k, base), v[4 * half + k]);
                }
                if (F::MINS && (half == 0 || !F::ONE)) below[half] = fmaf(h, half ? x.s.m1 : x.s.m0, below[half]);
            }
        }
        DEVICE float sum(unsigned k) const { return F::MINS ? v[k] - below[F::ONE ? 0 : k / 4] : v[k]; }
    };

    static DEVICE unsigned column(unsigned unit, unsigned half) { return 32 * (unit >> 2) + 4 * (unit & 3) + 16 * half; }
    static DEVICE unsigned n_units(unsigned n_out) { return (n_out + 31) / 32 * 4; }
};

// Reads a transposed matrix: codes by slot, and a scale for each column and group of slots.
template <class F>
struct TransposedColumns {
    struct Unit {
        unsigned codes[2];
    };

    static DEVICE Unit load(const unsigned* row, unsigned, unsigned unit, const unsigned*) {
        if constexpr (F::FOUR_BITS) {
            const unsigned both = load_one(row + unit);
            return Unit{{both & 0x0f0f0f0fu, (both >> 4) & 0x0f0f0f0fu}};
        } else {
            const unsigned* at = row + 8 * (unit >> 2) + (unit & 3);
            return Unit{{load_one(at), load_one(at + 4)}};
        }
    }

    struct Sums {
        float v[8];
        // Sums of this run: neuron values times codes, and neuron values.
        float run[8];
        float h_run;

        DEVICE void clear() {
#pragma unroll
            for (unsigned k = 0; k < 8; k++) v[k] = run[k] = 0.0f;
            h_run = 0.0f;
        }
        DEVICE void add(float h, const Unit& x, const Side& side) {
            const float base = (float)(CODE_BASE + side.offset);
#pragma unroll
            for (unsigned k = 0; k < 8; k++) run[k] = fmaf(h, code_of(x.codes[k / 4], k % 4, base), run[k]);
            h_run += h;
        }
        // Ends a run with these scales and minimums.
        DEVICE void close(const float (&d)[8], const float (&m)[8], bool mins) {
#pragma unroll
            for (unsigned k = 0; k < 8; k++) {
                v[k] = fmaf(d[k], run[k], v[k]);
                if (mins) v[k] = fmaf(-m[k], h_run, v[k]);
                run[k] = 0.0f;
            }
            h_run = 0.0f;
        }
        DEVICE float sum(unsigned k) const { return v[k]; }
    };

    static DEVICE unsigned column(unsigned unit, unsigned half) { return 32 * (unit >> 2) + 4 * (unit & 3) + 16 * half; }
    static DEVICE unsigned n_units(unsigned n_out) { return (n_out + 31) / 32 * 4; }

    // Words of a group's scales and minimums for a unit's columns, prefetched while its rows are
    // added.
    struct Steps {
        uint4 d[2], m[2];
    };

    static DEVICE uint4 words(const unsigned* table, const Side& side, unsigned group, unsigned first) {
        const unsigned* at = table + (size_t)group * side.row_words;
        if (side.wide != 0) return *reinterpret_cast<const uint4*>(at + first);
        const uint2 both = *reinterpret_cast<const uint2*>(at + first / 2);
        return make_uint4(both.x, both.y, 0, 0);
    }

    static DEVICE Steps steps(const Side& side, unsigned group, unsigned unit) {
        Steps s = {};
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            s.d[half] = words(side.scales, side, group, column(unit, half));
            if (side.mins != nullptr) s.m[half] = words(side.mins, side, group, column(unit, half));
        }
        return s;
    }

    static DEVICE void values(const uint4 (&words)[2], const Side& side, float (&out)[8]) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const uint4 w = words[half];
            const bool wide = side.wide != 0;
            out[4 * half] = wide ? from_bits(w.x) : half_of(w.x, 0);
            out[4 * half + 1] = wide ? from_bits(w.y) : half_of(w.x, 1);
            out[4 * half + 2] = wide ? from_bits(w.z) : half_of(w.y, 0);
            out[4 * half + 3] = wide ? from_bits(w.w) : half_of(w.y, 1);
        }
    }
};

template <class F, bool FLOAT, bool TRANSPOSED>
struct ColumnsOf {
    typedef BlockColumns<F> Type;
};
template <class F>
struct ColumnsOf<F, true, false> {
    typedef FloatColumns<F> Type;
};
template <class F>
struct ColumnsOf<F, false, true> {
    typedef TransposedColumns<F> Type;
};
template <class F>
using Columns = typename ColumnsOf<F, F::FLOAT, F::TRANSPOSED>::Type;

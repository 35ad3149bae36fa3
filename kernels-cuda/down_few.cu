// Partial sums of y[t] = sum over rows r of h[t, r] * down[r], for decode. A block of 256 threads
// processes a slice of rows and 512 columns: 64 threads process a quarter of the slice, with 8 columns
// per thread. The active rows of a quarter are listed first, in ascending order, so that no other row
// is read. Slices, quarters and runs of rows with the same scales depend on the matrix alone, so a
// token's result does not depend on the other tokens, bit for bit. With experts, each used expert is
// split into slices.

#include "dialect.h"
#include "lib/columns.cuh"
#include "lib/groups.cuh"

typedef FORMAT W;

// The active rows of a quarter; for each row, the number of its run, the group of its scales, and its
// neuron values.
template <unsigned TOKENS>
struct DownList {
    unsigned* rows;
    unsigned* runs;
    unsigned* groups;
    float* values;
    unsigned n;

    DEVICE bool ends_run(unsigned i) const { return i + 1 == n || runs[i + 1] != runs[i]; }
};

// A thread's view of a matrix.
struct DownMatrix {
    const unsigned* at;
    const unsigned* tables;
    Side side;
    unsigned row_words, n_out, unit;
};

// Adds the listed rows; several loads are in flight.
template <class F, unsigned TOKENS>
static DEVICE void down_add(typename Columns<F>::Sums (&sums)[TOKENS], const DownList<TOKENS>& list,
                            const DownMatrix& down) {
    // With one token there are enough registers for more loads, except for floats.
    constexpr unsigned U = TOKENS == 1 && !F::FLOAT ? 8 : 4;
    for (unsigned first = 0; first < list.n; first += U) {
        typename Columns<F>::Unit units[U];
#pragma unroll
        for (unsigned k = 0; k < U; k++) {
            if (k > 0 && first + k >= list.n) continue;
            const unsigned row = list.rows[first + k];
            units[k] = Columns<F>::load(down.at + (size_t)row * down.row_words, down.n_out, down.unit, down.tables);
        }
#pragma unroll
        for (unsigned k = 0; k < U; k++) {
            const unsigned i = first + k;
            if (i >= list.n) break;
#pragma unroll
            for (unsigned j = 0; j < TOKENS; j++) sums[j].add(list.values[TOKENS * i + j], units[k], down.side);
        }
    }
}

// Adds the listed rows of a transposed matrix, by runs of rows with the same scales.
template <class F, unsigned TOKENS>
static DEVICE void down_add_runs(typename TransposedColumns<F>::Sums (&sums)[TOKENS], const DownList<TOKENS>& list,
                                 const DownMatrix& down) {
    typedef TransposedColumns<F> C;
    // With one token there are enough registers for more loads, and for prefetching the scales of
    // a run.
    constexpr bool AHEAD = TOKENS == 1;
    constexpr unsigned U = AHEAD ? 8 : 2;
    typename C::Steps steps = {};
    if (AHEAD && list.n > 0) steps = C::steps(down.side, list.groups[0], down.unit);
    for (unsigned first = 0; first < list.n; first += U) {
        typename C::Unit units[U];
#pragma unroll
        for (unsigned k = 0; k < U; k++) {
            if (k > 0 && first + k >= list.n) continue;
            const unsigned row = list.rows[first + k];
            units[k] = C::load(down.at + (size_t)row * down.row_words, down.n_out, down.unit, nullptr);
        }
#pragma unroll
        for (unsigned k = 0; k < U; k++) {
            const unsigned i = first + k;
            if (i >= list.n) break;
#pragma unroll
            for (unsigned j = 0; j < TOKENS; j++) sums[j].add(list.values[TOKENS * i + j], units[k], down.side);
            if (!list.ends_run(i)) continue;
            if (!AHEAD) steps = C::steps(down.side, list.groups[i], down.unit);
            float d[8], m[8];
            C::values(steps.d, down.side, d);
            C::values(steps.m, down.side, m);
#pragma unroll
            for (unsigned j = 0; j < TOKENS; j++) sums[j].close(d, m, down.side.mins != nullptr);
            if (AHEAD && i + 1 < list.n) steps = C::steps(down.side, list.groups[i + 1], down.unit);
        }
    }
}

struct DownSlices {
    unsigned n_rows, slice;
    // Numbers of experts and of slices per expert; 0 without experts.
    unsigned n_group, each;
    const float* group_weight;
    const unsigned* starts;
};

// Begin and end of the rows of slice `s`.
static DEVICE uint2 rows_of_slice(const DownSlices& p, unsigned s, unsigned n_tokens) {
    if (p.n_group == 0) return make_uint2(s * p.slice, p.n_rows);
    SHARED(unsigned, used, MAX_LISTED_GROUPS);
    SHARED(unsigned, used_masks, 32);
    const unsigned n_used = list_used(p.n_group, used, used_masks, [&p, n_tokens](unsigned g) {
        return p.starts[g] < p.starts[g + 1] && is_used(p.group_weight, p.n_group, n_tokens, g);
    });
    if (s / p.each >= n_used) return make_uint2(0, 0);
    const unsigned g = used[s / p.each];
    return make_uint2(p.starts[g] + s % p.each * p.slice, p.starts[g + 1]);
}

template <class F, unsigned TOKENS>
static DEVICE void down_few_tokens(const DownMatrix& down, const DownSlices& slices, unsigned slot, const unsigned* h,
                                   float* partial, unsigned n_tokens) {
    SHARED(unsigned, masks, 8);
    SHARED(unsigned, breaks, 8);
    SHARED(unsigned, rows, 256);
    SHARED(unsigned, runs, 256);
    SHARED(unsigned, groups, 256);
    SHARED(float, values, 256 * TOKENS);
    SHARED(float4, halves, 512);
    const unsigned t = thread(), part = t / 64, u = t % 64;
    const unsigned token = TOKENS * block_index().z, quarter = slices.slice / 4;
    const uint2 range = rows_of_slice(slices, block_index().y, n_tokens);
    const unsigned begin = range.x + part * quarter;
    typename Columns<F>::Sums sums[TOKENS];
#pragma unroll
    for (unsigned j = 0; j < TOKENS; j++) sums[j].clear();

    for (unsigned base = 0; base < quarter; base += 64) {
        const unsigned row = begin + base + u;
        const bool inside = base + u < quarter && row < range.y;
        bool counts = false;
        float mine[TOKENS];
#pragma unroll
        for (unsigned j = 0; j < TOKENS; j++) {
            const unsigned word = inside && token + j < n_tokens ? h[(size_t)(token + j) * slices.n_rows + row] : 0u;
            mine[j] = from_bits(word);
            // A value counts unless it is 0 or DROPPED, which is -0.
            counts = counts || (word << 1) != 0;
        }
        bool breaks_run = false;
        unsigned group = 0;
        if constexpr (F::TRANSPOSED) {
            if (inside) group = down.side.groups[slot + row];
            breaks_run = inside && u > 0 && down.side.groups[slot + row - 1] != group;
        }
        const unsigned long long counting = ballot(counts), breaking = ballot(breaks_run);
        if (lane() % 32 == 0) {
            masks[t / 32] = (unsigned)(counting >> (lane() & 32u));
            breaks[t / 32] = (unsigned)(breaking >> (lane() & 32u));
        }
        barrier();
        const unsigned below = (1u << (t % 32)) - 1u, upper = (t / 32) % 2;
        const unsigned first_mask = masks[2 * part], second_mask = masks[2 * part + 1];
        if (counts) {
            const unsigned at = 64 * part + popc((upper ? second_mask : first_mask) & below) + (upper ? popc(first_mask) : 0u);
            rows[at] = row;
            groups[at] = group;
            runs[at] = popc(breaks[t / 32] & (below | (1u << (t % 32)))) + (upper ? popc(breaks[2 * part]) : 0u);
#pragma unroll
            for (unsigned j = 0; j < TOKENS; j++) values[TOKENS * at + j] = mine[j];
        }
        barrier();
        const DownList<TOKENS> list = {rows + 64 * part, runs + 64 * part, groups + 64 * part,
                                       values + 64 * part * TOKENS, popc(first_mask) + popc(second_mask)};
        if (down.unit < Columns<F>::n_units(down.n_out)) {
            if constexpr (F::TRANSPOSED) {
                down_add_runs<F, TOKENS>(sums, list, down);
            } else {
                down_add<F, TOKENS>(sums, list, down);
            }
        }
    }
    // Adds up the quarters' sums in order.
    for (unsigned j = 0; j < TOKENS; j++) {
        barrier();
        halves[t] = make_float4(sums[j].sum(0), sums[j].sum(1), sums[j].sum(2), sums[j].sum(3));
        halves[256 + t] = make_float4(sums[j].sum(4), sums[j].sum(5), sums[j].sum(6), sums[j].sum(7));
        barrier();
        const unsigned column = Columns<F>::column(down.unit, t / 64);
        if (t >= 128 || token + j >= n_tokens) continue;
        float4 sum = halves[256 * (t / 64) + u];
        for (unsigned k = 1; k < 4; k++) {
            const float4 more = halves[256 * (t / 64) + 64 * k + u];
            sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
        }
        float* to = partial + ((size_t)block_index().y * n_tokens + token + j) * down.n_out;
        if (column < down.n_out) to[column] = sum.x;
        if (column + 1 < down.n_out) to[column + 1] = sum.y;
        if (column + 2 < down.n_out) to[column + 2] = sum.z;
        if (column + 3 < down.n_out) to[column + 3] = sum.w;
    }
}

// `slot` is the slot of the first row, for the scale tables of a transposed matrix.
KERNEL(down_one)(const unsigned* down, const unsigned* tables, const unsigned* groups, const unsigned* scales,
                 const unsigned* mins, const unsigned* h, const float* group_weight, const unsigned* starts, float* partial,
                 unsigned n_rows, unsigned slot, unsigned row_words, unsigned n_out, unsigned n_tokens, unsigned slice,
                 unsigned n_group, unsigned each, unsigned side_words, unsigned offset, unsigned wide) {
    const Side side = {groups, scales, mins, side_words, (int)offset, wide};
    const DownMatrix matrix = {down, tables, side, row_words, n_out, 64 * block_index().x + thread() % 64};
    const DownSlices slices = {n_rows, slice, n_group, each, group_weight, starts};
    down_few_tokens<W, 1>(matrix, slices, slot, h, partial, n_tokens);
}
EXPORT(down_one)

KERNEL(down_few)(const unsigned* down, const unsigned* tables, const unsigned* groups, const unsigned* scales,
                 const unsigned* mins, const unsigned* h, const float* group_weight, const unsigned* starts, float* partial,
                 unsigned n_rows, unsigned slot, unsigned row_words, unsigned n_out, unsigned n_tokens, unsigned slice,
                 unsigned n_group, unsigned each, unsigned side_words, unsigned offset, unsigned wide) {
    const Side side = {groups, scales, mins, side_words, (int)offset, wide};
    const DownMatrix matrix = {down, tables, side, row_words, n_out, 64 * block_index().x + thread() % 64};
    const DownSlices slices = {n_rows, slice, n_group, each, group_weight, starts};
    down_few_tokens<W, 4>(matrix, slices, slot, h, partial, n_tokens);
}
EXPORT(down_few)

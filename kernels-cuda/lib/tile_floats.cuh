// A tile of products of float weights with float activations: 64 * V rows by 64 tokens, 4 * V by 4
// per thread, 16 columns at a time.
#pragma once
#include "lib/tile.cuh"

// A thread's loads of 16 columns: four columns of V rows, and of a token.
template <class W, unsigned V>
struct FloatValues {
    float4 rows[V];
    float4 token;

    DEVICE void load(const Product& p, const Part& part, unsigned first_row, unsigned first_token, unsigned stage) {
        const unsigned q = 4 * stage + thread() % 4;
#pragma unroll
        for (unsigned i = 0; i < V; i++) {
            const unsigned row = first_row + thread() / 4 + 64 * i;
            const unsigned last = part.end - 1;
            rows[i] = W::four(p.weight + (size_t)(row < last ? row : last) * p.row_words, p.n_cols, q, nullptr);
        }
        const unsigned t = first_token + thread() / 4;
        float x[4] = {};
        if (t < part.n_tokens) {
            const float* from = reinterpret_cast<const float*>(p.x) + (size_t)part.x_row(t) * p.n_cols;
            if (p.n_cols % 4 != 0) {
#pragma unroll
                for (unsigned c = 0; c < 4; c++) {
                    if (4 * q + c < p.n_cols) x[c] = from[4 * q + c];
                }
            } else if (4 * q < p.n_cols) {
                const float4 four = reinterpret_cast<const float4*>(from)[q];
                x[0] = four.x;
                x[1] = four.y;
                x[2] = four.z;
                x[3] = four.w;
            }
        }
        token = make_float4(x[0], x[1], x[2], x[3]);
    }
};

template <class W, unsigned V>
struct FloatTile {
    static constexpr unsigned ROWS = 64 * V;
    static constexpr unsigned TOKENS = TILE_TOKENS;
    static constexpr unsigned COLUMNS = 16;
    // Floats per column, including four of padding, which avoids bank conflicts between
    // neighbours.
    static constexpr unsigned ROW_STRIDE = ROWS + 4;
    static constexpr unsigned TOKEN_STRIDE = TOKENS + 4;
    static constexpr unsigned STAGE = COLUMNS * (ROW_STRIDE + TOKEN_STRIDE);
    typedef FloatValues<W, V> Values;

    float* columns;
    float sums[V][4][4];

    DEVICE float* row_columns(unsigned stage) { return columns + (stage & 1) * STAGE; }
    DEVICE float* token_columns(unsigned stage) { return row_columns(stage) + COLUMNS * ROW_STRIDE; }

    static DEVICE void put(float* to, unsigned stride, float4 four) {
        to[0] = four.x;
        to[stride] = four.y;
        to[2 * stride] = four.z;
        to[3 * stride] = four.w;
    }

    DEVICE void store(unsigned stage, const Values& values) {
        const unsigned first = 4 * (thread() % 4);
#pragma unroll
        for (unsigned i = 0; i < V; i++) {
            put(row_columns(stage) + first * ROW_STRIDE + thread() / 4 + 64 * i, ROW_STRIDE, values.rows[i]);
        }
        put(token_columns(stage) + first * TOKEN_STRIDE + thread() / 4, TOKEN_STRIDE, values.token);
    }

    DEVICE void multiply(unsigned stage) {
        const float* left = row_columns(stage) + 4 * (thread() % 16);
        const float* right = token_columns(stage) + 4 * (thread() / 16);
#pragma unroll 4
        for (unsigned k = 0; k < COLUMNS; k++) {
            const float4 four = *reinterpret_cast<const float4*>(right + k * TOKEN_STRIDE);
            const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (unsigned v = 0; v < V; v++) {
                const float4 row = *reinterpret_cast<const float4*>(left + k * ROW_STRIDE + 64 * v);
                const float w[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
                for (unsigned i = 0; i < 4; i++) {
#pragma unroll
                    for (unsigned j = 0; j < 4; j++) sums[v][i][j] = fmaf(w[i], x[j], sums[v][i][j]);
                }
            }
        }
    }

    static DEVICE void run(const Product& p, const Part& part) {
        const unsigned rows = part.begin + ROWS * block_index().x;
        const unsigned tokens = TOKENS * block_index().y;
        if (rows >= part.end || tokens >= part.n_tokens) return;
        SHARED(float4, shared_columns, 2 * STAGE / 4);
        FloatTile tile = {reinterpret_cast<float*>(shared_columns), {}};
        const unsigned n_stages = (p.n_cols + COLUMNS - 1) / COLUMNS;
        Values values;
        values.load(p, part, rows, tokens, 0);
        tile.store(0, values);
        barrier();
        for (unsigned stage = 0; stage < n_stages; stage++) {
            const bool more = stage + 1 < n_stages;
            if (more) values.load(p, part, rows, tokens, stage + 1);
            tile.multiply(stage);
            if (more) tile.store(stage + 1, values);
            barrier();
        }
#pragma unroll
        for (unsigned v = 0; v < V; v++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
#pragma unroll
                for (unsigned j = 0; j < 4; j++) {
                    const unsigned row = rows + 64 * v + 4 * (thread() % 16) + i;
                    write_product(p, part, row, tokens + 4 * (thread() / 16) + j, tile.sums[v][i][j]);
                }
            }
        }
    }
};

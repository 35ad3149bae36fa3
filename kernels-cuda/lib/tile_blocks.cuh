// A tile of products of quantised weights with activations in Q8 blocks, K blocks of columns at a
// time. Codes are in shared memory as signed bytes with the offset subtracted, so that one sum of
// 32 products is one matrix instruction.
//
// While one stage is multiplied, the loads of the next stage are in flight. tile_dots.cuh or
// tile_matrix.cuh multiplies a stage.
#pragma once
#include "lib/tile.cuh"

// Layout of shared memory: N rows of the weight and the tokens, N_BLOCKS blocks of columns at once.
template <class W, unsigned N, unsigned N_BLOCKS>
struct BlockStages {
    static constexpr unsigned ROWS = N, TOKENS = TILE_TOKENS, K = N_BLOCKS;
    // Words in a row of codes, including four of padding, which avoids bank conflicts between
    // neighbouring rows.
    static constexpr unsigned STRIDE = 8 * K + 4;
    static constexpr unsigned N_CODES = (ROWS + TOKENS) * STRIDE;
    // Factors of a block of columns: scales and minimums of each row; d and sums of each token.
    static constexpr unsigned HALVES = W::ONE ? 1 : 2;
    static constexpr unsigned ROW_FACTS = W::MINS ? 2 * HALVES : HALVES;
    static constexpr unsigned TOKEN_FACTS = W::MINS ? 1 + HALVES : 1;
    static constexpr unsigned FACTS = ROW_FACTS * ROWS + TOKEN_FACTS * TOKENS;
    static constexpr unsigned N_FACTS = K * FACTS;
    // Loads per thread and stage.
    static constexpr unsigned ROW_LOADS = (ROWS * K + TILE_THREADS - 1) / TILE_THREADS;
    static constexpr unsigned TOKEN_WORDS = 3 * TOKENS * K;
    static constexpr unsigned TOKEN_LOADS = (TOKEN_WORDS + TILE_THREADS - 1) / TILE_THREADS;

    struct Words {
        typename W::Raw rows[ROW_LOADS];
        uint4 tokens[TOKEN_LOADS];
    };

    unsigned* codes;
    float* facts;

    DEVICE float* row_facts(unsigned stage, unsigned k) const { return facts + (stage & 1) * N_FACTS + k * FACTS; }
    DEVICE float* token_facts(unsigned stage, unsigned k) const { return row_facts(stage, k) + ROW_FACTS * ROWS; }
    DEVICE unsigned* row_codes(unsigned stage) const { return codes + (stage & 1) * N_CODES; }
    DEVICE unsigned* token_codes(unsigned stage) const { return row_codes(stage) + ROWS * STRIDE; }

    // Four codes, each in its byte, minus the offset.
    static DEVICE unsigned centred(unsigned four) {
        if constexpr (W::OFFSET == 0) return four;
        return ((four | 0x80808080u) - (unsigned)W::OFFSET * 0x01010101u) ^ 0x80808080u;
    }

    DEVICE void load(const Product& p, const Part& part, unsigned rows, unsigned tokens, unsigned stage, Words& words) {
        const unsigned nb = p.n_cols >> 5;
#pragma unroll
        for (unsigned i = 0; i < ROW_LOADS; i++) {
            const unsigned at = thread() + i * TILE_THREADS;
            const unsigned row = rows + at / K;
            const unsigned b = stage * K + at % K;
            if (at < ROWS * K && row < part.end && b < nb) {
                words.rows[i] = W::load(p.weight + (size_t)row * p.row_words, nb, b);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < TOKEN_LOADS; i++) {
            const unsigned at = thread() + i * TILE_THREADS;
            const unsigned token = tokens + at / (3 * K);
            const unsigned b = stage * K + at % (3 * K) / 3;
            words.tokens[i] = make_uint4(0, 0, 0, 0);
            if (at < TOKEN_WORDS && token < part.n_tokens && b < nb) {
                const uint4* from = reinterpret_cast<const uint4*>(p.x);
                words.tokens[i] = from[((size_t)part.x_row(token) * nb + b) * 3 + at % 3];
            }
        }
    }

    DEVICE void store(const Product& p, const Part& part, unsigned rows, unsigned stage, const Words& words) {
        const unsigned nb = p.n_cols >> 5;
#pragma unroll
        for (unsigned i = 0; i < ROW_LOADS; i++) {
            const unsigned at = thread() + i * TILE_THREADS;
            const unsigned row = at / K;
            const unsigned k = at % K;
            if (at >= ROWS * K) continue;
            Codes all = {};
            Scales scales = {};
            if (rows + row < part.end && stage * K + k < nb) {
                all = W::unpack(words.rows[i], stage * K + k, p.tables);
                scales = W::steps(words.rows[i], stage * K + k);
#pragma unroll
                for (unsigned g = 0; g < 8; g++) all.q[g] = centred(all.q[g]);
            }
            uint4* to = reinterpret_cast<uint4*>(row_codes(stage) + row * STRIDE + 8 * k);
            to[0] = make_uint4(all.q[0], all.q[1], all.q[2], all.q[3]);
            to[1] = make_uint4(all.q[4], all.q[5], all.q[6], all.q[7]);
            float* fact = row_facts(stage, k) + row;
            fact[0] = scales.d0;
            if constexpr (HALVES == 2) fact[ROWS] = scales.d1;
            if constexpr (W::MINS) fact[HALVES * ROWS] = scales.m0;
            if constexpr (W::MINS && HALVES == 2) fact[3 * ROWS] = scales.m1;
        }
#pragma unroll
        for (unsigned i = 0; i < TOKEN_LOADS; i++) {
            const unsigned at = thread() + i * TILE_THREADS;
            const unsigned token = at / (3 * K);
            const unsigned k = at % (3 * K) / 3;
            if (at >= TOKEN_WORDS) continue;
            const uint4 four = words.tokens[i];
            if (at % 3 < 2) {
                *reinterpret_cast<uint4*>(token_codes(stage) + token * STRIDE + 8 * k + 4 * (at % 3)) = four;
                continue;
            }
            float* fact = token_facts(stage, k) + token;
            fact[0] = from_bits(four.x);
            if constexpr (W::MINS && HALVES == 1) fact[TOKENS] = (float)((int)four.y + (int)four.z);
            if constexpr (W::MINS && HALVES == 2) {
                fact[TOKENS] = (float)(int)four.y;
                fact[2 * TOKENS] = (float)(int)four.z;
            }
        }
    }

    // `acc` plus the products of a block, from the sums of both halves; with one scale per block,
    // `first` is the whole sum.
    static DEVICE float scaled(float acc, float first, float second, const float* row, const float* token) {
        float product;
        if constexpr (HALVES == 1) {
            product = row[0] * first;
            if constexpr (W::MINS) product = fmaf(-row[1], token[1], product);
        } else {
            product = fmaf(row[0], first, row[1] * second);
            if constexpr (W::MINS) product = fmaf(-row[2], token[1], fmaf(-row[3], token[2], product));
        }
        return fmaf(token[0], product, acc);
    }

    static DEVICE void take(float (&facts_of_one)[4], const float* from, unsigned n, unsigned step) {
#pragma unroll
        for (unsigned f = 0; f < 4; f++) facts_of_one[f] = f < n ? from[f * step] : 0.0f;
    }
};

// Computes a tile: `Products` multiplies the contents of `Stages`.
template <class Stages, class Products>
DEVICE void multiply_blocks(const Product& p, const Part& part) {
    const unsigned rows = part.begin + Stages::ROWS * block_index().x;
    const unsigned tokens = Stages::TOKENS * block_index().y;
    if (rows >= part.end || tokens >= part.n_tokens) return;
    SHARED(uint4, shared_codes, 2 * Stages::N_CODES / 4);
    SHARED(float, shared_facts, 2 * Stages::N_FACTS);
    Stages stages = {reinterpret_cast<unsigned*>(shared_codes), shared_facts};
    Products products = {};
    const unsigned n_stages = ((p.n_cols >> 5) + Stages::K - 1) / Stages::K;
    typename Stages::Words words;
    stages.load(p, part, rows, tokens, 0, words);
    stages.store(p, part, rows, 0, words);
    barrier();
#pragma unroll 1
    for (unsigned stage = 0; stage < n_stages; stage++) {
        const bool more = stage + 1 < n_stages;
        if (more) stages.load(p, part, rows, tokens, stage + 1, words);
        products.multiply(stages, stage);
        if (more) stages.store(p, part, rows, stage + 1, words);
        barrier();
    }
    products.write(p, part, rows, tokens);
}

// A tile of products of quantised weights with activations in Q8 blocks, K blocks of columns at a time. Codes lie in shared
// memory as signed bytes, the offset taken off, so that one sum of 32 products is one step of a matrix unit.
//
// The tile has 16 * WM * FM rows and 8 * WN * FN tokens: WM by WN groups of 32 threads with FM by FN small products each.
// While one stage is multiplied the words of the next are on their way.
#pragma once
#include "lib/tile.cuh"

template <class W, unsigned WM, unsigned WN, unsigned FM, unsigned FN, unsigned K>
struct BlockTile {
    static constexpr unsigned ROWS = 16 * WM * FM;
    static constexpr unsigned TOKENS = 8 * WN * FN;
    // Words of a row of codes: four more than there are, so that neighbouring rows lie in other banks.
    static constexpr unsigned STRIDE = 8 * K + 4;
    static constexpr unsigned N_CODES = (ROWS + TOKENS) * STRIDE;
    // Facts of a block of columns: scales, minimums of each row; d, sums of each token.
    static constexpr unsigned HALVES = W::ONE ? 1 : 2;
    static constexpr unsigned ROW_FACTS = W::MINS ? 2 * HALVES : HALVES;
    static constexpr unsigned TOKEN_FACTS = W::MINS ? 1 + HALVES : 1;
    static constexpr unsigned FACTS = ROW_FACTS * ROWS + TOKEN_FACTS * TOKENS;
    static constexpr unsigned N_FACTS = K * FACTS;
    // Loads of each thread for a stage.
    static constexpr unsigned ROW_LOADS = (ROWS * K + TILE_THREADS - 1) / TILE_THREADS;
    static constexpr unsigned TOKEN_WORDS = 3 * TOKENS * K;
    static constexpr unsigned TOKEN_LOADS = (TOKEN_WORDS + TILE_THREADS - 1) / TILE_THREADS;
    static_assert(TOKENS == TILE_TOKENS && 32 * WM * WN == TILE_THREADS, "the grid counts on it");

    struct Words {
        typename W::Raw rows[ROW_LOADS];
        uint4 tokens[TOKEN_LOADS];
    };

    unsigned* codes;
    float* facts;
    float sums[ROWS * TOKENS / TILE_THREADS];

    DEVICE float* row_facts(unsigned stage, unsigned k) { return facts + (stage & 1) * N_FACTS + k * FACTS; }
    DEVICE float* token_facts(unsigned stage, unsigned k) { return row_facts(stage, k) + ROW_FACTS * ROWS; }
    DEVICE unsigned* row_codes(unsigned stage) { return codes + (stage & 1) * N_CODES; }
    DEVICE unsigned* token_codes(unsigned stage) { return row_codes(stage) + ROWS * STRIDE; }

    // Four codes less the offset, each in its byte.
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

    // `acc` and the products of a block from the sums of both halves, or of all in the first.
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

#if HAS_MMA
    // Sums begin at this number: as bits of a float they are 1.5 * 2^23 and the sum, which saves a conversion.
    static constexpr int BASE = 0x4b400000;

    static DEVICE float small(int sum) { return from_bits((unsigned)sum) - 12582912.0f; }

    DEVICE unsigned first_row() const { return thread() / 32 % WM * FM * 16 + thread() % 32 / 4; }
    DEVICE unsigned first_token() const { return thread() / 32 / WM * FN * 8; }

    DEVICE void multiply(unsigned stage) {
        const unsigned inner = thread() % 4;
        const unsigned* left = row_codes(stage) + first_row() * STRIDE + inner;
        const unsigned* right = token_codes(stage) + (first_token() + thread() % 32 / 4) * STRIDE + inner;
#pragma unroll 1
        for (unsigned k = 0; k < K; k++) {
            unsigned a[FM][4];
            float row[FM][2][4];
#pragma unroll
            for (unsigned i = 0; i < FM; i++) {
                const unsigned* from = left + 16 * i * STRIDE + 8 * k;
                a[i][0] = from[0];
                a[i][1] = from[8 * STRIDE];
                a[i][2] = from[4];
                a[i][3] = from[8 * STRIDE + 4];
                const float* fact = row_facts(stage, k) + first_row() + 16 * i;
                take(row[i][0], fact, ROW_FACTS, ROWS);
                take(row[i][1], fact + 8, ROW_FACTS, ROWS);
            }
#pragma unroll
            for (unsigned j = 0; j < FN; j++) {
                const unsigned* from = right + 8 * j * STRIDE + 8 * k;
                const unsigned b[2] = {from[0], from[4]};
                const float* fact = token_facts(stage, k) + first_token() + 8 * j + 2 * inner;
                float token[2][4];
                take(token[0], fact, TOKEN_FACTS, TOKENS);
                take(token[1], fact + 1, TOKEN_FACTS, TOKENS);
#pragma unroll
                for (unsigned i = 0; i < FM; i++) {
                    int first[4] = {BASE, BASE, BASE, BASE};
                    int second[4] = {BASE, BASE, BASE, BASE};
                    if constexpr (HALVES == 1) {
                        mma_s8(first, a[i], b);
                    } else {
                        const unsigned lower[2] = {b[0], 0};
                        const unsigned upper[2] = {0, b[1]};
                        mma_s8(first, a[i], lower);
                        mma_s8(second, a[i], upper);
                    }
#pragma unroll
                    for (unsigned e = 0; e < 4; e++) {
                        float& sum = sums[4 * (FN * i + j) + e];
                        sum = scaled(sum, small(first[e]), small(second[e]), row[i][e / 2], token[e % 2]);
                    }
                }
            }
        }
    }

    DEVICE void write(const Product& p, const Part& part, unsigned rows, unsigned tokens) {
#pragma unroll
        for (unsigned i = 0; i < FM; i++) {
#pragma unroll
            for (unsigned j = 0; j < FN; j++) {
#pragma unroll
                for (unsigned e = 0; e < 4; e++) {
                    const unsigned row = rows + first_row() + 16 * i + 8 * (e / 2);
                    const unsigned token = tokens + first_token() + 8 * j + 2 * (thread() % 4) + e % 2;
                    write_product(p, part, row, token, sums[4 * (FN * i + j) + e]);
                }
            }
        }
    }
#else
    // Rows and tokens of a thread are 16 apart.
    static constexpr unsigned R = ROWS / 16;
    static constexpr unsigned T = TOKENS / 16;

    DEVICE void multiply(unsigned stage) {
        const unsigned* left = row_codes(stage) + thread() % 16 * STRIDE;
        const unsigned* right = token_codes(stage) + thread() / 16 * STRIDE;
#pragma unroll 1
        for (unsigned k = 0; k < K; k++) {
            uint4 lo[T], hi[T];
            float token[T][4];
#pragma unroll
            for (unsigned j = 0; j < T; j++) {
                const uint4* from = reinterpret_cast<const uint4*>(right + 16 * j * STRIDE + 8 * k);
                lo[j] = from[0];
                hi[j] = from[1];
                take(token[j], token_facts(stage, k) + thread() / 16 + 16 * j, TOKEN_FACTS, TOKENS);
            }
#pragma unroll
            for (unsigned i = 0; i < R; i++) {
                const uint4* from = reinterpret_cast<const uint4*>(left + 16 * i * STRIDE + 8 * k);
                const uint4 a = from[0];
                const uint4 b = from[1];
                float row[4];
                take(row, row_facts(stage, k) + thread() % 16 + 16 * i, ROW_FACTS, ROWS);
#pragma unroll
                for (unsigned j = 0; j < T; j++) {
                    int first = dot4((int)a.x, (int)lo[j].x, 0);
                    first = dot4((int)a.y, (int)lo[j].y, first);
                    first = dot4((int)a.z, (int)lo[j].z, first);
                    first = dot4((int)a.w, (int)lo[j].w, first);
                    int second = dot4((int)b.x, (int)hi[j].x, HALVES == 1 ? first : 0);
                    second = dot4((int)b.y, (int)hi[j].y, second);
                    second = dot4((int)b.z, (int)hi[j].z, second);
                    second = dot4((int)b.w, (int)hi[j].w, second);
                    float& sum = sums[T * i + j];
                    sum = scaled(sum, (float)(HALVES == 1 ? second : first), (float)second, row, token[j]);
                }
            }
        }
    }

    DEVICE void write(const Product& p, const Part& part, unsigned rows, unsigned tokens) {
#pragma unroll
        for (unsigned i = 0; i < R; i++) {
#pragma unroll
            for (unsigned j = 0; j < T; j++) {
                const unsigned row = rows + thread() % 16 + 16 * i;
                write_product(p, part, row, tokens + thread() / 16 + 16 * j, sums[T * i + j]);
            }
        }
    }
#endif

    static DEVICE void run(const Product& p, const Part& part) {
        const unsigned rows = part.begin + ROWS * block_index().x;
        const unsigned tokens = TOKENS * block_index().y;
        if (rows >= part.end || tokens >= part.n_tokens) return;
        SHARED(uint4, shared_codes, 2 * N_CODES / 4);
        SHARED(float, shared_facts, 2 * N_FACTS);
        BlockTile tile = {reinterpret_cast<unsigned*>(shared_codes), shared_facts, {}};
        const unsigned n_stages = ((p.n_cols >> 5) + K - 1) / K;
        Words words;
        tile.load(p, part, rows, tokens, 0, words);
        tile.store(p, part, rows, 0, words);
        barrier();
#pragma unroll 1
        for (unsigned stage = 0; stage < n_stages; stage++) {
            const bool more = stage + 1 < n_stages;
            if (more) tile.load(p, part, rows, tokens, stage + 1, words);
            tile.multiply(stage);
            if (more) tile.store(p, part, rows, stage + 1, words);
            barrier();
        }
        tile.write(p, part, rows, tokens);
    }
};

// Scores of the blocks of positions that sparse attention chooses from (op::LightningIndexer): the
// weighted sum over the heads of the positive part of the products of the queries with the block's key,
// which is at its last position, or at the block's row of compressed keys. An invocation computes whole
// scores.

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read> k_data: {{k_type}};
@group(0) @binding(3) var<storage, read> batch: array<u32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;

struct Params {
    at_q: u32,
    at_weights: u32,
    at_k: u32,
    at_batch: u32,
    at_scores: u32,
    max_tokens: u32,
    max_seqs: u32,
    max_blocks: u32,
    n_rows: u32,
    first_token: u32,
    n_head: u32,
    d_head: u32,
    k_words: u32,
    // Blocks that a token selects, and positions of a block.
    top_k: u32,
    pool: u32,
    // Positions that share a row of compressed keys, up to those of a block of the cache; 1 for the row of a position.
    per_row: u32,
    // Blocks per row of scores.
    stride: u32,
    // Workgroups that share a token.
    n_shares: u32,
    has_weights: u32,
}
var<immediate> p: Params;

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

// Heads at once.
const HEADS: u32 = {{HEADS}}u;
// The most groups of eight values of a head.
const MAX_PIECES: u32 = 16u;

var<workgroup> queries: array<vec4<f32>, 2u * HEADS * MAX_PIECES>;
// Sequence of the token, and the number of blocks that it chooses from; 0 for padding, and for tokens
// that select all blocks.
var<workgroup> token_facts: vec2<u32>;

{{include k}}

fn cache_row(seq: u32, pos: u32) -> u32 {
    let tables = p.at_batch + 4u + 5u * p.max_tokens + p.max_seqs;
    return batch[tables + seq * p.max_blocks + pos / 32u] * 32u + pos % 32u;
}

// The positive part; a NaN stays one, also where comparisons with it are undefined.
fn positive(dot: f32) -> f32 {
    let word = bitcast<u32>(dot);
    return select(0.0, dot, word >> 31u == 0u || (word & 0x7fffffffu) > 0x7f800000u);
}

fn weight_of(token: u32, head: u32) -> f32 {
    if (p.has_weights == 0u) { return 1.0; }
    return weights[p.at_weights + token * p.n_head + head];
}

// Eight values of a query head, from `value` on; zeros past its end, and for missing heads.
fn load_query(token: u32, head: u32, value: u32) -> Eight {
    var own: Eight;
    if (head >= p.n_head) { return own; }
    let from_q = p.at_q + (token * p.n_head + head) * p.d_head + value;
    for (var i = 0u; i < 4u; i++) {
        if (value + i < p.d_head) { own.lo[i] = q[from_q + i]; }
        if (value + 4u + i < p.d_head) { own.hi[i] = q[from_q + 4u + i]; }
    }
    return own;
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let at = group.x + group.y * groups.x;
    let row = at / p.n_shares;
    let token = p.first_token + row;
    if (t == 0u) {
        var found = vec2<u32>(0u);
        if (token < min(batch[p.at_batch], p.n_rows)) {
            let n_seen = batch[p.at_batch + 4u + 2u * p.max_tokens + token] + 1u;
            let n_blocks = n_seen / p.pool;
            found = vec2<u32>(batch[p.at_batch + 4u + p.max_tokens + token], select(0u, n_blocks, n_blocks > p.top_k));
        }
        token_facts = found;
    }
    let known = workgroupUniformLoad(&token_facts);
    let n_pieces = (p.d_head + 7u) / 8u;
    for (var first = at % p.n_shares * {{ROW}}u; first < known.y; first += p.n_shares * {{ROW}}u) {
        let block = first + t;
        // Blocks past the end read the last one.
        let pos = min(block, known.y - 1u) * p.pool + p.pool - 1u;
        let from_k = p.at_k + cache_row(known.x, pos) / p.per_row * p.k_words;
        var score = 0.0;
        for (var head = 0u; head < p.n_head; head += HEADS) {
            for (var i = t; i < HEADS * n_pieces; i += {{ROW}}u) {
                let own = load_query(token, head + i / n_pieces, 8u * (i % n_pieces));
                queries[2u * i] = own.lo;
                queries[2u * i + 1u] = own.hi;
            }
            workgroupBarrier();
            // Indexed by constants, so that it stays in registers.
            var dots = array<f32, {{HEADS}}>();
            for (var piece = 0u; piece < n_pieces; piece++) {
                let key = k_eight(from_k, 0u, 8u * piece, p.d_head);
                {{repeat i in HEADS}}
                {
                    let own = 2u * ({{i}}u * n_pieces + piece);
                    dots[{{i}}] += dot(key.lo, queries[own]) + dot(key.hi, queries[own + 1u]);
                }
                {{end}}
            }
            {{repeat i in HEADS}}
            if (head + {{i}}u < p.n_head) {
                score += weight_of(token, head + {{i}}u) * positive(dots[{{i}}]);
            }
            {{end}}
            workgroupBarrier();
        }
        if (block < known.y) { scores[p.at_scores + row * p.stride + block] = score; }
    }
}

// Attention of a tile of queries that share keys and values, over one span of positions: HEADS heads
// of TOKENS tokens. A span is every n-th chunk of 64 positions. The workgroup runs an online softmax over
// the chunks and writes the largest score, the sum of weights and the weighted values of the span.
// Source: Flash attention (Dao et al.), split over positions as in Flash-Decoding.
//
// In sparse attention, TOKENS is 1 and positions are places in the token's list of positions.
//
// p.lanes invocations share a key, eight values each; p.value_lanes share a value. Each has four rows
// of the cache, all in flight at once or one after the other.

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k_data: {{k_type}};
@group(0) @binding(2) var<storage, read> v_data: {{v_type}};
@group(0) @binding(3) var<storage, read> batch: array<u32>;
// The slopes of the heads, or the positions of each token.
@group(0) @binding(4) var<storage, read> extras: array<u32>;
@group(0) @binding(5) var<storage, read_write> parts: array<f32>;

struct Params {
    at_q: u32,
    at_k: u32,
    at_v: u32,
    at_batch: u32,
    at_extras: u32,
    at_parts: u32,
    max_tokens: u32,
    max_seqs: u32,
    max_blocks: u32,
    n_rows: u32,
    n_head: u32,
    n_head_kv: u32,
    // Tiles of HEADS heads for the heads that share a key head, and of value columns.
    n_tiles: u32,
    n_col_tiles: u32,
    // Powers of two.
    lanes: u32,
    value_lanes: u32,
    d_head: u32,
    d_value: u32,
    k_words: u32,
    v_words: u32,
    n_spans: u32,
    // 0 for all positions up to the token's; with the highest bit, the length of chunks; with the next
    // one, the most positions before or after the token's; otherwise the length of a sliding window. In
    // sparse attention, the number of entries of a token's list.
    window: u32,
    has_slopes: u32,
    scale: f32,
    softcap: f32,
}
var<immediate> p: Params;

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

const CHUNK: u32 = 64u;
// Four positions are loaded at once.
const QUADS: u32 = CHUNK / 4u;
const HEADS: u32 = {{HEADS}}u;
const TOKENS: u32 = {{TOKENS}}u;
const QUERIES: u32 = HEADS * TOKENS;
// The most groups of eight values of a key head.
const MAX_PIECES: u32 = {{MAX_PIECES}}u;
const LOW: f32 = -3.0e38;

var<workgroup> queries: array<vec4<f32>, 2u * QUERIES * MAX_PIECES>;
// Products, then scores, then weights of each query.
var<workgroup> scores: array<f32, QUERIES * CHUNK>;
// The largest score, and the sum of weights, of each four positions.
var<workgroup> maxima: array<f32, QUERIES * QUADS>;
var<workgroup> weights: array<f32, QUERIES * QUADS>;
// The largest score so far, before and after a chunk in turn; the sum of weights so far; and the
// factor that the sums before a chunk get.
var<workgroup> largest: array<f32, 2u * QUERIES>;
var<workgroup> totals: array<f32, QUERIES>;
var<workgroup> factors: array<f32, QUERIES>;
// Sequence, first position, end and own position of each token; end 0 for padding.
var<workgroup> tokens: array<vec4<u32>, TOKENS>;
// Sequence, first position and end of the tokens that are processed together.
var<workgroup> range: vec4<u32>;
var<workgroup> exchange: array<vec4<f32>, 2 * {{ROW}}>;

{{include tanh}}
{{include k}}
{{include v}}
{{include window}}
{{include rows}}

fn value_of(t: u32) -> u32 { return 2u * (t & 1u) + ((t >> 1u) & 1u); }

{{include sum_two}}

fn cache_row(seq: u32, pos: u32) -> u32 {
    let tables = p.at_batch + 4u + 5u * p.max_tokens + p.max_seqs;
    return batch[tables + seq * p.max_blocks + pos / 32u] * 32u + pos % 32u;
}

// The positions of the tokens of token `lead`'s sequence; none if an earlier token has the same.
fn range_of(lead: u32) -> vec4<u32> {
    let own = tokens[lead];
    var found = vec4<u32>(own.x, own.y, own.z, 0u);
    for (var j = 0u; j < TOKENS; j++) {
        let other = tokens[j];
        if (other.z != 0u && other.x == own.x) {
            if (j < lead) { return vec4<u32>(0u); }
            found.y = min(found.y, other.y);
            found.z = max(found.z, other.z);
        }
    }
    return found;
}

// The score of a query for a position of sequence `seq`; LOW if it does not attend to it.
fn score_of(product: f32, query: u32, head: u32, seq: u32, pos: u32) -> f32 {
    let own = tokens[query / HEADS];
    if (own.x != seq || pos < own.y || pos >= own.z) { return LOW; }
    var score = p.scale * product;
    if (p.softcap != 0.0) { score = p.softcap * tanh_of(score / p.softcap); }
    if (p.has_slopes != 0u) {
        let at = min(head + query % HEADS, p.n_head - 1u);
        score -= bitcast<f32>(extras[p.at_extras + at]) * abs(f32(own.w) - f32(pos));
    }
    return score;
}

fn four(at: u32) -> vec4<f32> { return vec4<f32>(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]); }

// Converts the products of the chunk at `start` to scores and these to weights, four positions per
// invocation.
fn weigh(t: u32, turn: u32, head: u32, seq: u32, start: u32) {
    for (var i = t; i < QUERIES * QUADS; i += {{ROW}}u) {
        var most = LOW;
        for (var j = 0u; j < 4u; j++) {
            let score = score_of(scores[4u * i + j], i / QUADS, head, seq, start + 4u * (i % QUADS) + j);
            scores[4u * i + j] = score;
            most = max(most, score);
        }
        maxima[i] = most;
    }
    workgroupBarrier();
    for (var i = t; i < QUERIES * QUADS; i += {{ROW}}u) {
        let query = i / QUADS;
        let before = largest[turn * QUERIES + query];
        var most = before;
        for (var j = 0u; j < QUADS; j++) { most = max(most, maxima[query * QUADS + j]); }
        let own = four(4u * i);
        let weight = select(exp(own - vec4<f32>(most)), vec4<f32>(0.0), own <= vec4<f32>(LOW));
        scores[4u * i] = weight.x;
        scores[4u * i + 1u] = weight.y;
        scores[4u * i + 2u] = weight.z;
        scores[4u * i + 3u] = weight.w;
        weights[i] = (weight.x + weight.y) + (weight.z + weight.w);
        if (i % QUADS == 0u) {
            factors[query] = exp(before - most);
            largest[(1u - turn) * QUERIES + query] = most;
        }
    }
    workgroupBarrier();
    if (t < QUERIES) {
        var total = totals[t] * factors[t];
        for (var j = 0u; j < QUADS; j++) { total += weights[t * QUADS + j]; }
        totals[t] = total;
    }
}

// Groups of eight values of a key head.
fn n_pieces() -> u32 { return (p.d_head + 7u) / 8u; }

fn load_queries(t: u32, first_token: u32, head: u32, n_heads: u32) {
    let n_fours = 2u * n_pieces();
    for (var i = t; i < QUERIES * n_fours; i += {{ROW}}u) {
        let query = i / n_fours;
        let token = min(first_token + query / HEADS, p.n_rows - 1u);
        let from_q = p.at_q + (token * p.n_head + head + min(query % HEADS, n_heads - 1u)) * p.d_head;
        var own = vec4<f32>(0.0);
        for (var j = 0u; j < 4u; j++) {
            let value = 4u * (i % n_fours) + j;
            if (value < p.d_head) { own[j] = q[from_q + value]; }
        }
        queries[i] = own;
    }
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    var at = group.x + group.y * groups.x;
    let span = at % p.n_spans;
    at /= p.n_spans;
    let first_col = at % p.n_col_tiles * 8u * p.value_lanes;
    at /= p.n_col_tiles;
    let tile = at % p.n_tiles;
    at /= p.n_tiles;
    let g = at % p.n_head_kv;
    let first_token = at / p.n_head_kv * TOKENS;
    let per_group = p.n_head / p.n_head_kv;
    let n_heads = min(HEADS, per_group - tile * HEADS);
    let head = g * per_group + tile * HEADS;
    if (t < TOKENS) {
        var found = vec4<u32>(0u);
        let token = first_token + t;
        if (token < min(batch[p.at_batch], p.n_rows)) {
            let pos = batch[p.at_batch + 4u + 2u * p.max_tokens + token];
            let seq = batch[p.at_batch + 4u + p.max_tokens + token];
            found = vec4<u32>(seq, first_seen(pos, p.window), end_seen(token, pos, p.window), pos);
        }
        tokens[t] = found;
    }
    if (t < QUERIES) {
        largest[t] = LOW;
        totals[t] = 0.0;
    }
    load_queries(t, first_token, head, n_heads);
    workgroupBarrier();
    {{repeat i in QUERIES}}
    var low_{{i}} = vec4<f32>(0.0);
    var high_{{i}} = vec4<f32>(0.0);
    {{end}}
    let near = t % p.lanes;
    let first_quad = t / p.lanes;
    let quad_step = {{ROW}}u / p.lanes;
    let col = first_col + 8u * (t % p.value_lanes);
    let first_value_quad = t / p.value_lanes;
    let value_quad_step = {{ROW}}u / p.value_lanes;
    let pieces = n_pieces();
    var turn = 0u;
    var worked = false;
    for (var lead = 0u; lead < TOKENS; lead++) {
        if (t == 0u) { range = range_of(lead); }
        let known = workgroupUniformLoad(&range);
        let seq = known.x;
        let first = known.y;
        let end = known.z;
        // Chunks are dealt to the spans round robin.
        let chunk = first / CHUNK;
        let begin = (chunk + (span + p.n_spans - chunk % p.n_spans) % p.n_spans) * CHUNK;
        for (var start = begin; start < end; start += p.n_spans * CHUNK) {
            worked = true;
            let last = min(end, start + CHUNK) - 1u;
            for (var base = 0u; base < QUADS; base += quad_step) {
                let quad = base + first_quad;
                let pos = start + 4u * quad;
                // Indexed by constants, so that it stays in registers.
                var dots = array<vec4<f32>, 2 * {{PAIRS}}>();
                if (quad < QUADS && pos <= last && pos + 4u > first) {
                    // Positions that no token attends to read a neighbour.
                    let rows = vec4<u32>(p.at_k) + rows_of(seq, first_token, pos, first, last) * p.k_words;
                    {{include add_keys}}
                }
                {{repeat i in PAIRS}}
                {
                    let products = sum_two(dots[2 * {{i}}], dots[2 * {{i}} + 1], t);
                    if (near < 4u && quad < QUADS) {
                        let at = 2u * {{i}}u * CHUNK + 4u * quad + value_of(t);
                        scores[at] = products.x;
                        if (QUERIES > 1u) { scores[at + CHUNK] = products.y; }
                    }
                }
                {{end}}
            }
            workgroupBarrier();
            weigh(t, turn, head, seq, start);
            turn = 1u - turn;
            {{repeat i in QUERIES}}
            low_{{i}} *= factors[{{i}}];
            high_{{i}} *= factors[{{i}}];
            {{end}}
            for (var quad = first_value_quad; quad < QUADS; quad += value_quad_step) {
                let pos = start + 4u * quad;
                if (pos > last || pos + 4u <= first || col >= p.d_value) { continue; }
                let rows = vec4<u32>(p.at_v) + rows_of(seq, first_token, pos, first, last) * p.v_words;
                {{include add_values}}
            }
            workgroupBarrier();
        }
    }
    if (!worked) { return; }
    // Adds up, in order, the sums of all invocations that have the same columns.
    for (var query = 0u; query < QUERIES; query++) {
        var low = vec4<f32>(0.0);
        var high = vec4<f32>(0.0);
        {{repeat i in QUERIES}}
        if (query == {{i}}u) {
            low = low_{{i}};
            high = high_{{i}};
        }
        {{end}}
        exchange[2u * t] = low;
        exchange[2u * t + 1u] = high;
        workgroupBarrier();
        write_sums(query, t, turn, vec4<u32>(first_token, head, n_heads, span), first_col);
        workgroupBarrier();
    }
}

// Writes the results of a query, whose head and token `at` locates: first token, first head, number of
// heads, span.
fn write_sums(query: u32, t: u32, turn: u32, at: vec4<u32>, first_col: u32) {
    let token = at.x + query / HEADS;
    if (query % HEADS >= at.z || tokens[query / HEADS].z == 0u) { return; }
    let to = p.at_parts + ((token * p.n_head + at.y + query % HEADS) * p.n_spans + at.w) * (p.d_value + 2u);
    if (t == 0u && first_col == 0u) {
        parts[to] = largest[turn * QUERIES + query];
        parts[to + 1u] = totals[query];
    }
    for (var i = t; i < 8u * p.value_lanes; i += {{ROW}}u) {
        if (first_col + i >= p.d_value) { break; }
        var sum = 0.0;
        for (var j = 0u; j < {{ROW}}u / p.value_lanes; j++) {
            sum += exchange[2u * (j * p.value_lanes + i / 8u) + (i / 4u) % 2u][i % 4u];
        }
        parts[to + 2u + first_col + i] = sum;
    }
}

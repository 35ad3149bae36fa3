// Attention of a few heads of one token that share keys and values, over one span of positions: an
// online softmax over the chunks of the span. It writes the largest score, the sum of weights and
// the weighted values of the span. Source: Flash attention (Dao et al.), split over positions as in
// Flash-Decoding.

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k_data: array<u32>;
@group(0) @binding(2) var<storage, read> v_data: array<u32>;
@group(0) @binding(3) var<storage, read> batch: array<u32>;
@group(0) @binding(4) var<storage, read> slopes: array<f32>;
@group(0) @binding(5) var<storage, read_write> parts: array<f32>;

struct Params {
    at_q: u32,
    at_k: u32,
    at_v: u32,
    at_batch: u32,
    at_slopes: u32,
    at_parts: u32,
    max_tokens: u32,
    max_seqs: u32,
    max_blocks: u32,
    n_rows: u32,
    n_head: u32,
    n_head_kv: u32,
    // Number of tiles of {{HEADS}} heads for the heads that share a key head.
    n_tiles: u32,
    d_head: u32,
    d_value: u32,
    k_words: u32,
    v_words: u32,
    n_spans: u32,
    span: u32,
    // 0 for all positions up to the token's; with the highest bit, the length of chunks; with the next
    // one, the most positions before or after the token's; otherwise the length of a sliding window.
    window: u32,
    has_slopes: u32,
    scale: f32,
    softcap: f32,
}
var<immediate> p: Params;

// Positions that are scored at once, one per invocation.
const CHUNK: u32 = {{ROW}}u;
const LOW: f32 = -3.0e38;

var<workgroup> scores: array<f32, {{HEADS}} * {{ROW}}>;
var<workgroup> facts: vec4<u32>;

{{include tanh}}
{{include k}}
{{include v}}
{{include dot}}
{{include window}}

fn cache_row(seq: u32, pos: u32) -> u32 {
    let tables = p.at_batch + 4u + 5u * p.max_tokens + p.max_seqs;
    return batch[tables + seq * p.max_blocks + pos / 32u] * 32u + pos % 32u;
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = group.x + group.y * groups.x;
    let at_span = at % p.n_spans;
    let tile = (at / p.n_spans) % p.n_tiles;
    let g = (at / (p.n_spans * p.n_tiles)) % p.n_head_kv;
    let t = at / (p.n_spans * p.n_tiles * p.n_head_kv);
    if (lane == 0u) {
        // Sequence, begin and end of the positions, and the token's position; no positions for padding.
        var found = vec4<u32>(0u, 0u, 0u, 0u);
        if (t < min(batch[p.at_batch], p.n_rows)) {
            let pos = batch[p.at_batch + 4u + 2u * p.max_tokens + t];
            var first = at_span * p.span;
            first = max(first, first_seen(pos, p.window));
            let end = min(end_seen(t, pos, p.window), (at_span + 1u) * p.span);
            found = vec4<u32>(batch[p.at_batch + 4u + p.max_tokens + t], first, end, pos);
        }
        facts = found;
    }
    let known = workgroupUniformLoad(&facts);
    let seq = known.x;
    let first = known.y;
    let end = known.z;
    if (first >= end) {
        return;
    }
    let per_group = p.n_head / p.n_head_kv;
    let n_heads = min({{HEADS}}u, per_group - tile * {{HEADS}}u);
    let head = g * per_group + tile * {{HEADS}}u;
    var largest: array<f32, {{HEADS}}>;
    var total: array<f32, {{HEADS}}>;
    var sums: array<f32, {{HEADS}} * {{COLS}}>;
    for (var h = 0u; h < {{HEADS}}u; h++) {
        largest[h] = LOW;
        total[h] = 0.0;
        for (var c = 0u; c < {{COLS}}u; c++) { sums[h * {{COLS}}u + c] = 0.0; }
    }
    for (var start = first / CHUNK * CHUNK; start < end; start += CHUNK) {
        let from_i = max(first, start) - start;
        let end_i = min(end, start + CHUNK) - start;
        for (var i = from_i + lane; i < end_i; i += {{ROW}}u) {
            let row = p.at_k + cache_row(seq, start + i) * p.k_words;
            let distance = abs(f32(known.w) - f32(start + i));
            for (var h = 0u; h < n_heads; h++) {
                let from_q = p.at_q + (t * p.n_head + head + h) * p.d_head;
                var score = p.scale * score_dot(row, g * p.d_head, from_q);
                if (p.softcap != 0.0) { score = p.softcap * tanh_of(score / p.softcap); }
                if (p.has_slopes != 0u) { score -= slopes[p.at_slopes + head + h] * distance; }
                scores[h * CHUNK + i] = score;
            }
        }
        workgroupBarrier();
        var before: array<f32, {{HEADS}}>;
        for (var h = 0u; h < n_heads; h++) {
            before[h] = largest[h];
            for (var i = from_i; i < end_i; i++) { largest[h] = max(largest[h], scores[h * CHUNK + i]); }
        }
        workgroupBarrier();
        for (var i = from_i + lane; i < end_i; i += {{ROW}}u) {
            for (var h = 0u; h < n_heads; h++) {
                scores[h * CHUNK + i] = exp(scores[h * CHUNK + i] - largest[h]);
            }
        }
        workgroupBarrier();
        for (var h = 0u; h < n_heads; h++) {
            let factor = exp(before[h] - largest[h]);
            total[h] *= factor;
            for (var i = from_i; i < end_i; i++) { total[h] += scores[h * CHUNK + i]; }
            for (var c = 0u; c < {{COLS}}u; c++) { sums[h * {{COLS}}u + c] *= factor; }
        }
        for (var i = from_i; i < end_i; i++) {
            let row = p.at_v + cache_row(seq, start + i) * p.v_words;
            for (var c = 0u; c < {{COLS}}u; c++) {
                let col = c * {{ROW}}u + lane;
                if (col < p.d_value) {
                    let value = v_value(row, g * p.d_value + col);
                    for (var h = 0u; h < n_heads; h++) { sums[h * {{COLS}}u + c] += scores[h * CHUNK + i] * value; }
                }
            }
        }
        workgroupBarrier();
    }
    for (var h = 0u; h < n_heads; h++) {
        let to = p.at_parts + ((t * p.n_head + head + h) * p.n_spans + at_span) * (p.d_value + 2u);
        if (lane == 0u) {
            parts[to] = largest[h];
            parts[to + 1u] = total[h];
        }
        for (var c = 0u; c < {{COLS}}u; c++) {
            let col = c * {{ROW}}u + lane;
            if (col < p.d_value) { parts[to + 2u + col] = sums[h * {{COLS}}u + c]; }
        }
    }
}

// Lists the positions of the blocks of the highest scores of a token, in ascending order, then those of
// the incomplete block; or those of a window, then the rows of the blocks' compressed keys
// (op::LightningIndexer, op::ListBlocks). A workgroup per token. The lowest of the selected scores is
// found byte by byte, from the highest byte on, by counting the scores that have each value there (radix
// selection).

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> selected: array<u32>;

struct Params {
    at_scores: u32,
    at_batch: u32,
    at_selected: u32,
    max_tokens: u32,
    max_seqs: u32,
    max_blocks: u32,
    n_rows: u32,
    first_token: u32,
    // Entries of a list of positions, and positions of a block.
    n_listed: u32,
    pool: u32,
    // With a window, rows from `first_row` on are listed after it, of `per_row` positions each.
    window: u32,
    first_row: u32,
    per_row: u32,
    // Blocks per row of scores.
    stride: u32,
}
var<immediate> p: Params;

// An entry after the last position.
const NO_POSITION: u32 = 0xffffffffu;
// Set in an entry that is a row of the cache.
const CACHE_ROW: u32 = 0x80000000u;

var<workgroup> counts: array<atomic<u32>, 256>;
// The byte of the lowest selected score, and how many of the scores with it are selected.
var<workgroup> found: vec2<u32>;
// The number of positions that the token sees; 0 for padding.
var<workgroup> n_visible: u32;
// Of each invocation's blocks: those above the lowest selected score, and those that have it.
var<workgroup> parts: array<vec2<u32>, {{ROW}}>;

// Maps scores to words with the same order; 0 is equal to -0, and NaN is below all numbers.
fn order(score: f32) -> u32 {
    let word = bitcast<u32>(score);
    let size = word & 0x7fffffffu;
    if (size > 0x7f800000u) { return 0u; }
    return select(word | 0x80000000u, ~word, word >> 31u == 1u && size != 0u);
}

// Lists block `i` of a token as the `at`-th one, from entry `to` on: its positions, or the row of its key.
fn list_block(token: u32, to: u32, at: u32, i: u32) {
    if (p.window == 0u) {
        for (var j = 0u; j < p.pool; j++) { selected[to + at * p.pool + j] = i * p.pool + j; }
        return;
    }
    let pos = i * p.pool + p.pool - 1u;
    let seq = batch[p.at_batch + 4u + p.max_tokens + token];
    let table = p.at_batch + 4u + 5u * p.max_tokens + p.max_seqs + seq * p.max_blocks;
    let row = (batch[table + pos / 32u] * 32u + pos % 32u) / p.per_row;
    selected[to + at] = (p.first_row + row) | CACHE_ROW;
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let row = group.x + group.y * groups.x;
    let token = p.first_token + row;
    if (t == 0u) {
        n_visible = 0u;
        if (token < min(batch[p.at_batch], p.n_rows)) {
            n_visible = batch[p.at_batch + 4u + 2u * p.max_tokens + token] + 1u;
        }
    }
    let n_seen = workgroupUniformLoad(&n_visible);
    if (n_seen == 0u) { return; }
    let n = n_seen / p.pool;
    let n_window = min(p.window, n_seen);
    let top_k = select(p.n_listed - p.window, p.n_listed / p.pool, p.window == 0u);
    let begin_list = p.at_selected + token * p.n_listed;
    let to = begin_list + n_window;
    for (var i = t; i < n_window; i += {{ROW}}u) { selected[begin_list + i] = n_seen - n_window + i; }
    if (n <= top_k) {
        for (var i = t; i < p.n_listed - n_window; i += {{ROW}}u) {
            if (p.window != 0u && i < n) {
                list_block(token, to, i, i);
            } else {
                selected[to + i] = select(NO_POSITION, i, p.window == 0u && i < n_seen);
            }
        }
        return;
    }
    // After the blocks: the positions of the incomplete one, and nothing after a window.
    let n_blocks = select(top_k, top_k * p.pool, p.window == 0u);
    for (var i = n_blocks + t; i < p.n_listed - n_window; i += {{ROW}}u) {
        let pos = (n - top_k) * p.pool + i;
        selected[to + i] = select(NO_POSITION, pos, p.window == 0u && pos < n_seen);
    }
    let from_score = p.at_scores + row * p.stride;
    var lowest = 0u;
    var n_wanted = top_k;
    for (var round = 0u; round < 4u; round++) {
        let shift = 24u - 8u * round;
        for (var i = t; i < 256u; i += {{ROW}}u) { atomicStore(&counts[i], 0u); }
        workgroupBarrier();
        // The bytes that are known.
        let known = select(0xffffffffu << (32u - 8u * round), 0u, round == 0u);
        for (var i = t; i < n; i += {{ROW}}u) {
            let word = order(scores[from_score + i]);
            if ((word & known) == lowest) { atomicAdd(&counts[(word >> shift) & 255u], 1u); }
        }
        workgroupBarrier();
        for (var byte = t; byte < 256u; byte += {{ROW}}u) {
            var above = 0u;
            for (var higher = byte + 1u; higher < 256u; higher++) { above += atomicLoad(&counts[higher]); }
            if (above < n_wanted && above + atomicLoad(&counts[byte]) >= n_wanted) {
                found = vec2<u32>(byte, n_wanted - above);
            }
        }
        let chosen = workgroupUniformLoad(&found);
        lowest |= chosen.x << shift;
        n_wanted = chosen.y;
    }
    // Each invocation lists a run of blocks.
    let per = (n + {{ROW}}u - 1u) / {{ROW}}u;
    let begin = min(t * per, n);
    let end = min(begin + per, n);
    var own = vec2<u32>(0u);
    for (var i = begin; i < end; i++) {
        let word = order(scores[from_score + i]);
        own += vec2<u32>(select(0u, 1u, word > lowest), select(0u, 1u, word == lowest));
    }
    parts[t] = own;
    workgroupBarrier();
    var before = vec2<u32>(0u);
    for (var other = 0u; other < t; other++) { before += parts[other]; }
    for (var i = begin; i < end; i++) {
        let word = order(scores[from_score + i]);
        let is_above = word > lowest;
        let is_equal = word == lowest;
        if (is_above || (is_equal && before.y < n_wanted)) {
            list_block(token, to, before.x + min(before.y, n_wanted), i);
        }
        before += vec2<u32>(select(0u, 1u, is_above), select(0u, 1u, is_equal));
    }
}

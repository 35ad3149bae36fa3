// Writes keys or values of the real tokens to their cache rows; an invocation writes whole
// words.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

struct Params {
    at_x: u32,
    at_batch: u32,
    at_cache: u32,
    max_tokens: u32,
    n_rows: u32,
    n_cols: u32,
    n_pieces: u32,
    row_words: u32,
    cache_rows: u32,
}
var<immediate> p: Params;

{{include flat}}
{{include half}}
{{include store}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let t = at / p.n_pieces;
    if (t >= min(batch[p.at_batch], p.n_rows)) {
        return;
    }
    let row = batch[p.at_batch + 4u + 3u * p.max_tokens + t];
    if (row < p.cache_rows) {
        let piece = at % p.n_pieces;
        store_piece(p.at_x + t * p.n_cols, piece, p.at_cache + row * p.row_words);
    }
}

// Partial sums of y[t] = sum over rows r of h[t, r] * down[r], for decode: a slice of rows and
// some columns per workgroup. The active rows of the slice are listed first, in ascending order,
// so that no other row is read.

@group(0) @binding(0) var<storage, read> down_data: {{down_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> side: array<u32>;
@group(0) @binding(3) var<storage, read> h: array<u32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;

struct Params {
    at_down: u32,
    at_tables: u32,
    at_side: u32,
    at_h: u32,
    at_partial: u32,
    // Number of rows of the matrix; first bound row, number of bound rows, and slot of the first
    // bound row.
    n_rows: u32,
    first: u32,
    n: u32,
    slot: u32,
    row_words: u32,
    n_out: u32,
    n_tokens: u32,
    // Rows per slice. The first bound row is also the first row of a slice.
    slice: u32,
    side_groups: u32,
    side_scales: u32,
    side_mins: u32,
    side_words: u32,
}
var<immediate> p: Params;

{{include block}}
{{include tokens}}
{{include down}}

var<workgroup> masks: array<atomic<u32>, {{ROW}} / 32>;
var<workgroup> listed: array<u32, {{ROW}}>;
var<workgroup> values: array<f32, {{ROW}} * TOKENS>;

@compute @workgroup_size({{ROW}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let q = group.x * {{ROW}}u + t;
    let token = group.z * TOKENS;
    let begin = group.y * p.slice;
    let end = min(begin + p.slice, p.n);
    var sums: array<vec4<f32>, TOKENS>;
    for (var base = begin; base < end; base += {{ROW}}u) {
        if (t < {{ROW}}u / 32u) { atomicStore(&masks[t], 0u); }
        workgroupBarrier();
        var mine: array<f32, TOKENS>;
        var counts = false;
        for (var j = 0u; j < TOKENS; j++) {
            if (base + t < end && token + j < p.n_tokens) {
                let word = h[p.at_h + (token + j) * p.n_rows + p.first + base + t];
                mine[j] = bitcast<f32>(word);
                // A value counts unless it is 0 or DROPPED, which is -0.
                counts = counts || (word << 1u) != 0u;
            }
        }
        if (counts) { atomicOr(&masks[t / 32u], 1u << (t % 32u)); }
        workgroupBarrier();
        var before = countOneBits(atomicLoad(&masks[t / 32u]) & ((1u << (t % 32u)) - 1u));
        var n = 0u;
        for (var w = 0u; w < {{ROW}}u / 32u; w++) {
            let here = countOneBits(atomicLoad(&masks[w]));
            if (w < t / 32u) { before += here; }
            n += here;
        }
        if (counts) {
            listed[before] = base + t;
            for (var j = 0u; j < TOKENS; j++) { values[TOKENS * before + j] = mine[j]; }
        }
        workgroupBarrier();
        if (4u * q < p.n_out) {
            for (var i = 0u; i < n; i++) {
                let row = listed[i];
                let four = down_four(p.at_down + row * p.row_words, p.slot + row, p.n_out, q);
                for (var j = 0u; j < TOKENS; j++) { sums[j] = fma(vec4<f32>(values[TOKENS * i + j]), four, sums[j]); }
            }
        }
    }
    let slice = p.first / p.slice + group.y;
    for (var j = 0u; j < TOKENS; j++) {
        for (var c = 0u; c < 4u; c++) {
            if (token + j < p.n_tokens && 4u * q + c < p.n_out) {
                partial[p.at_partial + (slice * p.n_tokens + token + j) * p.n_out + 4u * q + c] = sums[j][c];
            }
        }
    }
}

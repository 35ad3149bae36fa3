// Partial sums of y[t] = sum over rows r of h[t, r] * down[r], for prefill: a tile of 64 columns
// and 64 tokens per workgroup, 4 by 4 per invocation, 16 rows at a time.

@group(0) @binding(0) var<storage, read> down_data: {{down_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> side: array<u32>;
@group(0) @binding(3) var<storage, read> h: array<f32>;
@group(0) @binding(4) var<storage, read> pairs: array<u32>;
@group(0) @binding(5) var<storage, read> group_rows: array<u32>;
@group(0) @binding(6) var<storage, read_write> partial: array<f32>;

struct Params {
    at_down: u32,
    at_tables: u32,
    at_side: u32,
    at_h: u32,
    at_pairs: u32,
    at_group_rows: u32,
    at_partial: u32,
    // Number of columns of h; first bound row, number of bound rows, and slot of the first bound
    // row.
    h_cols: u32,
    first: u32,
    n: u32,
    slot: u32,
    row_words: u32,
    n_out: u32,
    n_tokens: u32,
    // Rows per slice, and the index of the first partial sums.
    slice: u32,
    part: u32,
    side_groups: u32,
    side_scales: u32,
    side_mins: u32,
    side_words: u32,
    // Number of experts (0 without experts), and maximum number of pairs.
    n_group: u32,
    n_pairs: u32,
}
var<immediate> p: Params;

{{include which}}

{{include block}}
{{include down}}

// Four columns of 16 rows, and 16 rows of 64 tokens.
var<workgroup> row_fours: array<vec4<f32>, 256>;
var<workgroup> values: array<f32, 1024>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let tokens = 64u * group.y;
    let range = slice_of(group.z);
    let n_tokens = n_of(group.z);
    // A tile without tokens has an empty loop over rows.
    let end = select(range.y, 0u, tokens >= n_tokens);
    var sums: array<vec4<f32>, 4>;
    for (var base = range.x; base < end; base += 16u) {
        let row = base + t / 16u;
        let q = 16u * group.x + t % 16u;
        var four = vec4<f32>(0.0);
        if (row < end && 4u * q < p.n_out) { four = down_four(p.at_down + (row - p.first) * p.row_words, p.slot + row - p.first, p.n_out, q); }
        row_fours[t] = four;
        for (var k = 0u; k < 4u; k++) {
            let token = tokens + t / 16u + 16u * k;
            var value = 0.0;
            if (token < n_tokens && base + t % 16u < end) {
                value = h[p.at_h + h_row(group.z, token) * p.h_cols + h_column(group.z, base + t % 16u)];
            }
            values[64u * (t % 16u) + t / 16u + 16u * k] = value;
        }
        workgroupBarrier();
        for (var r = 0u; r < 16u; r++) {
            let w = row_fours[16u * r + (t & 15u)];
            for (var j = 0u; j < 4u; j++) { sums[j] = fma(vec4<f32>(values[64u * r + (t >> 4u) + 16u * j]), w, sums[j]); }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < 4u; j++) {
        let token = tokens + (t >> 4u) + 16u * j;
        for (var c = 0u; c < 4u; c++) {
            let column = 4u * (16u * group.x + (t & 15u)) + c;
            if (token < n_tokens && column < p.n_out) {
                partial[p.at_partial + sums_row(group.z, token) * p.n_out + column] = sums[j][c];
            }
        }
    }
}

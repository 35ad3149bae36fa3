// Part sums of y[t] = sum over rows r of h[t, r] * down[r], for many tokens: a tile of 64 columns and 64 tokens to a
// workgroup, 4 by 4 to an invocation, 16 rows at a time.

@group(0) @binding(0) var<storage, read> down_data: {{down_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> side: array<u32>;
@group(0) @binding(3) var<storage, read> h: array<f32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;

struct Params {
    at_down: u32,
    at_tables: u32,
    at_side: u32,
    at_h: u32,
    at_partial: u32,
    n_rows: u32,
    first: u32,
    n: u32,
    slot: u32,
    row_words: u32,
    n_out: u32,
    n_tokens: u32,
    slice: u32,
    side_groups: u32,
    side_scales: u32,
    side_mins: u32,
    side_words: u32,
}
var<immediate> p: Params;

{{include block}}
{{include down}}

// Four columns of 16 rows, and 16 rows of 64 tokens.
var<workgroup> row_fours: array<vec4<f32>, 256>;
var<workgroup> values: array<f32, 1024>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let tokens = 64u * group.y;
    let begin = group.z * p.slice;
    let end = min(begin + p.slice, p.n);
    var sums: array<vec4<f32>, 4>;
    for (var base = begin; base < end; base += 16u) {
        let row = base + t / 16u;
        let q = 16u * group.x + t % 16u;
        var four = vec4<f32>(0.0);
        if (row < end && 4u * q < p.n_out) { four = down_four(p.at_down + row * p.row_words, p.slot + row, p.n_out, q); }
        row_fours[t] = four;
        for (var k = 0u; k < 4u; k++) {
            let token = tokens + t / 16u + 16u * k;
            var value = 0.0;
            if (token < p.n_tokens && base + t % 16u < end) {
                value = h[p.at_h + token * p.n_rows + p.first + base + t % 16u];
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
    let slice = p.first / p.slice + group.z;
    for (var j = 0u; j < 4u; j++) {
        let token = tokens + (t >> 4u) + 16u * j;
        for (var c = 0u; c < 4u; c++) {
            let column = 4u * (16u * group.x + (t & 15u)) + c;
            if (token < p.n_tokens && column < p.n_out) {
                partial[p.at_partial + (slice * p.n_tokens + token) * p.n_out + column] = sums[j][c];
            }
        }
    }
}

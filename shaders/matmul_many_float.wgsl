// y[t, i] = weight[i] . x[t] + bias[i], for prefill and float weights: a tile of 64 rows and 64
// tokens per workgroup, 4 by 4 per invocation, 16 columns at a time.

@group(0) @binding(0) var<storage, read> weight_data: {{weight_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> weight_x: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> pairs: array<u32>;
@group(0) @binding(5) var<storage, read> group_rows: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

struct Params {
    at_weight: u32,
    at_tables: u32,
    at_weight_x: u32,
    at_bias: u32,
    at_pairs: u32,
    at_group_rows: u32,
    at_y: u32,
    // Number of columns of y, first bound row, and number of bound rows.
    y_cols: u32,
    first: u32,
    n: u32,
    row_words: u32,
    n_cols: u32,
    n_tokens: u32,
    has_bias: u32,
    relu: u32,
    // Number of experts (0 without experts), and whether x has a row per pair.
    n_group: u32,
    x_by_pair: u32,
}
var<immediate> p: Params;

{{include which}}

{{include weight}}

// Four columns of 64 rows, then the next four.
var<workgroup> row_fours: array<vec4<f32>, 256>;
var<workgroup> x_fours: array<vec4<f32>, 256>;

fn x_at(token: u32, k: u32) -> f32 {
    if (k >= p.n_cols) { return 0.0; }
    return weight_x[p.at_weight_x + token * p.n_cols + k];
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let range = rows_of(group.z);
    let n_tokens = n_here(group.z);
    let rows = range.x + 64u * group.x;
    let tokens = 64u * group.y;
    // A tile without rows or tokens has an empty loop over columns.
    let n_cols = select(p.n_cols, 0u, rows >= range.y || tokens >= n_tokens);
    // Neighbouring invocations read neighbouring columns.
    let mine = t / 4u;
    let to = 64u * (t % 4u) + mine;
    var sums: array<vec4<f32>, 4>;
    for (var k = 0u; k < n_cols; k += 16u) {
        let four = k / 4u + t % 4u;
        let row = p.at_weight + (min(rows + mine, range.y - 1u) - p.first) * p.row_words;
        row_fours[to] = weight_four(row, 0u, p.n_cols, four);
        let token = x_row(group.z, min(tokens + mine, n_tokens - 1u));
        x_fours[to] = vec4<f32>(x_at(token, 4u * four), x_at(token, 4u * four + 1u), x_at(token, 4u * four + 2u), x_at(token, 4u * four + 3u));
        workgroupBarrier();
        for (var f = 0u; f < 256u; f += 64u) {
            let at = f + (t & 15u);
            let w0 = row_fours[at];
            let w1 = row_fours[at + 16u];
            let w2 = row_fours[at + 32u];
            let w3 = row_fours[at + 48u];
            for (var j = 0u; j < 4u; j++) {
                let v = x_fours[f + (t >> 4u) + 16u * j];
                var sum = sums[j];
                sum = fma(vec4<f32>(w0.x, w1.x, w2.x, w3.x), vec4<f32>(v.x), sum);
                sum = fma(vec4<f32>(w0.y, w1.y, w2.y, w3.y), vec4<f32>(v.y), sum);
                sum = fma(vec4<f32>(w0.z, w1.z, w2.z, w3.z), vec4<f32>(v.z), sum);
                sums[j] = fma(vec4<f32>(w0.w, w1.w, w2.w, w3.w), vec4<f32>(v.w), sum);
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < 4u; j++) {
        let token = tokens + (t >> 4u) + 16u * j;
        for (var i = 0u; i < 4u; i++) {
            let r = rows + (t & 15u) + 16u * i;
            if (token < n_tokens && r < range.y) {
                var value = sums[j][i];
                if (p.has_bias != 0u) { value += bias[p.at_bias + r]; }
                if (p.relu != 0u) { value = select(value, 0.0, value <= 0.0); }
                y[p.at_y + y_row(group.z, token) * p.y_cols + y_column(group.z, r)] = value;
            }
        }
    }
}

// y[t, i] = weight[i] . x[t] + bias[i], for prefill and quantised weights: a tile of 64 rows and
// 64 tokens per workgroup, 4 by 4 per invocation, two blocks of columns at a time.

@group(0) @binding(0) var<storage, read> weight_data: {{weight_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> pairs: array<u32>;
@group(0) @binding(5) var<storage, read> group_rows: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

struct Params {
    at_weight: u32,
    at_tables: u32,
    at_x: u32,
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

{{include block}}
{{include weight}}

// Codes and scales of two consecutive blocks of columns.
var<workgroup> row_codes: array<Codes, 128>;
var<workgroup> row_scales: array<Scales, 128>;
var<workgroup> x_lo: array<vec4<u32>, 128>;
var<workgroup> x_hi: array<vec4<u32>, 128>;
var<workgroup> x_facts: array<vec4<u32>, 128>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let range = rows_of(group.z);
    let n_tokens = n_here(group.z);
    let rows = range.x + 64u * group.x;
    let tokens = 64u * group.y;
    // A tile without rows or tokens has an empty loop over columns.
    let n_cols = select(p.n_cols, 0u, rows >= range.y || tokens >= n_tokens);
    let nb = n_cols >> 5u;
    let mine = t % 64u;
    let second = (t / 64u) % 2u;
    var sums: array<vec4<f32>, 4>;
    for (var b = 0u; b < nb; b += 2u) {
        let block = b + second;
        let to = 64u * second + mine;
        if (t < 128u) {
            var codes = Codes();
            var scales = Scales();
            if (rows + mine < range.y && block < nb) {
                let row = p.at_weight + (rows + mine - p.first) * p.row_words;
                codes = weight_codes(row, nb, block);
                scales = weight_scales(row, nb, block);
            }
            row_codes[to] = codes;
            row_scales[to] = scales;
        } else {
            let token = x_row(group.z, min(tokens + mine, n_tokens - 1u));
            let at = (p.at_x >> 2u) + 3u * (token * nb + min(block, nb - 1u));
            x_lo[to] = x[at];
            x_hi[to] = x[at + 1u];
            x_facts[to] = x[at + 2u];
        }
        workgroupBarrier();
        for (var k = 0u; k < 128u; k += 64u) {
            for (var j = 0u; j < 4u; j++) {
                let token = k + (t >> 4u) + 16u * j;
                let lo = x_lo[token];
                let hi = x_hi[token];
                let facts = x_facts[token];
                let row = k + (t & 15u);
                let old = sums[j];
                sums[j] = vec4<f32>(
                    q8_dot(old.x, row_codes[row], row_scales[row], weight_OFFSET, lo, hi, facts),
                    q8_dot(old.y, row_codes[row + 16u], row_scales[row + 16u], weight_OFFSET, lo, hi, facts),
                    q8_dot(old.z, row_codes[row + 32u], row_scales[row + 32u], weight_OFFSET, lo, hi, facts),
                    q8_dot(old.w, row_codes[row + 48u], row_scales[row + 48u], weight_OFFSET, lo, hi, facts));
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

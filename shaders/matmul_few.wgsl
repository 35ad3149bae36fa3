// y[t, i] = weight[i] . x[t] + bias[i], for decode (GEMV): a fixed number of lanes per row.

@group(0) @binding(0) var<storage, read> weight_data: {{weight_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> weight_x: {{weight_x_type}};
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> counts: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> carried: array<f32>;

struct Params {
    at_weight: u32,
    at_tables: u32,
    at_weight_x: u32,
    at_bias: u32,
    at_counts: u32,
    at_y: u32,
    at_carried: u32,
    // Number of rows of the matrix, first bound row, and number of bound rows.
    n_rows: u32,
    first: u32,
    n: u32,
    row_words: u32,
    n_cols: u32,
    n_tokens: u32,
    lanes: u32,
    has_bias: u32,
    relu: u32,
    // Whether the products are added to y.
    accumulate: u32,
    // Number of tokens whose counts of active neurons are added to `carried`.
    n_counts: u32,
}
var<immediate> p: Params;

{{include block}}
{{include tokens}}
{{include weight}}
{{include row_sum}}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let per = {{ROW}}u / p.lanes;
    let lane = t % p.lanes;
    let step = per * groups.x * groups.y;
    if (group.x + group.y == 0u && t < p.n_counts) { carried[p.at_carried + t] += f32(counts[p.at_counts + t]); }
    for (var at = per * (group.x + group.y * groups.x); at < p.n; at += step) {
        let r = at + t / p.lanes;
        for (var token = 0u; token < p.n_tokens; token += TOKENS) {
            let mine = weight_row(r, p.n, lane, token, p.n_tokens);
            let sums = row_sum(mine, t, p.lanes);
            if (r < p.n && lane < TOKENS && token + lane < p.n_tokens) {
                var value = pick(sums, lane);
                if (p.has_bias != 0u) { value += bias[p.at_bias + p.first + r]; }
                if (p.relu != 0u) { value = select(value, 0.0, value <= 0.0); }
                let to = p.at_y + (token + lane) * p.n_rows + p.first + r;
                if (p.accumulate != 0u) { value += y[to]; }
                y[to] = value;
            }
        }
    }
}

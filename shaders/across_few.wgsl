// y[t] = sum, over the experts g that token t uses, of down_g . h[t, rows of g]. A down matrix has
// one row per output, and the matrices of all experts that have rows are stacked. For decode: a
// fixed number of lanes per output.

@group(0) @binding(0) var<storage, read> weight_data: {{weight_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> weight_x: {{weight_x_type}};
@group(0) @binding(3) var<storage, read> group_weight: array<f32>;
@group(0) @binding(4) var<storage, read> filled: array<u32>;
@group(0) @binding(5) var<storage, read_write> partial: array<f32>;

struct Params {
    at_weight: u32,
    at_tables: u32,
    at_weight_x: u32,
    at_group_weight: u32,
    at_filled: u32,
    at_partial: u32,
    // Rows of the stacked matrices that are bound: the first row, and the number of rows.
    first: u32,
    n: u32,
    row_words: u32,
    // Numbers of columns of a matrix and of all matrices, of outputs, matrices and experts.
    n_cols: u32,
    n_rows: u32,
    n_out: u32,
    n_filled: u32,
    n_group: u32,
    n_tokens: u32,
    lanes: u32,
    // Index of this binding, which has its own partial sums.
    part: u32,
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
    for (var at = per * (group.x + group.y * groups.x); at < p.n_out; at += per * groups.x * groups.y) {
        let r = at + t / p.lanes;
        for (var token = 0u; token < p.n_tokens; token += TOKENS) {
            var mine = Sums();
            for (var m = 0u; m < p.n_filled; m++) {
                let row = m * p.n_out + r;
                if (r >= p.n_out || row < p.first || row - p.first >= p.n) { continue; }
                let g = filled[p.at_filled + m];
                var used = false;
                for (var j = 0u; j < TOKENS && token + j < p.n_tokens; j++) {
                    used = used || group_weight[p.at_group_weight + (token + j) * p.n_group + g] != 0.0;
                }
                if (used) {
                    mine += weight_dots(p.at_weight + (row - p.first) * p.row_words, p.n_cols, lane, p.lanes, m * p.n_cols, p.n_rows, token, p.n_tokens);
                }
            }
            let sums = row_sum(mine, t, p.lanes);
            if (r < p.n_out && lane < TOKENS && token + lane < p.n_tokens) {
                partial[p.at_partial + (p.part * p.n_tokens + token + lane) * p.n_out + r] = pick(sums, lane);
            }
        }
    }
}

// y[t, h, i] = weight[h, i] . x[t, h] for each head h: `matmul_few.wgsl` with a matrix per head. The third
// dimension of the grid counts heads.

@group(0) @binding(0) var<storage, read> weight_data: {{weight_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> weight_x: {{weight_x_type}};
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

struct Params {
    at_weight: u32,
    at_tables: u32,
    at_weight_x: u32,
    at_y: u32,
    // The first head of this dispatch.
    first: u32,
    // Number of rows of a head's matrix.
    n_rows: u32,
    row_words: u32,
    n_cols: u32,
    // Values from one head of x to the next, and of y.
    x_step: u32,
    y_step: u32,
    n_head: u32,
    n_tokens: u32,
    lanes: u32,
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
    let head = p.first + group.z;
    for (var at = per * (group.x + group.y * groups.x); at < p.n_rows; at += step) {
        let r = at + t / p.lanes;
        let row = p.at_weight + (head * p.n_rows + min(r, p.n_rows - 1u)) * p.row_words;
        for (var token = 0u; token < p.n_tokens; token += TOKENS) {
            let x_cols = p.n_head * p.x_step;
            let mine = weight_dots(row, p.n_cols, lane, p.lanes, head * p.x_step, x_cols, token, p.n_tokens);
            let sums = row_sum(mine, t, p.lanes);
            if (r < p.n_rows && lane < TOKENS && token + lane < p.n_tokens) {
                y[p.at_y + ((token + lane) * p.n_head + head) * p.y_step + r] = pick(sums, lane);
            }
        }
    }
}

// `matmul_few.wgsl` of one token for up to three matrices of one format: a workgroup multiplies rows
// of one of them.

@group(0) @binding(0) var<storage, read> first_data: {{weight_type}};
@group(0) @binding(1) var<storage, read> second_data: {{weight_type}};
@group(0) @binding(2) var<storage, read> third_data: {{weight_type}};
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> first_x: {{weight_x_type}};
@group(0) @binding(5) var<storage, read> second_x: {{weight_x_type}};
@group(0) @binding(6) var<storage, read> third_x: {{weight_x_type}};
@group(0) @binding(7) var<storage, read> first_bias: array<f32>;
@group(0) @binding(8) var<storage, read> second_bias: array<f32>;
@group(0) @binding(9) var<storage, read> third_bias: array<f32>;
@group(0) @binding(10) var<storage, read_write> first_y: array<f32>;
@group(0) @binding(11) var<storage, read_write> second_y: array<f32>;
@group(0) @binding(12) var<storage, read_write> third_y: array<f32>;

struct Params {
    at_first: u32,
    at_second: u32,
    at_third: u32,
    at_tables: u32,
    at_first_x: u32,
    at_second_x: u32,
    at_third_x: u32,
    at_first_bias: u32,
    at_second_bias: u32,
    at_third_bias: u32,
    at_first_y: u32,
    at_second_y: u32,
    at_third_y: u32,
    // Rows of each matrix.
    first_rows: u32,
    second_rows: u32,
    third_rows: u32,
    row_words: u32,
    n_cols: u32,
    lanes: u32,
    // Bits 0 to 2: whether each product has a bias.
    has_bias: u32,
}
var<immediate> p: Params;

{{include block}}
{{include tokens}}
{{include first}}
{{include second}}
{{include third}}
{{include row_sum}}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let per = {{ROW}}u / p.lanes;
    let lane = t % p.lanes;
    let at = group.x + group.y * groups.x;
    let second_at = (p.first_rows + per - 1u) / per;
    let third_at = second_at + (p.second_rows + per - 1u) / per;
    var mine = Sums();
    var r = 0u;
    if (at < second_at) {
        r = at * per + t / p.lanes;
        mine = first_row(r, p.first_rows, lane, 0u, 1u);
    } else if (at < third_at) {
        r = (at - second_at) * per + t / p.lanes;
        mine = second_row(r, p.second_rows, lane, 0u, 1u);
    } else {
        r = (at - third_at) * per + t / p.lanes;
        // Without a third matrix, the first is bound in its place.
        mine = third_row(r, p.third_rows, lane, 0u, 1u);
    }
    var value = row_sum(mine, t, p.lanes);
    if (lane != 0u) { return; }
    if (at < second_at) {
        if (r >= p.first_rows) { return; }
        if ((p.has_bias & 1u) != 0u) { value += first_bias[p.at_first_bias + r]; }
        first_y[p.at_first_y + r] = value;
    } else if (at < third_at) {
        if (r >= p.second_rows) { return; }
        if ((p.has_bias & 2u) != 0u) { value += second_bias[p.at_second_bias + r]; }
        second_y[p.at_second_y + r] = value;
    } else {
        if (r >= p.third_rows) { return; }
        if ((p.has_bias & 4u) != 0u) { value += third_bias[p.at_third_bias + r]; }
        third_y[p.at_third_y + r] = value;
    }
}

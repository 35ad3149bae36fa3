// y[t, to(h) + i] = x[t, from(h) + i]: copies some values of each head.

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

struct Params {
    at_x: u32,
    at_y: u32,
    n: u32,
    n_head: u32,
    width: u32,
    x_cols: u32,
    y_cols: u32,
    from_first: u32,
    from_step: u32,
    to_first: u32,
    to_step: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    if (at >= p.n) {
        return;
    }
    let i = at % p.width;
    let h = (at / p.width) % p.n_head;
    let t = at / (p.width * p.n_head);
    let from_col = p.from_first + h * p.from_step + i;
    let to_col = p.to_first + h * p.to_step + i;
    y[p.at_y + t * p.y_cols + to_col] = x[p.at_x + t * p.x_cols + from_col];
}

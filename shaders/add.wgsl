// x += a, for each value.

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

struct Params {
    at_a: u32,
    at_x: u32,
    n: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i < p.n) {
        x[p.at_x + i] += a[p.at_a + i];
    }
}

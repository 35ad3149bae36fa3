// x = cap * tanh(x / cap), or x clamped to -cap..=cap, for each value.

@group(0) @binding(0) var<storage, read_write> x: array<f32>;

struct Params {
    at_x: u32,
    n: u32,
    hard: u32,
    cap: f32,
}
var<immediate> p: Params;

{{include flat}}
{{include tanh}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i < p.n) {
        let value = x[p.at_x + i];
        x[p.at_x + i] = select(p.cap * tanh_of(value / p.cap), clamp(value, -p.cap, p.cap), p.hard != 0u);
    }
}

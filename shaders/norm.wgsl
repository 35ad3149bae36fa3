// y = norm(x) * weight + bias over runs of columns; a workgroup to a run.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

struct Params {
    at_x: u32,
    at_weight: u32,
    at_bias: u32,
    at_y: u32,
    n_runs: u32,
    width: u32,
    // Whether the mean is taken away.
    centred: u32,
    has_weight: u32,
    has_bias: u32,
    eps: f32,
}
var<immediate> p: Params;

{{include sum}}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let run = group.x + group.y * groups.x;
    if (run >= p.n_runs) {
        return;
    }
    let from_x = p.at_x + run * p.width;
    let to_y = p.at_y + run * p.width;
    var mean = 0.0;
    if (p.centred != 0u) {
        var sum = 0.0;
        for (var i = t; i < p.width; i += {{ROW}}u) { sum += x[from_x + i]; }
        mean = sum_all(sum, t) / f32(p.width);
    }
    var square = 0.0;
    for (var i = t; i < p.width; i += {{ROW}}u) {
        let d = x[from_x + i] - mean;
        square += d * d;
    }
    let factor = 1.0 / sqrt(sum_all(square, t) / f32(p.width) + p.eps);
    for (var i = t; i < p.width; i += {{ROW}}u) {
        var value = (x[from_x + i] - mean) * factor;
        if (p.has_weight != 0u) { value *= weight[p.at_weight + i]; }
        if (p.has_bias != 0u) { value += bias[p.at_bias + i]; }
        y[to_y + i] = value;
    }
}

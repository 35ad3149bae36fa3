// y = norm(x) * weight + bias over runs of columns; a workgroup per run.

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
    // 0: RMSNorm, 1: LayerNorm, 2: L2 norm.
    kind: u32,
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
    if (p.kind == 1u) {
        var sum = 0.0;
        for (var i = t; i < p.width; i += {{ROW}}u) { sum += x[from_x + i]; }
        mean = sum_all(sum, t) / f32(p.width);
    }
    var square = 0.0;
    for (var i = t; i < p.width; i += {{ROW}}u) {
        let d = x[from_x + i] - mean;
        square += d * d;
    }
    let squares = sum_all(square, t);
    let factor = select(1.0 / sqrt(squares / f32(p.width) + p.eps), 1.0 / max(sqrt(squares), p.eps), p.kind == 2u);
    for (var i = t; i < p.width; i += {{ROW}}u) {
        var value = (x[from_x + i] - mean) * factor;
        if (p.has_weight != 0u) { value *= weight[p.at_weight + i]; }
        if (p.has_bias != 0u) { value += bias[p.at_bias + i]; }
        y[to_y + i] = value;
    }
}

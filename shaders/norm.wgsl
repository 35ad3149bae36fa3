// y = norm(x) * weight + bias over runs of columns; a workgroup per run. What can be fused: the
// addition before it (x += a), y in Q8 blocks after it, and the initialisation of words for the next
// dispatch (`quantize.wgsl`).

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<u32>;
@group(0) @binding(6) var<storage, read_write> clear: array<u32>;

struct Params {
    at_x: u32,
    at_a: u32,
    at_weight: u32,
    at_bias: u32,
    at_y: u32,
    at_q: u32,
    at_clear: u32,
    n_runs: u32,
    width: u32,
    // 0: RMSNorm, 1: LayerNorm, 2: L2 norm.
    kind: u32,
    // Bits: 1 a weight, 2 a bias, 4 an addition, 8 Q8 blocks.
    has: u32,
    eps: f32,
    n_clear: u32,
    cleared: u32,
    n_zero: u32,
}
var<immediate> p: Params;

{{include sum}}
{{include quantize_y}}

// Four of this invocation's values, so that four loads are in flight.
fn x_strided(at: u32) -> vec4<f32> {
    return vec4<f32>(x[at], x[at + {{ROW}}u], x[at + 2u * {{ROW}}u], x[at + 3u * {{ROW}}u]);
}

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
    for (var i = run * {{ROW}}u + t; i < p.n_clear; i += p.n_runs * {{ROW}}u) {
        clear[p.at_clear + i] = select(p.cleared, 0u, i < p.n_zero);
    }
    let from_x = p.at_x + run * p.width;
    let to_y = p.at_y + run * p.width;
    // An invocation reads only values that it wrote itself.
    if ((p.has & 4u) != 0u) {
        let from_a = p.at_a + run * p.width;
        var i = t;
        for (; i + 3u * {{ROW}}u < p.width; i += 4u * {{ROW}}u) {
            let at = from_a + i;
            let more = vec4<f32>(a[at], a[at + {{ROW}}u], a[at + 2u * {{ROW}}u], a[at + 3u * {{ROW}}u]);
            let sum = x_strided(from_x + i) + more;
            x[from_x + i] = sum.x;
            x[from_x + i + {{ROW}}u] = sum.y;
            x[from_x + i + 2u * {{ROW}}u] = sum.z;
            x[from_x + i + 3u * {{ROW}}u] = sum.w;
        }
        for (; i < p.width; i += {{ROW}}u) { x[from_x + i] += a[from_a + i]; }
    }
    var mean = 0.0;
    if (p.kind == 1u) {
        var sum = 0.0;
        var i = t;
        for (; i + 3u * {{ROW}}u < p.width; i += 4u * {{ROW}}u) {
            let v = x_strided(from_x + i);
            sum = (((sum + v.x) + v.y) + v.z) + v.w;
        }
        for (; i < p.width; i += {{ROW}}u) { sum += x[from_x + i]; }
        mean = sum_all(sum, t) / f32(p.width);
    }
    var square = 0.0;
    var i = t;
    for (; i + 3u * {{ROW}}u < p.width; i += 4u * {{ROW}}u) {
        let d = x_strided(from_x + i) - vec4<f32>(mean);
        square += d.x * d.x;
        square += d.y * d.y;
        square += d.z * d.z;
        square += d.w * d.w;
    }
    for (; i < p.width; i += {{ROW}}u) {
        let d = x[from_x + i] - mean;
        square += d * d;
    }
    let squares = sum_all(square, t);
    let factor = select(1.0 / sqrt(squares / f32(p.width) + p.eps), 1.0 / max(sqrt(squares), p.eps), p.kind == 2u);
    for (var i = t; i < p.width; i += {{ROW}}u) {
        var value = (x[from_x + i] - mean) * factor;
        if ((p.has & 1u) != 0u) { value *= weight[p.at_weight + i]; }
        if ((p.has & 2u) != 0u) { value += bias[p.at_bias + i]; }
        y[to_y + i] = value;
    }
    if ((p.has & 8u) != 0u) { quantize_y(to_y, p.width / 32u, p.at_q + run * (p.width / 32u) * 12u, t); }
}

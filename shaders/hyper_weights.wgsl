// The weights of hyper-connections, in place; a workgroup per token. In Sinkhorn's iterations, an
// invocation has some of the weights.

@group(0) @binding(0) var<storage, read> scale: array<f32>;
@group(0) @binding(1) var<storage, read> base: array<f32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;

struct Params {
    at_scale: u32,
    at_base: u32,
    at_weights: u32,
    n_tokens: u32,
    n: u32,
    n_cols: u32,
    n_iterations: u32,
    eps: f32,
}
var<immediate> p: Params;

// The weights of the most streams, eight.
var<workgroup> mix: array<f32, 64>;

{{include sigmoid}}

// The summed and scaled product in column i.
fn z_of(own: u32, i: u32) -> f32 {
    return scale[p.at_scale + min(i / p.n, 2u)] * weights[own + i] + base[p.at_base + i];
}

// The sum of p.n values of `mix`.
fn sum_of(first: u32, step: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < p.n; i++) { sum += mix[first + i * step]; }
    return sum;
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let token = group.x + group.y * groups.x;
    if (token >= p.n_tokens) { return; }
    let own = p.at_weights + token * p.n_cols;
    for (var i = t; i < min(2u * p.n, p.n_cols); i += {{ROW}}u) {
        let share = sigmoid_of(z_of(own, i));
        weights[own + i] = select(2.0 * share, share + p.eps, i < p.n);
    }
    if (p.n_cols == p.n) { return; }
    let first = own + 2u * p.n;
    let n_mixed = p.n * p.n;
    for (var i = t; i < n_mixed; i += {{ROW}}u) { mix[i] = z_of(own, 2u * p.n + i); }
    workgroupBarrier();
    // An invocation has the rows, then the columns, with its index.
    for (var row = t; row < p.n; row += {{ROW}}u) {
        let at = row * p.n;
        var most = mix[at];
        for (var i = 1u; i < p.n; i++) { most = max(most, mix[at + i]); }
        for (var i = 0u; i < p.n; i++) { mix[at + i] = exp(mix[at + i] - most); }
        let sum = sum_of(at, 1u);
        for (var i = 0u; i < p.n; i++) { mix[at + i] = mix[at + i] / sum + p.eps; }
    }
    workgroupBarrier();
    for (var iteration = 0u; iteration < p.n_iterations; iteration++) {
        if (iteration > 0u) {
            for (var row = t; row < p.n; row += {{ROW}}u) {
                let sum = sum_of(row * p.n, 1u) + p.eps;
                for (var i = 0u; i < p.n; i++) { mix[row * p.n + i] /= sum; }
            }
        }
        workgroupBarrier();
        for (var column = t; column < p.n; column += {{ROW}}u) {
            let sum = sum_of(column, p.n) + p.eps;
            for (var i = 0u; i < p.n; i++) { mix[i * p.n + column] /= sum; }
        }
        workgroupBarrier();
    }
    for (var i = t; i < n_mixed; i += {{ROW}}u) { weights[first + i] = mix[i]; }
}

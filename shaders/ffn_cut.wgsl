// mean + factor * standard deviation of the test values of each token, over the rows of the experts
// that the token uses. One workgroup per token.

@group(0) @binding(0) var<storage, read> tests: array<f32>;
@group(0) @binding(1) var<storage, read> group_weight: array<f32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read_write> cuts: array<f32>;

struct Params {
    at_tests: u32,
    at_group_weight: u32,
    at_starts: u32,
    at_cuts: u32,
    n_rows: u32,
    first_token: u32,
    n_group: u32,
    factor: f32,
}
var<immediate> p: Params;

var<workgroup> parts: array<vec2<f32>, {{FLAT}}>;

fn total(mine: vec2<f32>, t: u32) -> vec2<f32> {
    parts[t] = mine;
    workgroupBarrier();
    for (var step = {{FLAT}}u / 2u; step > 0u; step /= 2u) {
        if (t < step) { parts[t] += parts[t + step]; }
        workgroupBarrier();
    }
    let sum = parts[0];
    workgroupBarrier();
    return sum;
}

// Sum and number of a token's test values, or of their squared deviations from `mean`.
fn sums(token: u32, t: u32, mean: f32, squares: bool) -> vec2<f32> {
    var mine = vec2<f32>(0.0);
    for (var g = 0u; g < max(p.n_group, 1u); g++) {
        var rows = vec2<u32>(0u, p.n_rows);
        if (p.n_group != 0u) {
            rows = vec2<u32>(starts[p.at_starts + g], starts[p.at_starts + g + 1u]);
            if (group_weight[p.at_group_weight + (p.first_token + token) * p.n_group + g] == 0.0) { continue; }
        }
        for (var row = rows.x + t; row < rows.y; row += {{FLAT}}u) {
            let apart = tests[p.at_tests + token * p.n_rows + row] - mean;
            mine += vec2<f32>(select(apart, apart * apart, squares), 1.0);
        }
    }
    return mine;
}

@compute @workgroup_size({{FLAT}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let all = total(sums(group.x, t, 0.0, false), t);
    let n = max(all.y, 1.0);
    let mean = all.x / n;
    let squares = total(sums(group.x, t, mean, true), t);
    if (t == 0u) { cuts[p.at_cuts + group.x] = mean + p.factor * sqrt(squares.x / n); }
}

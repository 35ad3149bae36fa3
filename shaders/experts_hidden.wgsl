// Computes neuron values from finished products, for pairs of a token and an expert, and writes
// them over the gate's products. A workgroup processes some rows of one pair.

@group(0) @binding(0) var<storage, read_write> tests: array<u32>;
@group(0) @binding(1) var<storage, read> ups: array<f32>;
@group(0) @binding(2) var<storage, read> threshold: array<f32>;
@group(0) @binding(3) var<storage, read> group_weight: array<f32>;
@group(0) @binding(4) var<storage, read> starts: array<u32>;
@group(0) @binding(5) var<storage, read> pairs: array<u32>;
@group(0) @binding(6) var<storage, read_write> counts: array<atomic<u32>>;

struct Params {
    at_tests: u32,
    at_ups: u32,
    at_threshold: u32,
    at_group_weight: u32,
    at_starts: u32,
    at_pairs: u32,
    at_counts: u32,
    // Number of values per pair.
    h_cols: u32,
    n_group: u32,
    has_threshold: u32,
    kind: u32,
    activation: u32,
    skip: u32,
    alpha: f32,
    slope: f32,
    cap: f32,
}
var<immediate> p: Params;

{{include activation}}
{{include wanted}}

var<workgroup> n_carried: atomic<u32>;

@compute @workgroup_size({{FLAT}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    if (t == 0u) { atomicStore(&n_carried, 0u); }
    workgroupBarrier();
    let pair = group.y;
    let inside = pair < pairs[p.at_pairs + p.n_group];
    let of_pair = pairs[p.at_pairs + p.n_group + 1u + select(0u, pair, inside)];
    let token = of_pair & 0xffffu;
    let g = of_pair >> 16u;
    for (var k = 0u; inside && k < 4u; k++) {
        let column = (4u * group.x + k) * {{FLAT}}u + t;
        if (column >= p.h_cols) { break; }
        let row = starts[p.at_starts + g] + column;
        let at = pair * p.h_cols + column;
        var word = DROPPED;
        if (row < starts[p.at_starts + g + 1u]) {
            let test = bitcast<f32>(tests[p.at_tests + at]);
            var limit = 0.0;
            if (p.has_threshold != 0u) { limit = threshold[p.at_threshold + row]; }
            if (!is_dropped(test, limit, 0.0)) {
                let by = group_weight[p.at_group_weight + token * p.n_group + g];
                word = carried(by * neuron(p.kind, p.activation, test, ups[p.at_ups + at], p.alpha, p.slope, p.cap));
                atomicAdd(&n_carried, 1u);
            }
        }
        tests[p.at_tests + at] = word;
    }
    workgroupBarrier();
    if (t == 0u && inside) { atomicAdd(&counts[p.at_counts + token], atomicLoad(&n_carried)); }
}

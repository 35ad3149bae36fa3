// Computes neuron values from finished products, and writes them over the gate's products: in
// prefill, and if the skip threshold depends on all test values of a token. A workgroup processes
// some rows of one token.

@group(0) @binding(0) var<storage, read_write> tests: array<u32>;
@group(0) @binding(1) var<storage, read> ups: array<f32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read> threshold: array<f32>;
@group(0) @binding(4) var<storage, read> group_weight: array<f32>;
@group(0) @binding(5) var<storage, read> starts: array<u32>;
@group(0) @binding(6) var<storage, read> cuts: array<f32>;
@group(0) @binding(7) var<storage, read_write> counts: array<atomic<u32>>;

struct Params {
    at_tests: u32,
    at_ups: u32,
    at_mask: u32,
    at_threshold: u32,
    at_group_weight: u32,
    at_starts: u32,
    at_cuts: u32,
    at_counts: u32,
    n_rows: u32,
    // Membership words per row, 0 if all rows count for all tokens; index of the first token in the
    // step.
    words: u32,
    first_token: u32,
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
{{include group_of}}

var<workgroup> n_carried: atomic<u32>;

@compute @workgroup_size({{FLAT}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    if (t == 0u) { atomicStore(&n_carried, 0u); }
    workgroupBarrier();
    let token = p.first_token + group.y;
    var cut = 0.0;
    if (p.skip == 3u) { cut = cuts[p.at_cuts + group.y]; }
    for (var k = 0u; k < 4u; k++) {
        let row = (4u * group.x + k) * {{FLAT}}u + t;
        if (row >= p.n_rows) { break; }
        let at = group.y * p.n_rows + row;
        let test = bitcast<f32>(tests[p.at_tests + at]);
        var by = 1.0;
        if (p.words != 0u) { by = f32(mask[p.at_mask + row * p.words + token / 32u] >> (token % 32u) & 1u); }
        if (p.n_group != 0u) { by *= group_weight[p.at_group_weight + token * p.n_group + group_of(row)]; }
        var limit = 0.0;
        if (p.has_threshold != 0u) { limit = threshold[p.at_threshold + row]; }
        var word = DROPPED;
        if (by != 0.0 && !is_dropped(test, limit, cut)) {
            let up = ups[p.at_ups + at];
            word = carried(by * neuron(p.kind, p.activation, test - cut, up, p.alpha, p.slope, p.cap));
            atomicAdd(&n_carried, 1u);
        }
        tests[p.at_tests + at] = word;
    }
    workgroupBarrier();
    if (t == 0u) { atomicAdd(&counts[p.at_counts + group.y], atomicLoad(&n_carried)); }
}

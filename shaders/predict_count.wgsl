// For each run of {{FLAT}} neurons, counts the active ones that are resident and those that are absent.

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> slots: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;

struct Params {
    at_scores: u32,
    at_slots: u32,
    at_counts: u32,
    n_ff: u32,
    n_tokens: u32,
    threshold: f32,
}
var<immediate> p: Params;

{{include wants}}

var<workgroup> n: array<atomic<u32>, 2>;

@compute @workgroup_size({{FLAT}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    if (t < 2u) { atomicStore(&n[t], 0u); }
    workgroupBarrier();
    let neuron = group.x * {{FLAT}}u + t;
    if (neuron < p.n_ff && wanted(neuron)) { atomicAdd(&n[slots[p.at_slots + neuron] >> 31u], 1u); }
    workgroupBarrier();
    if (t < 2u) { counts[p.at_counts + 2u * group.x + t] = atomicLoad(&n[t]); }
}

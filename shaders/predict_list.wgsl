// Lists the active resident and absent neurons, in ascending order, with a membership bit per token. Each
// workgroup first adds up the counts of the earlier workgroups.

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> slots: array<u32>;
@group(0) @binding(2) var<storage, read> counts: array<u32>;
@group(0) @binding(3) var<storage, read_write> here_ids: array<u32>;
@group(0) @binding(4) var<storage, read_write> here_count: array<u32>;
@group(0) @binding(5) var<storage, read_write> here_members: array<u32>;
@group(0) @binding(6) var<storage, read_write> there_ids: array<u32>;
@group(0) @binding(7) var<storage, read_write> there_count: array<u32>;
@group(0) @binding(8) var<storage, read_write> there_members: array<u32>;

struct Params {
    at_scores: u32,
    at_slots: u32,
    at_counts: u32,
    at_here_ids: u32,
    at_here_count: u32,
    at_here_members: u32,
    at_there_ids: u32,
    at_there_count: u32,
    at_there_members: u32,
    n_ff: u32,
    n_tokens: u32,
    threshold: f32,
    n_groups: u32,
    // Capacity and membership words per row of each list; the capacity of a list that is not
    // requested is 0.
    here_capacity: u32,
    here_words: u32,
    there_capacity: u32,
    there_words: u32,
}
var<immediate> p: Params;

{{include wants}}

const WORDS: u32 = {{FLAT}}u / 32u;
var<workgroup> before: array<atomic<u32>, 2>;
// Membership bits of the neurons, resident and absent.
var<workgroup> masks: array<atomic<u32>, 2 * WORDS>;

@compute @workgroup_size({{FLAT}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    if (t < 2u) { atomicStore(&before[t], 0u); }
    if (t < 2u * WORDS) { atomicStore(&masks[t], 0u); }
    workgroupBarrier();
    for (var i = t; i < 2u * group.x; i += {{FLAT}}u) { atomicAdd(&before[i % 2u], counts[p.at_counts + i]); }
    let neuron = group.x * {{FLAT}}u + t;
    let is_wanted = neuron < p.n_ff && wanted(neuron);
    let slot = slots[p.at_slots + min(neuron, p.n_ff - 1u)];
    let side = slot >> 31u;
    if (is_wanted) { atomicOr(&masks[side * WORDS + t / 32u], 1u << (t % 32u)); }
    workgroupBarrier();
    if (is_wanted) {
        var at = atomicLoad(&before[side]);
        for (var w = 0u; w < t / 32u; w++) { at += countOneBits(atomicLoad(&masks[side * WORDS + w])); }
        at += countOneBits(atomicLoad(&masks[side * WORDS + t / 32u]) & ((1u << (t % 32u)) - 1u));
        let id = slot & 0x7fffffffu;
        if (side == 0u && at < p.here_capacity) { here_ids[p.at_here_ids + at] = id; }
        if (side == 1u && at < p.there_capacity) { there_ids[p.at_there_ids + at] = id; }
        for (var w = 0u; w < select(p.here_words, p.there_words, side == 1u); w++) {
            var bits = 0u;
            for (var b = 0u; b < 32u && 32u * w + b < p.n_tokens; b++) { bits |= select(0u, 1u << b, wants(32u * w + b, neuron)); }
            if (side == 0u && at < p.here_capacity) { here_members[p.at_here_members + at * p.here_words + w] = bits; }
            if (side == 1u && at < p.there_capacity) { there_members[p.at_there_members + at * p.there_words + w] = bits; }
        }
    }
    if (group.x == p.n_groups - 1u && t < 2u) {
        var n = atomicLoad(&before[t]);
        for (var w = 0u; w < WORDS; w++) { n += countOneBits(atomicLoad(&masks[t * WORDS + w])); }
        if (t == 0u) { here_count[p.at_here_count] = min(n, p.here_capacity); }
        if (t == 1u && p.there_capacity != 0u) { there_count[p.at_there_count] = min(n, p.there_capacity); }
    }
}

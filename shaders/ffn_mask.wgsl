// Scatters the membership bits of a row list to their rows. An earlier dispatch set the mask to 0.

@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read> count: array<u32>;
@group(0) @binding(2) var<storage, read> members: array<u32>;
@group(0) @binding(3) var<storage, read_write> mask: array<u32>;

struct Params {
    at_ids: u32,
    at_count: u32,
    at_members: u32,
    at_mask: u32,
    capacity: u32,
    words: u32,
    n_rows: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = flat_index(id, groups);
    if (i >= min(count[p.at_count], p.capacity) * p.words) { return; }
    let row = ids[p.at_ids + i / p.words];
    if (row < p.n_rows) { mask[p.at_mask + row * p.words + i % p.words] = members[p.at_members + i]; }
}

// Copies words from one range of a buffer to another.

@group(0) @binding(0) var<storage, read> from_words: array<u32>;
@group(0) @binding(1) var<storage, read_write> to_words: array<u32>;

struct Params {
    at_from: u32,
    at_to: u32,
    n: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i < p.n) {
        to_words[p.at_to + i] = from_words[p.at_from + i];
    }
}

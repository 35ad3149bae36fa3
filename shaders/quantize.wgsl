// Quantises rows of floats to Q8 blocks (`hal::format::quantize_q8`), eight lanes per block; also
// initialises words that a later dispatch counts in or writes only in part.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> q: array<u32>;
@group(0) @binding(2) var<storage, read_write> clear: array<u32>;

struct Params {
    at_x: u32,
    at_q: u32,
    at_clear: u32,
    n_blocks: u32,
    n_clear: u32,
    cleared: u32,
    n_zero: u32,
}
var<immediate> p: Params;

{{include quantize_block}}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let g = group.x + group.y * groups.x;
    for (var i = {{ROW}}u * g + t; i < p.n_clear; i += {{ROW}}u * groups.x * groups.y) {
        // The first words are counters, the others mark skipped neurons.
        clear[p.at_clear + i] = select(p.cleared, 0u, i < p.n_zero);
    }
    let block = {{ROW}}u / 8u * g + t / 8u;
    let inside = block < p.n_blocks;
    let at = p.at_x + 32u * min(block, max(p.n_blocks, 1u) - 1u) + 4u * (t % 8u);
    var v = vec4<f32>(0.0);
    if (inside) { v = vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]); }
    quantize_block(v, inside, p.at_q + 12u * block, t);
}

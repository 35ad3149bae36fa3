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

var<workgroup> largest: array<u32, 64>;
var<workgroup> sums: array<i32, 64>;

{{include quotient}}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let g = group.x + group.y * groups.x;
    for (var i = 64u * g + t; i < p.n_clear; i += 64u * groups.x * groups.y) {
        // The first words are counters, the others mark skipped neurons.
        clear[p.at_clear + i] = select(p.cleared, 0u, i < p.n_zero);
    }
    let block = 8u * g + t / 8u;
    let lane = t % 8u;
    let inside = block < p.n_blocks;
    let at = p.at_x + 32u * min(block, max(p.n_blocks, 1u) - 1u) + 4u * lane;
    var v = vec4<f32>(0.0);
    if (inside) { v = vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]); }
    // As bit patterns, magnitudes sort like the floats, with infinity and NaN on top.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    largest[t] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    let first = t - lane;
    var most = largest[first];
    for (var i = 1u; i < 8u; i++) { most = max(most, largest[first + i]); }
    let amax = bitcast<f32>(most);
    let finite = most < 0x7f800000u;
    // Subnormal numbers have exponent 0.
    let some = finite && most >= 0x00800000u;
    var d = 0.0;
    if (some) { d = quotient(amax, 127.0); }
    var codes = vec4<i32>(0);
    if (d != 0.0) {
        codes = vec4<i32>(clamp(round(v * quotient(127.0, amax)), vec4<f32>(-127.0), vec4<f32>(127.0)));
    }
    sums[t] = codes.x + codes.y + codes.z + codes.w;
    workgroupBarrier();
    if (inside) {
        let to = p.at_q + 12u * block;
        q[to + lane] = pack4xI8(codes);
        if (lane == 0u) { q[to + 8u] = select(0x7fc00000u, bitcast<u32>(d), finite); }
        if (lane == 1u || lane == 2u) {
            let half = first + 4u * (lane - 1u);
            q[to + 8u + lane] = bitcast<u32>(sums[half] + sums[half + 1u] + sums[half + 2u] + sums[half + 3u]);
        }
    }
}

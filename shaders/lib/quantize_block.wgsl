// Quantises a block of 32 values to Q8 (`hal::format::quantize_q8`), with eight neighbouring lanes
// that have four values each. A workgroup of {{ROW}} lanes does so at once, and every lane takes part.
{{include quotient}}

var<workgroup> block_largest: array<u32, {{ROW}}>;
var<workgroup> block_sums: array<i32, {{ROW}}>;

// Writes the block to word `to` of `q`, unless it is not `inside`.
fn quantize_block(v: vec4<f32>, inside: bool, to: u32, t: u32) {
    let lane = t % 8u;
    // As bit patterns, magnitudes sort like the floats, with infinity and NaN on top.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    block_largest[t] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    let first = t - lane;
    var most = block_largest[first];
    for (var i = 1u; i < 8u; i++) { most = max(most, block_largest[first + i]); }
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
    block_sums[t] = codes.x + codes.y + codes.z + codes.w;
    workgroupBarrier();
    if (inside) {
        q[to + lane] = pack4xI8(codes);
        if (lane == 0u) { q[to + 8u] = select(0x7fc00000u, bitcast<u32>(d), finite); }
        if (lane == 1u || lane == 2u) {
            let half = first + 4u * (lane - 1u);
            q[to + 8u + lane] = bitcast<u32>(block_sums[half] + block_sums[half + 1u] + block_sums[half + 2u] + block_sums[half + 3u]);
        }
    }
}

// Quantises values of `y` that this workgroup has written to Q8 blocks in `q`; the same arithmetic as
// in `quantize.wgsl`. Both quotients of a block are computed once, by one invocation.
{{include quotient}}

// The largest magnitude of each four values, later the sum of their codes.
var<workgroup> fours: array<u32, 8u * {{ROW}}u>;
// The word of each block's scale, and the bits of its inverse; 0 if all codes are 0.
var<workgroup> scales: array<vec2<u32>, {{ROW}}>;

fn y_four(at: u32) -> vec4<f32> { return vec4<f32>(y[at], y[at + 1u], y[at + 2u], y[at + 3u]); }

fn quantize_y(from_y: u32, n_blocks: u32, to_q: u32, t: u32) {
    storageBarrier();
    for (var base = 0u; base < n_blocks; base += {{ROW}}u) {
        let n = min(n_blocks - base, {{ROW}}u);
        let first = from_y + 32u * base;
        let to = to_q + 12u * base;
        for (var i = t; i < 8u * n; i += {{ROW}}u) {
            // As bit patterns, magnitudes sort like the floats, with infinity and NaN on top.
            let bits = bitcast<vec4<u32>>(y_four(first + 4u * i)) & vec4<u32>(0x7fffffffu);
            fours[i] = max(max(bits.x, bits.y), max(bits.z, bits.w));
        }
        workgroupBarrier();
        if (t < n) {
            var most = fours[8u * t];
            for (var i = 1u; i < 8u; i++) { most = max(most, fours[8u * t + i]); }
            let finite = most < 0x7f800000u;
            var d = 0.0;
            var inverse = 0.0;
            // Subnormal numbers have exponent 0.
            if (finite && most >= 0x00800000u) { d = quotient(bitcast<f32>(most), 127.0); }
            if (d != 0.0) { inverse = quotient(127.0, bitcast<f32>(most)); }
            scales[t] = vec2<u32>(select(0x7fc00000u, bitcast<u32>(d), finite), bitcast<u32>(inverse));
        }
        workgroupBarrier();
        for (var i = t; i < 8u * n; i += {{ROW}}u) {
            let inverse = scales[i / 8u].y;
            var codes = vec4<i32>(0);
            if (inverse != 0u) {
                let scaled = round(y_four(first + 4u * i) * bitcast<f32>(inverse));
                codes = vec4<i32>(clamp(scaled, vec4<f32>(-127.0), vec4<f32>(127.0)));
            }
            q[to + 12u * (i / 8u) + i % 8u] = pack4xI8(codes);
            fours[i] = bitcast<u32>(codes.x + codes.y + codes.z + codes.w);
        }
        workgroupBarrier();
        if (t < n) {
            let at = to + 12u * t + 8u;
            let sums = 8u * t;
            q[at] = scales[t].x;
            q[at + 1u] = fours[sums] + fours[sums + 1u] + fours[sums + 2u] + fours[sums + 3u];
            q[at + 2u] = fours[sums + 4u] + fours[sums + 5u] + fours[sums + 6u] + fours[sums + 7u];
        }
        workgroupBarrier();
    }
}

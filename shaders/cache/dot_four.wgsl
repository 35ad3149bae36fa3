// Dot products of heads whose size is a multiple of four.
fn score_dot(row: u32, first: u32, from_q: u32) -> f32 {
    var sum = vec4<f32>();
    for (var i = 0u; i < p.d_head; i += 4u) {
        let at = from_q + i;
        sum += k_four(row, first + i) * vec4<f32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

fn score_dot(row: u32, first: u32, from_q: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < p.d_head; i++) { sum += k_value(row, first + i) * q[from_q + i]; }
    return sum;
}

// The block's value farthest from zero; of several the first.
fn farthest_of(first: u32) -> f32 {
    var far = 0.0;
    for (var i = 0u; i < 32u; i++) {
        if (abs(x[first + i]) > abs(far)) { far = x[first + i]; }
    }
    return far;
}

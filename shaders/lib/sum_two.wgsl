// Sums of four values of two queries over the p.lanes neighbouring invocations that share rows of the
// cache. Each gets the sums of the value that `value_of` names, added in a fixed order. `exchange` is
// workgroup memory.
fn sum_two(one: vec4<f32>, other: vec4<f32>, t: u32) -> vec2<f32> {
    exchange[2u * t] = one;
    exchange[2u * t + 1u] = other;
    workgroupBarrier();
    let first = t - t % p.lanes;
    var sums = vec2<f32>(0.0);
    for (var i = first; i < first + p.lanes; i++) {
        sums += vec2<f32>(exchange[2u * i][value_of(t)], exchange[2u * i + 1u][value_of(t)]);
    }
    workgroupBarrier();
    return sums;
}

// The sums of `sum_two.wgsl`, with subgroups of {{NEAR}}, of which p.lanes are at most. The first two
// exchanges halve the number of values, so that one sum remains for each invocation.
fn sum_four(mine: vec4<f32>, t: u32) -> f32 {
    let odd = (t & 1u) == 1u;
    let pair = select(mine.xy, mine.zw, odd) + subgroupShuffleXor(select(mine.zw, mine.xy, odd), 1u);
    let upper = (t & 2u) == 2u;
    var sum = select(pair.x, pair.y, upper) + subgroupShuffleXor(select(pair.y, pair.x, upper), 2u);
    // Constant masks, as in `row_sum_near.wgsl`.
    if (p.lanes > 4u) { sum += subgroupShuffleXor(sum, 4u); }
    if (p.lanes > 8u) { sum += subgroupShuffleXor(sum, 8u); }
    return sum;
}

fn sum_two(one: vec4<f32>, other: vec4<f32>, t: u32) -> vec2<f32> {
    let sum = sum_four(one, t);
    if (QUERIES == 1u) { return vec2<f32>(sum); }
    return vec2<f32>(sum, sum_four(other, t));
}

// The sums of `row_sum.wgsl`, with subgroups of {{NEAR}}; all lanes add in the same order.
var<workgroup> parts: array<Sums, {{ROW}}>;

fn row_sum(mine: Sums, t: u32, lanes: u32) -> Sums {
    var sum = mine;
    for (var by = 1u; by < min(lanes, {{NEAR}}u); by <<= 1u) { sum += subgroupShuffleXor(sum, by); }
    if (lanes <= {{NEAR}}u) { return sum; }
    parts[t] = sum;
    workgroupBarrier();
    let first = t - t % lanes;
    sum = parts[first];
    for (var i = {{NEAR}}u; i < lanes; i += {{NEAR}}u) { sum += parts[first + i]; }
    workgroupBarrier();
    return sum;
}

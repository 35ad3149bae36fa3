// The sums of `sum.wgsl`, with subgroups of {{NEAR}}.
var<workgroup> sum_parts: array<f32, {{ROW}} / {{NEAR}}>;

fn sum_all(mine: f32, t: u32) -> f32 {
    var sum = mine;
    for (var by = 1u; by < {{NEAR}}u; by <<= 1u) { sum += subgroupShuffleXor(sum, by); }
    if (t % {{NEAR}}u == 0u) { sum_parts[t / {{NEAR}}u] = sum; }
    workgroupBarrier();
    sum = sum_parts[0];
    for (var i = 1u; i < {{ROW}}u / {{NEAR}}u; i++) { sum += sum_parts[i]; }
    workgroupBarrier();
    return sum;
}

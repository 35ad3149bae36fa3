// The sums of `sum.wgsl`, with subgroups of {{NEAR}}.
var<workgroup> sum_parts: array<f32, {{ROW}} / {{NEAR}}>;

fn sum_all(mine: f32, t: u32) -> f32 {
    var sum = mine;
    // Constant masks, as in `row_sum_near.wgsl`.
    if ({{NEAR}}u > 1u) { sum += subgroupShuffleXor(sum, 1u); }
    if ({{NEAR}}u > 2u) { sum += subgroupShuffleXor(sum, 2u); }
    if ({{NEAR}}u > 4u) { sum += subgroupShuffleXor(sum, 4u); }
    if ({{NEAR}}u > 8u) { sum += subgroupShuffleXor(sum, 8u); }
    if ({{NEAR}}u > 16u) { sum += subgroupShuffleXor(sum, 16u); }
    if ({{NEAR}}u > 32u) { sum += subgroupShuffleXor(sum, 32u); }
    if ({{NEAR}}u > 64u) { sum += subgroupShuffleXor(sum, 64u); }
    if (t % {{NEAR}}u == 0u) { sum_parts[t / {{NEAR}}u] = sum; }
    workgroupBarrier();
    sum = sum_parts[0];
    for (var i = 1u; i < {{ROW}}u / {{NEAR}}u; i++) { sum += sum_parts[i]; }
    workgroupBarrier();
    return sum;
}

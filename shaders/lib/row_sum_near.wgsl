// The sums of `row_sum.wgsl`, with subgroups of {{NEAR}}; all lanes add in the same order.
var<workgroup> parts: array<Sums, {{ROW}}>;

fn row_sum(mine: Sums, t: u32, lanes: u32) -> Sums {
    var sum = mine;
    // With constant masks, AMD's compilers exchange lanes inside an instruction (DPP); in a loop they
    // read lane by lane.
    if ({{NEAR}}u > 1u && lanes > 1u) { sum += subgroupShuffleXor(sum, 1u); }
    if ({{NEAR}}u > 2u && lanes > 2u) { sum += subgroupShuffleXor(sum, 2u); }
    if ({{NEAR}}u > 4u && lanes > 4u) { sum += subgroupShuffleXor(sum, 4u); }
    if ({{NEAR}}u > 8u && lanes > 8u) { sum += subgroupShuffleXor(sum, 8u); }
    if ({{NEAR}}u > 16u && lanes > 16u) { sum += subgroupShuffleXor(sum, 16u); }
    if ({{NEAR}}u > 32u && lanes > 32u) { sum += subgroupShuffleXor(sum, 32u); }
    if ({{NEAR}}u > 64u && lanes > 64u) { sum += subgroupShuffleXor(sum, 64u); }
    if (lanes <= {{NEAR}}u) { return sum; }
    parts[t] = sum;
    workgroupBarrier();
    let first = t - t % lanes;
    sum = parts[first];
    for (var i = {{NEAR}}u; i < lanes; i += {{NEAR}}u) { sum += parts[first + i]; }
    workgroupBarrier();
    return sum;
}

// Sums over a workgroup; each invocation gets the same sum, added in a fixed order.
var<workgroup> sum_parts: array<f32, {{ROW}}>;

fn sum_all(mine: f32, t: u32) -> f32 {
    sum_parts[t] = mine;
    workgroupBarrier();
    for (var half = {{ROW}}u / 2u; half > 0u; half >>= 1u) {
        if (t < half) {
            sum_parts[t] += sum_parts[t + half];
        }
        workgroupBarrier();
    }
    let sum = sum_parts[0];
    workgroupBarrier();
    return sum;
}

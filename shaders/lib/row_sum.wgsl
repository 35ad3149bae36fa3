// Sums over the `lanes` neighbouring invocations that share a row. Each gets the same sum, added in
// a fixed order.
var<workgroup> parts: array<Sums, {{ROW}}>;

fn row_sum(mine: Sums, t: u32, lanes: u32) -> Sums {
    parts[t] = mine;
    workgroupBarrier();
    let first = t - t % lanes;
    var sum = parts[first];
    for (var i = 1u; i < lanes; i++) { sum += parts[first + i]; }
    workgroupBarrier();
    return sum;
}

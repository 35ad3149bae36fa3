// Writes 1 for each invocation whose neighbours in the workgroup are also its neighbours in the
// subgroup.

@group(0) @binding(0) var<storage, read_write> y: array<u32>;

@compute @workgroup_size({{ROW}})
fn main(@builtin(local_invocation_index) t: u32) {
    var so = 1u;
    for (var by = 1u; by < {{NEAR}}u; by <<= 1u) {
        if (subgroupShuffleXor(t, by) != (t ^ by)) { so = 0u; }
    }
    y[t] = so;
}

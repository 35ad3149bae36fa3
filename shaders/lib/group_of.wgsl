// The expert of a row: the last non-empty one that begins at or before it.
fn group_of(row: u32) -> u32 {
    var low = 0u;
    var high = p.n_group;
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (starts[p.at_starts + middle] <= row) { low = middle; } else { high = middle; }
    }
    return low;
}

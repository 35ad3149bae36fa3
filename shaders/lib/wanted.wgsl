// Which neurons count, for which token and by what factor.

// The group of a row: the last one that begins at or before it and is not empty.
fn group_of(row: u32) -> u32 {
    var low = 0u;
    var high = p.n_group;
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (starts[p.at_starts + middle] <= row) { low = middle; } else { high = middle; }
    }
    return low;
}

// Whether a test value shows that a neuron does not count. Ways to skip: never, not positive, below `limit` in size after
// the activation, below the cut.
fn is_dropped(test: f32, limit: f32, cut: f32) -> bool {
    switch p.skip {
        case 0u: { return false; }
        case 1u: { return test <= 0.0; }
        case 2u: { return abs(activate(p.activation, test, p.alpha, p.cap)) < limit; }
        default: { return test < cut; }
    }
}

// The word of a neuron that was dropped: no value that is carried has it.
const DROPPED: u32 = 0x80000000u;

fn carried(value: f32) -> u32 { return select(bitcast<u32>(value), 0u, bitcast<u32>(value) == DROPPED); }

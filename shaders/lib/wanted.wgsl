// Decides which neurons are active, and marks skipped neurons.

// Whether a test value shows that a neuron is inactive. Skip rules: never, not positive, below
// `limit` in magnitude after the activation, below the cut.
fn is_dropped(test: f32, limit: f32, cut: f32) -> bool {
    switch p.skip {
        case 0u: { return false; }
        case 1u: { return test <= 0.0; }
        case 2u: { return abs(activate(p.activation, test, p.alpha, p.slope, p.cap)) < limit; }
        default: { return test < cut; }
    }
}

// Marks a skipped neuron: no active value has these bits.
const DROPPED: u32 = 0x80000000u;

fn carried(value: f32) -> u32 { return select(bitcast<u32>(value), 0u, bitcast<u32>(value) == DROPPED); }

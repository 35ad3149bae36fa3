// Whether a neuron is active for a token. A NaN score is detected by its bits, since drivers may
// optimise NaN comparisons away.
fn wants(token: u32, neuron: u32) -> bool {
    let score = scores[p.at_scores + token * p.n_ff + neuron];
    return score >= p.threshold || (bitcast<u32>(score) & 0x7fffffffu) > 0x7f800000u;
}

fn wanted(neuron: u32) -> bool {
    for (var token = 0u; token < p.n_tokens; token++) {
        if (wants(token, neuron)) { return true; }
    }
    return false;
}

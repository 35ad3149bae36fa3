//! The experts of a split layer on the CPU: used in place, in the file's matrices of all experts.
//!
//! A copy of the CPU's experts would take memory, and could not be read from disk on demand. So the
//! CPU's program computes over all experts of the layer, and the router's weights of experts on
//! other devices are 0 there: an expert of weight 0 is not computed, and its rows are not read.
//! Exchanged experts change only these weights.

/// The experts of a layer that the CPU uses in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldExperts {
    /// For each expert of the file, the number that the router knows it by; `None` for an expert on
    /// another device.
    numbers: Vec<Option<u32>>,
    n_per_expert: usize,
}

impl HeldExperts {
    /// The experts of a share, by the file's numbers. `neurons` are whole experts.
    pub(crate) fn new(n_expert: usize, n_per_expert: usize, neurons: &[u32]) -> HeldExperts {
        let mut held = HeldExperts { numbers: vec![None; n_expert], n_per_expert };
        for &first in neurons.iter().step_by(n_per_expert) {
            let expert = held.expert_of(first);
            held.numbers[expert] = Some(expert as u32);
        }
        held
    }

    /// The expert of a neuron.
    pub(crate) fn expert_of(&self, neuron: u32) -> usize {
        neuron as usize / self.n_per_expert
    }

    /// Whether the CPU has this expert.
    pub(crate) fn has(&self, expert: usize) -> bool {
        self.numbers.get(expert).is_some_and(Option::is_some)
    }

    /// Replaces the expert `from`, which moves to another device, by the expert `to`, which the
    /// router then knows by the number of `from`.
    pub(crate) fn replace(&mut self, from: usize, to: usize) {
        self.numbers[to] = self.numbers[from].take();
    }

    /// The router's weights for the CPU's program, `[n_tokens, n_expert]`, from those that the home
    /// device posted.
    pub(crate) fn weights(&self, posted: &[f32], out: &mut Vec<f32>) {
        out.clear();
        for token in posted.chunks_exact(self.numbers.len()) {
            let weight = |number: &Option<u32>| number.map_or(0.0, |n| token[n as usize]);
            out.extend(self.numbers.iter().map(weight));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_exchanged_experts() {
        let mut held = HeldExperts::new(4, 2, &[2, 3, 6, 7]);
        let mut out = Vec::new();
        held.weights(&[0.1, 0.2, 0.3, 0.4, 1.0, 2.0, 3.0, 4.0], &mut out);
        assert_eq!(out, [0.0, 0.2, 0.0, 0.4, 0.0, 2.0, 0.0, 4.0]);
        // The device takes expert 3 of the file and gives expert 0, now known as number 3.
        held.replace(3, 0);
        held.weights(&[0.1, 0.2, 0.3, 0.4], &mut out);
        assert_eq!(out, [0.4, 0.2, 0.0, 0.0]);
        assert!(held.has(0) && !held.has(3) && !held.has(9));
        assert_eq!(held.expert_of(7), 3);
    }
}

//! Predicts the active neurons of each token.

use hal::op::{HiddenActivation, Predict};
use hal::{Operand, RowSet, Slot, Tensor};

use super::Memory;
use super::matmul::{multiply, products};
use super::operands::{activations, optional_floats, words, write_words};

pub(super) fn predict(op: &Predict<Tensor>, memory: &dyn Memory) {
    let n_tokens = op.x.desc().n_rows;
    let format = op.fc2.desc().format;
    // NaN is kept, so it reaches the scores.
    let activate = |v: f64| match op.hidden {
        HiddenActivation::Relu if v <= 0.0 => 0.0,
        HiddenActivation::Relu | HiddenActivation::Linear => v as f32,
    };
    let scores = match &op.fc1 {
        None => products(memory, &op.fc2, &op.x),
        Some(fc1) => {
            let hidden = products(memory, fc1, &op.x).into_iter().map(|h| {
                let h: Vec<f32> = h.into_iter().map(activate).collect();
                activations(&h, format)
            });
            multiply(memory, &op.fc2, &hidden.collect::<Vec<_>>())
        }
    };
    let bias = optional_floats(memory, op.bias.as_ref());

    let mut resident = NeuronList::new(&op.resident);
    let mut absent = op.absent.as_ref().map(NeuronList::new);
    for (neuron, &slot) in words(memory, &op.slots).iter().enumerate() {
        let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[neuron]));
        let dropped = |t: usize| scores[t][neuron] + bias < f64::from(op.threshold);
        let active: Vec<bool> = (0..n_tokens).map(|t| !dropped(t)).collect();
        if active.contains(&true) {
            match (Slot::decode(slot), &mut absent) {
                (Slot::Resident(id), _) => resident.push(id, &active),
                (Slot::Absent(id), Some(absent)) => absent.push(id, &active),
                (Slot::Absent(_), None) => {}
            }
        }
    }
    resident.store(memory);
    if let Some(absent) = absent {
        absent.store(memory);
    }
}

struct NeuronList<'a> {
    set: &'a RowSet<Tensor>,
    ids: Vec<u32>,
    members: Vec<u32>,
}

impl<'a> NeuronList<'a> {
    fn new(set: &'a RowSet<Tensor>) -> NeuronList<'a> {
        NeuronList { set, ids: Vec::new(), members: Vec::new() }
    }

    fn push(&mut self, id: u32, active: &[bool]) {
        assert!(
            self.ids.len() < self.set.ids.desc().n_cols,
            "more active rows than the row set can hold"
        );
        let first = self.members.len();
        self.ids.push(id);
        self.members.resize(first + self.set.members.desc().n_cols, 0);
        for (t, _) in active.iter().enumerate().filter(|(_, active)| **active) {
            self.members[first + t / 32] |= 1 << (t % 32);
        }
    }

    fn store(&self, memory: &dyn Memory) {
        write_words(memory, &self.set.ids, &self.ids);
        write_words(memory, &self.set.count, &[self.ids.len() as u32]);
        write_words(memory, &self.set.members, &self.members);
    }
}

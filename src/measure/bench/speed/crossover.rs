//! Measures, for several tokens, the list length from which computing all rows is faster.
//!
//! Three runs over one matrix, each for all tokens: all rows without a list, a list of all rows,
//! and a list of every second row. The time of a list is assumed to be linear in its length; the
//! crossover is the length at which a list takes as long as all rows without one.

use hal::op::{Activation, Down, FfnKind, NEVER_DENSE, Skip, SparseFfn};
use hal::{Bytes, Device, Queue, Result, RowSet, Rows, Tensor};

use super::{MIN_SIZE, Probe, Shape};

/// Bytes of weights: larger than the caches, and enough for several matrices.
const SIZE: Bytes = Bytes(128 << 20);
/// A crossover above 1, which no list reaches: lists are never slower.
const NEVER: f64 = 2.0;
/// Computing all rows must be faster than a list by this factor. A smaller gain is within the noise
/// of the probe, and the choice would change from run to run.
const MIN_GAIN: f64 = 1.05;

/// For each number of tokens (2 to 16), the fraction of listed rows from which `device` computes
/// all rows of `shape` faster than the list; above 1 if lists are never slower.
///
/// Takes at most a quarter of the `free` memory, if that is known.
///
/// # Errors
/// Errors of the device, including unsupported ops.
pub fn dense_from<const N: usize>(
    device: &Device,
    shape: &Shape,
    n_tokens: [usize; N],
    free: Option<Bytes>,
) -> Result<[f64; N]> {
    let mut queue = device.queue("probe")?;
    let most = Bytes(free.map_or(u64::MAX, |free| free.0 / 4));
    let size = SIZE.min(shape.size).max(MIN_SIZE).min(most);
    let probe = Probe::new(device, shape, size, size)?;
    let mut shares = [NEVER; N];
    for (share, n) in shares.iter_mut().zip(n_tokens) {
        let tokens = ListProbe::new(&probe, &mut queue, n)?;
        let (full, half) = (tokens.every_nth(&mut queue, 1)?, tokens.every_nth(&mut queue, 2)?);
        let lists = [&full, &half].map(|set| tokens.time(&mut queue, set, NEVER_DENSE));
        let [full_list, half_list] = lists;
        *share = crossover(full_list?, half_list?, tokens.time(&mut queue, &full, 0.0)?);
    }
    Ok(shares)
}

/// The crossover, from the seconds of a list of all rows, of a list of half of them, and of all
/// rows without a list.
fn crossover(full_list: f64, half_list: f64, dense: f64) -> f64 {
    let dense = MIN_GAIN * dense;
    if dense >= full_list {
        return NEVER;
    }
    let share = 1.0 - 0.5 * (full_list - dense) / (full_list - half_list).max(1e-9);
    share.clamp(0.0, 1.0)
}

/// A step of `n` tokens over the probe's matrices, with and without lists of rows.
struct ListProbe<'a> {
    probe: &'a Probe,
    n: usize,
    x: Tensor,
    y: Tensor,
    active: Tensor,
    /// Biases so negative that every neuron is skipped after its gate, so that only the gate is
    /// measured.
    bias: Tensor,
}

impl ListProbe<'_> {
    fn new<'a>(probe: &'a Probe, queue: &mut Queue, n: usize) -> Result<ListProbe<'a>> {
        let n_embd = probe.shape.n_embd;
        let filled = |queue: &mut Queue, rows: usize, cols: usize, value: f32| -> Result<Tensor> {
            let tensor = probe.device.alloc_f32("probe", rows, cols)?;
            queue.write(&tensor, bytemuck::cast_slice(&vec![value; rows * cols]))?;
            Ok(tensor)
        };
        Ok(ListProbe {
            probe,
            n,
            x: filled(queue, n, n_embd, 0.5)?,
            y: filled(queue, n, n_embd, 0.0)?,
            active: filled(queue, 1, n, 0.0)?,
            bias: filled(queue, 1, probe.n_ff, -1e9)?,
        })
    }

    /// A list of every `step`-th row, for all tokens.
    fn every_nth(&self, queue: &mut Queue, step: usize) -> Result<RowSet<Tensor>> {
        let ids: Vec<u32> = (0..self.probe.n_ff as u32).step_by(step).collect();
        let set = self.probe.device.row_set(ids.len(), self.n)?;
        let all = (1u32 << self.n) - 1;
        queue.write(&set.ids, bytemuck::cast_slice(&ids))?;
        queue.write(&set.count, bytemuck::bytes_of(&(ids.len() as u32)))?;
        queue.write(&set.members, bytemuck::cast_slice(&vec![all; ids.len()]))?;
        Ok(set)
    }

    /// Seconds of the gate products with all matrices of the probe.
    fn time(&self, queue: &mut Queue, set: &RowSet<Tensor>, dense_from: f32) -> Result<f64> {
        let n_ff = self.probe.n_ff;
        let rows = |layer: &Tensor, i: usize| layer.rows(i % 3 * n_ff..(i % 3 + 1) * n_ff);
        let gates = self.probe.layers.iter().flat_map(|layer| (0..3).map(move |i| (layer, i)));
        let ops = gates.map(|(layer, i)| {
            let op = SparseFfn {
                gate: Some(rows(layer, i)),
                up: rows(layer, i + 1),
                down: rows(layer, i + 2),
                bias_gate: Some(self.bias.clone()),
                bias_up: None,
                bias_down: None,
                threshold: None,
                expert_weights: None,
                rows: Rows::Active(set.clone()),
                x: self.x.clone(),
                y: self.y.clone(),
                active: self.active.clone(),
                hits: None,
                union: None,
                kind: FfnKind::Gated,
                activation: Activation::Relu,
                skip: Skip::NotPositive,
                orientation: Down::ByNeuron,
                experts: None,
                dense_from,
                accumulate: false,
            };
            op.into()
        });
        let program = self.probe.program(ops.collect())?;
        self.probe.time(queue, &program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal::format::Format;

    #[test]
    fn the_crossover_is_where_both_times_are_equal() {
        let dense = |seconds: f64| seconds / MIN_GAIN;
        assert!((crossover(2.0, 1.0, dense(1.5)) - 0.75).abs() < 1e-9);
        assert!((crossover(2.0, 1.0, dense(0.5)) - 0.25).abs() < 1e-9);
        assert_eq!([crossover(2.0, 1.0, dense(2.0)), crossover(2.0, 1.5, 3.0)], [NEVER; 2]);
        assert_eq!(crossover(2.0, 1.0, 1.99), NEVER, "within the noise");
        assert_eq!(crossover(2.0, 1.9, 0.5), 0.0);
    }

    #[test]
    fn the_cpu_has_a_crossover_in_every_kind_of_format() {
        let cpu = runtime::devices::cpu(Some(1));
        for format in [Format::F16, Format::Q4_0, Format::Q6_K] {
            let size = Bytes(4 << 20);
            let shape = Shape { n_embd: 512, n_ff: 700, size, ..Shape::of_7b_model(format) };
            let shares = dense_from(&cpu, &shape, [2, 5, 16], None).unwrap();
            assert!(shares.iter().all(|share| (0.0..=NEVER).contains(share)), "{shares:?}");
        }
    }
}

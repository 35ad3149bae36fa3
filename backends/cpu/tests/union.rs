//! Small batches whose tokens use different neurons: lists of rows and dense passes give the same
//! bits for any overlap of the tokens' rows.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{Activation, Down, ExpertRanges, FfnKind, NEVER_DENSE, Skip, SparseFfn, UnionCounts};
use hal::{
    Bytes, Device, DeviceId, HostRows, Operand, PackDesc, Result, Rows, Source, Tensor, TensorDesc,
};
use thermocline_cpu::{CpuBackend, CpuOptions};

const N_EMBD: usize = 256;
/// Not a multiple of the rows per slice or per pass.
const N_FF: usize = 675;

/// Pseudo-random numbers in 0..1.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 24) as f32
    }
}

/// The rows of a feed-forward block that each token uses.
#[derive(Clone, Copy, Debug)]
enum Lists {
    /// All rows; the gate decides which neurons are active.
    None,
    /// Each row with this probability.
    Random(f32),
    /// Like `Random`, but not in ascending order.
    Shuffled(f32),
    /// The rows of the experts that a token uses, out of five experts.
    Experts,
}

struct FfnBlock {
    device: Device,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// Bits of `y` and of the counters of active neurons, and the union counts.
type Results = (Vec<u32>, UnionCounts);

impl FfnBlock {
    fn new(format: Format) -> Result<FfnBlock> {
        let backend = CpuBackend::new(CpuOptions { threads: Some(3), ..Default::default() });
        let device = Device::new(backend, DeviceId(0), Bytes::MAX);
        let matrix = |seed: u32| {
            let mut bytes = vec![0; format.row_bytes(N_EMBD).expect("whole blocks") * N_FF];
            let mut numbers = Numbers(seed);
            let values: Vec<f32> = (0..N_FF * N_EMBD).map(|_| numbers.next() - 0.5).collect();
            format.quantize(&values, &mut bytes);
            let rows = HostRows::new(Source::Owned(Arc::new(bytes)), N_FF, N_EMBD, format)?;
            let pack = PackDesc::whole(TensorDesc::new(N_FF, N_EMBD, format));
            device.import("weight", &pack, &rows)
        };
        let (gate, up, down) = (matrix(1)?, matrix(2)?, matrix(3)?);
        Ok(FfnBlock { device, gate, up, down })
    }

    fn filled_tensor(
        &self,
        rows: usize,
        cols: usize,
        f: impl FnMut(usize) -> f32,
    ) -> Result<Tensor> {
        let tensor = self.device.alloc_f32("values", rows, cols)?;
        let values: Vec<f32> = (0..rows * cols).map(f).collect();
        self.device.queue("fill")?.write(&tensor, bytemuck::cast_slice(&values))?;
        Ok(tensor)
    }

    fn run(&self, n: usize, lists: Lists, skip: Skip, dense_from: f32) -> Result<Results> {
        let mut numbers = Numbers(77);
        let x = self.filled_tensor(n, N_EMBD, |_| numbers.next() - 0.5)?;
        let y = self.filled_tensor(n, N_EMBD, |_| f32::NAN)?;
        let active = self.filled_tensor(1, n, |_| 0.0)?;
        let hits = self.filled_tensor(1, N_FF, |_| 0.0)?;
        let union = self.filled_tensor(1, UnionCounts::N, |_| 0.0)?;
        let mut queue = self.device.queue("test")?;
        let (mut rows, mut experts, mut weights) = (Rows::All, None, None);
        match lists {
            Lists::None => {}
            Lists::Random(share) | Lists::Shuffled(share) => {
                let mut listed: Vec<(u32, u32)> = Vec::new();
                for row in 0..N_FF as u32 {
                    let draw = |bits, t| bits | u32::from(numbers.next() < share) << t;
                    let bits = (0..n).fold(0, draw);
                    listed.extend((bits != 0).then_some((row, bits)));
                }
                if matches!(lists, Lists::Shuffled(_)) {
                    listed.sort_by_key(|(row, _)| row.wrapping_mul(2_654_435_761));
                }
                let set = self.device.row_set(N_FF, n)?;
                let count = listed.len() as u32;
                // Entries beyond `count` are invalid and must not be read.
                listed.resize(N_FF, (u32::MAX, u32::MAX));
                let (ids, members): (Vec<u32>, Vec<u32>) = listed.into_iter().unzip();
                queue.write(&set.ids, bytemuck::cast_slice(&ids))?;
                queue.write(&set.members, bytemuck::cast_slice(&members))?;
                queue.write(&set.count, bytemuck::bytes_of(&count))?;
                rows = Rows::Active(set);
            }
            Lists::Experts => {
                experts =
                    Some(ExpertRanges { starts: [0, 100, 100, 401, 440, 675].into(), n_used: 2 });
                let used =
                    |i: usize| [0.5, 0.0, 1.0, 0.0, 2.0][i % 5] * f32::from(!i.is_multiple_of(3));
                weights = Some(self.filled_tensor(n, 5, used)?);
            }
        }
        let mut record = self.device.record("test");
        record.push(SparseFfn {
            gate: Some(self.gate.clone()),
            up: self.up.clone(),
            down: self.down.clone(),
            bias_gate: None,
            bias_up: None,
            bias_down: None,
            threshold: None,
            expert_weights: weights,
            rows,
            x,
            y: y.clone(),
            active: active.clone(),
            hits: Some(hits.clone()),
            union: Some(union.clone()),
            kind: FfnKind::Gated,
            activation: Activation::Relu,
            skip,
            orientation: Down::ByNeuron,
            experts,
            dense_from,
            accumulate: false,
        })?;
        queue.replay(&record.finish()?)?.wait()?;
        let mut bits = Vec::new();
        for tensor in [&y, &active, &hits] {
            let mut values = vec![0.0f32; tensor.desc().n_rows * tensor.desc().n_cols];
            queue.read_f32(tensor, &mut values)?;
            assert!(values.iter().all(|value| value.is_finite()), "an output was not written");
            bits.extend(values.iter().map(|value| value.to_bits()));
        }
        let mut counts = [0.0; UnionCounts::N];
        queue.read_f32(&union, &mut counts)?;
        Ok((bits, counts.into()))
    }
}

#[test]
fn row_lists_and_dense_passes_give_the_same_bits() -> Result<()> {
    use Lists::{None, Random, Shuffled};
    let shares = [0.0, 0.02, 0.3, 0.9, 1.0].map(Random);
    for format in [Format::F16, Format::Q4_0, Format::Q8_0, Format::Q6_K] {
        let block = FfnBlock::new(format)?;
        for n in [2, 3, 5, 8, 13, 16] {
            for lists in shares.into_iter().chain([Shuffled(0.6), None, Lists::Experts]) {
                for skip in [Skip::NotPositive, Skip::Never] {
                    let case = format!("{format} {n} tokens {lists:?} {skip:?}");
                    let (expected, by_list) = block.run(n, lists, skip, NEVER_DENSE)?;
                    assert_eq!(by_list.dense, 0.0, "{case}");
                    for from in [0.0, 0.5, 1.0] {
                        let (bits, counts) = block.run(n, lists, skip, from)?;
                        assert!(bits == expected, "{case} from {from}");
                        assert_eq!(counts.active, by_list.active, "{case} from {from}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_share_of_needed_rows_selects_the_dense_pass() -> Result<()> {
    let block = FfnBlock::new(Format::Q4_0)?;
    let dense = |lists, skip, from| {
        let (bits, counts) = block.run(4, lists, skip, from)?;
        // A row has a hit if any token activated it.
        let hits = &bits[bits.len() - N_FF..];
        let hit = hits.iter().filter(|&&bits| f32::from_bits(bits) > 0.0).count();
        assert_eq!((counts.active, counts.neurons), (hit as f32, N_FF as f32));
        assert_eq!(counts.rows, 2.0 * counts.neurons);
        Result::Ok(counts.dense / counts.rows)
    };
    // A crossover of 0 forces the dense pass unless no token needs a row; NEVER_DENSE forces lists.
    assert_eq!(dense(Lists::Random(0.1), Skip::Never, 0.0)?, 1.0);
    assert_eq!(dense(Lists::Random(0.0), Skip::Never, 0.0)?, 0.0);
    assert_eq!(dense(Lists::Random(1.0), Skip::Never, NEVER_DENSE)?, 0.0);
    // A probability of 0.02 for each of four tokens lists 8 % of the rows, 0.9 lists nearly all.
    // The last slice has three rows.
    assert!(dense(Lists::Random(0.02), Skip::Never, 0.6)? < 0.01);
    assert_eq!(dense(Lists::Random(0.9), Skip::Never, 0.6)?, 1.0);
    // All rows of gate are needed, but only about 15 of 16 rows of up, so few slices of up need all
    // rows.
    let share = dense(Lists::None, Skip::NotPositive, 1.0)?;
    assert!((0.5..0.9).contains(&share), "{share}");
    Ok(())
}

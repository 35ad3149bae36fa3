//! Runs one case on the device and on the CPU.

use std::collections::HashMap;

use hal::format::Format;
use hal::op::{Down, OperandUse, Role};
use hal::{Device, Error, Op, OpDesc, Plan, Queue, Result, Tensor, TensorDesc};

use super::cases::{Case, is_product_of_same_x};
use super::compare::{Output, difference};
use super::contents::{Contents, Random, Step, contents};

/// Normalised mean squared error of results that differ only in the order of F32 sums, on both
/// devices. Products of truncated floats exceed it.
const TOLERANCE: f64 = 4e-7;
/// Of results between which activations are rounded to Q8: some fall on the next code.
const ROUNDED_TOLERANCE: f64 = 1e-5;
/// Of values that are stored with few bits, and of decisions: a value next to a limit may fall on
/// either side.
const COARSE_TOLERANCE: f64 = 1e-2;

/// The result of a case.
#[derive(Debug)]
pub(super) enum Tested {
    /// One of the two devices does not run the op.
    Skipped,
    Right {
        units: Vec<String>,
    },
    Wrong {
        units: Vec<String>,
        reason: String,
    },
}

/// An operand of one of the ops.
struct Place {
    name: &'static str,
    how: OperandUse,
    desc: TensorDesc,
    /// The tensor that it has: that of the operand itself, or of an earlier one.
    tensor: usize,
}

/// The operands of all ops in order, and what their tensors hold.
struct Prepared {
    places: Vec<Place>,
    contents: Vec<Contents>,
    step: Step,
}

/// Runs `case` on both devices and compares the results.
///
/// # Errors
/// Errors of the devices.
pub(super) fn test(device: &Device, cpu: &Device, case: &Case, seed: u64) -> Result<Tested> {
    let runs = |on: &Device, op| matches!(on.plan(op), Plan::Yes { .. });
    if !case.ops.iter().all(|op| runs(device, op) && runs(cpu, op)) {
        return Ok(Tested::Skipped);
    }
    // A context of a few positions does not hold the step.
    let Ok(prepared) = prepare(&case.ops, seed) else { return Ok(Tested::Skipped) };
    let (expected, _) = match run(cpu, case, &prepared) {
        Err(Error::Unsupported { .. }) => return Ok(Tested::Skipped),
        expected => expected?,
    };
    let (got, units) = run(device, case, &prepared)?;
    Ok(match difference(&expected, &got) {
        None => Tested::Right { units },
        Some(reason) => Tested::Wrong { units, reason },
    })
}

/// Draws the contents of all operands. An op's input is the result of the op before it if that has
/// the same shape; products next to each other have the same input; batches of the same shape, and
/// frequencies, are shared.
fn prepare(ops: &[OpDesc], seed: u64) -> Result<Prepared> {
    let mut random = Random::new(seed);
    let mut prepared = Prepared { places: Vec::new(), contents: Vec::new(), step: Step::of(ops) };
    let mut before = 0;
    for (number, op) in ops.iter().enumerate() {
        let first = prepared.places.len();
        let previous = number.checked_sub(1).map(|number| &ops[number]);
        let mut operands = Vec::new();
        op.visit(&mut |name, how, desc| operands.push((name, how, *desc)));
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (name, how, desc) in operands {
            let nth = seen.entry(name).or_default();
            let tensor =
                match earlier((previous, op), name, how, desc, &prepared.places, before..first) {
                    Some(tensor) => tensor,
                    None => {
                        let new =
                            contents((op, prepared.step), (name, *nth), how, desc, &mut random)?;
                        prepared.contents.push(new);
                        prepared.contents.len() - 1
                    }
                };
            *nth += 1;
            prepared.places.push(Place { name, how, desc, tensor });
        }
        before = first;
    }
    Ok(prepared)
}

/// The earlier tensor that an operand of an op shares. `before` are the places of the previous op's
/// operands.
fn earlier(
    (previous, op): (Option<&OpDesc>, &OpDesc),
    name: &str,
    how: OperandUse,
    desc: TensorDesc,
    places: &[Place],
    before: std::ops::Range<usize>,
) -> Option<usize> {
    let same = |place: &&Place| place.desc == desc;
    if how.role == Role::Batch || name == "freqs" {
        let mut all = places.iter().filter(same);
        return all
            .find(|place| place.how.role == how.role && place.name == name)
            .map(|p| p.tensor);
    }
    if matches!(op, Op::Rope(_)) {
        // Queries and keys are rotated next to each other.
        return None;
    }
    let input = if matches!(op, Op::StoreKv(_)) { "k" } else { "x" };
    if let (Some(Op::MatMul(first)), "x") = (previous, name)
        && is_product_of_same_x(first, op)
    {
        let mut inputs = places[before].iter().filter(same);
        return inputs.find(|place| place.name == name).map(|place| place.tensor);
    }
    let results = places[before].iter().rev().filter(same);
    let mut results = results.filter(|place| {
        place.how.role == Role::Values && place.how.writes() && ["x", "y"].contains(&place.name)
    });
    (name == input && how.role == Role::Values).then(|| results.next().map(|p| p.tensor))?
}

/// The results of `case` on `device`, and the kernel files that ran.
fn run(device: &Device, case: &Case, prepared: &Prepared) -> Result<(Vec<Output>, Vec<String>)> {
    let mut queue = device.queue("self-test")?;
    let mut tensors = Vec::new();
    for (number, contents) in prepared.contents.iter().enumerate() {
        tensors.push(match contents {
            Contents::Weights(rows, pack) => device.import("self-test", pack, rows)?,
            Contents::Plain(bytes) => {
                let place = prepared.places.iter().find(|place| place.tensor == number);
                let desc = place.map_or(TensorDesc::new(1, 1, Format::F32), |place| place.desc);
                let tensor = device.alloc("self-test", desc)?;
                queue.write(&tensor, bytes)?;
                tensor
            }
        });
    }
    let mut recorder = device.record("self-test");
    let mut places = prepared.places.iter();
    for op in &case.ops {
        let op: Op = op.map(&mut |_| {
            let place = places.next().expect("each op has the operands that it was prepared with");
            tensors[place.tensor].clone()
        });
        recorder.push(op)?;
    }
    let program = recorder.finish()?;
    queue.replay(&program)?.wait()?;
    let tolerance = if rounds(&case.ops) { ROUNDED_TOLERANCE } else { TOLERANCE };
    Ok((outputs(&mut queue, &tensors, prepared, tolerance)?, program.units()))
}

/// Whether results of one kernel are rounded before the next one reads them.
fn rounds(ops: &[OpDesc]) -> bool {
    match ops {
        [Op::SparseFfn(op)] => op.orientation == Down::AcrossNeurons,
        [Op::Predict(op)] => op.fc1.is_some(),
        [_] => false,
        _ => true,
    }
}

fn outputs(
    queue: &mut Queue,
    tensors: &[Tensor],
    prepared: &Prepared,
    tolerance: f64,
) -> Result<Vec<Output>> {
    let mut outputs = Vec::new();
    let mut lists: Vec<Vec<u8>> = Vec::new();
    // A device that never computes rows by list counts none.
    let written = prepared.places.iter().filter(|p| p.how.writes() && p.name != "union");
    for Place { name, how, desc, tensor } in written {
        let mut bytes = vec![0; desc.bytes().map_or(0, |bytes| bytes.0 as usize)];
        queue.read(&tensors[*tensor], &mut bytes)?;
        if how.role == Role::List {
            lists.push(bytes);
            if let [ids, count, members] = &lists[..] {
                let values = members_of(ids, count, members, prepared.step.n_tokens);
                outputs.push(Output { name, values, tolerance: COARSE_TOLERANCE });
                lists.clear();
            }
            continue;
        }
        let mut values = vec![0.0; desc.n_rows * desc.n_cols];
        if desc.format == Format::U32 {
            for (value, word) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as f32;
            }
        } else {
            desc.format.dequantize(&bytes, &mut values);
        }
        let coarse = desc.format.quants().is_some() || ["active", "hits"].contains(name);
        let tolerance = if coarse { COARSE_TOLERANCE } else { tolerance };
        outputs.push(Output { name, values, tolerance });
    }
    Ok(outputs)
}

/// A row list as a number for each row and token: 1 if the token needs the row.
fn members_of(ids: &[u8], count: &[u8], members: &[u8], n_tokens: usize) -> Vec<f32> {
    let word = |bytes: &[u8], at: usize| {
        bytes.chunks_exact(4).nth(at).map_or(0, |w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
    };
    let capacity = ids.len() / 4;
    let words = members.len() / 4 / capacity.max(1);
    let mut needed = vec![0.0; (capacity + 1) * n_tokens];
    for i in 0..(word(count, 0) as usize).min(capacity) {
        // Ids beyond the list's capacity count in the last row, where none belongs.
        let row = (word(ids, i) as usize).min(capacity);
        for token in 0..n_tokens {
            let bit = word(members, i * words + token / 32) >> (token % 32) & 1;
            needed[row * n_tokens + token] += bit as f32;
        }
    }
    needed
}

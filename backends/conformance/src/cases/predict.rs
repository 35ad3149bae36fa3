//! Predict.

use hal::format::Format;
use hal::op::{Hidden, Predict};
use hal::{PackDesc, Result, Slot};

use super::{WIDEST, widths};
use crate::Case;
use crate::rig::Rig;
use crate::weights::{Origin, host_rows, weight_formats};

const N_FF: usize = 131;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        // A score at the threshold may be decided either way; with these numbers of tokens none
        // occurs.
        for n_tokens in [1, 5, 17, 41, 515] {
            let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Odd::Nothing);
            cases.push(Case::new(format!("Predict/{format}/t{n_tokens}"), body));
            if n_tokens < 40 {
                let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Odd::Widest);
                cases.push(Case::new(format!("Predict/{format}/widest/t{n_tokens}"), body));
            }
            // Without ReLU scores lie closer to the threshold; among enough tokens some reach it.
            if n_tokens < 100 {
                let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Odd::Linear);
                cases.push(Case::new(format!("Predict/{format}/linear/t{n_tokens}"), body));
                let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Odd::OneMatrix);
                cases.push(Case::new(format!("Predict/{format}/one-matrix/t{n_tokens}"), body));
            }
        }
    }
    let odd = [
        ("all-resident", Odd::AllResident),
        ("none-wanted", Odd::Threshold(f32::INFINITY)),
        ("all-wanted", Odd::Threshold(f32::NEG_INFINITY)),
        ("nan-weight", Odd::NanWeight),
        ("nan-input", Odd::NanInput),
    ];
    for (name, odd) in odd {
        for n_tokens in [3, 40] {
            let body = move |rig: &mut Rig| predict(rig, Format::F32, n_tokens, odd);
            cases.push(Case::new(format!("Predict/F32/{name}/t{n_tokens}"), body));
        }
    }
    cases
}

#[derive(Clone, Copy, PartialEq)]
enum Odd {
    Nothing,
    /// Both matrices have rows of [`WIDEST`] values.
    Widest,
    /// No ReLU, and a bias for each neuron.
    Linear,
    /// The second matrix is multiplied with the input itself; with a bias.
    OneMatrix,
    AllResident,
    Threshold(f32),
    /// One row of the second matrix gives NaN scores.
    NanWeight,
    /// One token is all NaN, so all neurons are active for it.
    NanInput,
}

fn predict(rig: &mut Rig, format: Format, n_tokens: usize, odd: Odd) -> Result<()> {
    let [rank, n_embd] = if odd == Odd::Widest { [WIDEST; 2] } else { widths(format) };
    let mut values = rig.rng.floats(n_tokens * n_embd);
    if odd == Odd::NanInput {
        values[n_embd..2 * n_embd].fill(f32::NAN);
    }
    let x = rig.tensor(n_tokens, n_embd, &values)?;
    let fc1 = rig.weight(rank, n_embd, format)?;
    let fc2 = match odd {
        Odd::NanWeight => {
            let mut values = rig.rng.floats(N_FF * rank);
            values[7 * rank..][..rank].fill(f32::NAN);
            let bytes = crate::rig::f32_bytes(&values);
            let source = host_rows(bytes, N_FF, rank, Format::F32, Origin::Owned)?;
            rig.device.import("fc2", &PackDesc::whole(source.desc()), &source)?
        }
        Odd::OneMatrix => rig.weight(N_FF, n_embd, format)?,
        Odd::Nothing
        | Odd::Widest
        | Odd::Linear
        | Odd::AllResident
        | Odd::Threshold(_)
        | Odd::NanInput => rig.weight(N_FF, rank, format)?,
    };
    let (mut here, mut there) = (0, 0);
    let mut slot = |_| {
        if odd == Odd::AllResident || rig.rng.chance(0.6) {
            here += 1;
            Slot::Resident(here - 1).encode()
        } else {
            there += 1;
            Slot::Absent(there - 1).encode()
        }
    };
    let slots: Vec<u32> = (0..N_FF).map(&mut slot).collect();
    let slots = rig.words(1, N_FF, &slots)?;
    let resident = rig.row_set(N_FF, n_tokens, &[], 0, &|_, _| false)?;
    let absent = match odd {
        Odd::AllResident => None,
        Odd::Nothing
        | Odd::Widest
        | Odd::Linear
        | Odd::OneMatrix
        | Odd::Threshold(_)
        | Odd::NanWeight
        | Odd::NanInput => Some(rig.row_set(N_FF, n_tokens, &[], 0, &|_, _| false)?),
    };
    // The count must be written even if no neuron is active.
    for set in [Some(&resident), absent.as_ref()].into_iter().flatten() {
        rig.queue.write(&set.count, &[9, 0, 0, 0])?;
    }
    let threshold = if let Odd::Threshold(threshold) = odd { threshold } else { 0.05 };
    let (mut bias, mut hidden) = (None, Hidden::Relu);
    if matches!(odd, Odd::Linear | Odd::OneMatrix) {
        bias = Some(rig.input(1, N_FF)?);
        hidden = Hidden::Linear;
    }
    let op = Predict {
        x: x.clone(),
        fc1: (odd != Odd::OneMatrix).then_some(fc1),
        fc2,
        bias,
        slots,
        resident: resident.clone(),
        absent: absent.clone(),
        threshold,
        hidden,
    };
    rig.run([op.into()])?;
    rig.watch_bits("x", &x)?;
    rig.watch_set("resident", &resident)?;
    absent.map_or(Ok(()), |absent| rig.watch_set("absent", &absent))
}

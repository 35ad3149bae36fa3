//! Cases of Predict.

use hal::format::Format;
use hal::op::{HiddenActivation, Predict};
use hal::{PackDesc, Result, Slot};

use super::{WIDEST, widths};
use crate::Case;
use crate::rig::Rig;
use crate::weights::{Origin, host_rows, weight_formats};

const N_FF: usize = 131;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        // Rounding may push a score that is close to the threshold to either side of it. With these
        // numbers of tokens no score is that close.
        for n_tokens in [1, 5, 17, 41, 515] {
            let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Variant::Standard);
            cases.push(Case::new(format!("Predict/{format}/t{n_tokens}"), body));
            if n_tokens < 40 {
                let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Variant::Widest);
                cases.push(Case::new(format!("Predict/{format}/widest/t{n_tokens}"), body));
            }
            // Without ReLU, scores are closer to the threshold, so fewer tokens are safe.
            if n_tokens < 100 {
                let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Variant::Linear);
                cases.push(Case::new(format!("Predict/{format}/linear/t{n_tokens}"), body));
                let body = move |rig: &mut Rig| predict(rig, format, n_tokens, Variant::OneMatrix);
                cases.push(Case::new(format!("Predict/{format}/one-matrix/t{n_tokens}"), body));
            }
        }
    }
    let variants = [
        ("all-resident", Variant::AllResident),
        ("none-wanted", Variant::Threshold(f32::INFINITY)),
        ("all-wanted", Variant::Threshold(f32::NEG_INFINITY)),
        ("nan-weight", Variant::NanWeight),
        ("nan-input", Variant::NanInput),
    ];
    for (name, variant) in variants {
        for n_tokens in [3, 40] {
            let body = move |rig: &mut Rig| predict(rig, Format::F32, n_tokens, variant);
            cases.push(Case::new(format!("Predict/F32/{name}/t{n_tokens}"), body));
        }
    }
    cases
}

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Standard,
    /// Both matrices have rows of [`WIDEST`] values.
    Widest,
    /// No ReLU, and a bias for each neuron.
    Linear,
    /// Only `fc2`, which is multiplied with the input itself, and a bias for each neuron.
    OneMatrix,
    AllResident,
    Threshold(f32),
    /// One row of the second matrix gives NaN scores.
    NanWeight,
    /// One token is all NaN, so all neurons are active for it.
    NanInput,
}

fn predict(rig: &mut Rig, format: Format, n_tokens: usize, variant: Variant) -> Result<()> {
    let [rank, n_embd] = if variant == Variant::Widest { [WIDEST; 2] } else { widths(format) };
    let mut values = rig.rng.floats(n_tokens * n_embd);
    if variant == Variant::NanInput {
        values[n_embd..2 * n_embd].fill(f32::NAN);
    }
    let x = rig.tensor(n_tokens, n_embd, &values)?;
    let fc1 = rig.weight(rank, n_embd, format)?;
    let fc2 = match variant {
        Variant::NanWeight => {
            let mut values = rig.rng.floats(N_FF * rank);
            values[7 * rank..][..rank].fill(f32::NAN);
            let bytes = crate::rig::f32_bytes(&values);
            let source = host_rows(bytes, N_FF, rank, Format::F32, Origin::Owned)?;
            rig.device.import("fc2", &PackDesc::whole(source.desc()), &source)?
        }
        Variant::OneMatrix => rig.weight(N_FF, n_embd, format)?,
        Variant::Standard
        | Variant::Widest
        | Variant::Linear
        | Variant::AllResident
        | Variant::Threshold(_)
        | Variant::NanInput => rig.weight(N_FF, rank, format)?,
    };
    let (mut n_resident, mut n_absent) = (0, 0);
    let mut slot = |_| {
        if variant == Variant::AllResident || rig.rng.chance(0.6) {
            n_resident += 1;
            Slot::Resident(n_resident - 1).encode()
        } else {
            n_absent += 1;
            Slot::Absent(n_absent - 1).encode()
        }
    };
    let slots: Vec<u32> = (0..N_FF).map(&mut slot).collect();
    let slots = rig.words(1, N_FF, &slots)?;
    let resident = rig.row_set(N_FF, n_tokens, &[], 0, &|_, _| false)?;
    let absent = match variant {
        Variant::AllResident => None,
        Variant::Standard
        | Variant::Widest
        | Variant::Linear
        | Variant::OneMatrix
        | Variant::Threshold(_)
        | Variant::NanWeight
        | Variant::NanInput => Some(rig.row_set(N_FF, n_tokens, &[], 0, &|_, _| false)?),
    };
    // The count must be written even if no neuron is active.
    for set in [Some(&resident), absent.as_ref()].into_iter().flatten() {
        rig.queue.write(&set.count, &[9, 0, 0, 0])?;
    }
    let threshold = if let Variant::Threshold(threshold) = variant { threshold } else { 0.05 };
    let (mut bias, mut hidden) = (None, HiddenActivation::Relu);
    if matches!(variant, Variant::Linear | Variant::OneMatrix) {
        bias = Some(rig.input(1, N_FF)?);
        hidden = HiddenActivation::Linear;
    }
    let op = Predict {
        x: x.clone(),
        fc1: (variant != Variant::OneMatrix).then_some(fc1),
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

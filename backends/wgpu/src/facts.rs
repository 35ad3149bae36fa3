//! Facts about a device for planning and lowering: limits, optional features, tuning constants.

use hal::{Bytes, TensorDesc};

use crate::buffer::{rounded, stored_size};
use layout::imported_size;

/// Bytes of immediates (push constants) per dispatch; every driver supports at least this many.
pub(crate) const IMMEDIATES: u32 = 128;

/// Constant facts about an open device. Absent on purpose: 16-bit floats in shaders. Weights and
/// caches of 16 bits are unpacked by one instruction that every device has, and sums are 32 bits
/// for precision.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Its limits.
    pub(crate) limits: wgpu::Limits,
    /// Constants of its class.
    pub(crate) tuning: Tuning,
    /// Subgroup size for sums ([`crate::probe`]); `None`: sums go through workgroup memory.
    pub(crate) near: Option<u32>,
    /// Limit on the multiplications of a submission, and of a product in it, for more than one
    /// token ([`crate::work`]).
    pub(crate) most_work: u64,
}

/// Constants per class of devices. They affect speed, and the order of sums on that device;
/// nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Workgroup size of elementwise shaders.
    pub(crate) flat: u32,
    /// Workgroup size for the sum of one row.
    pub(crate) row: u32,
    /// Number of workgroups that fill the device.
    pub(crate) fill: u32,
}

/// Few large workgroups, since a software driver runs them in a loop.
const SOFTWARE: Tuning = Tuning { flat: 64, row: 64, fill: 16 };
/// By PCI vendor id.
const MAKERS: [(u32, Tuning); 4] = [
    (0x10de, Tuning { flat: 256, row: 128, fill: 1024 }), // NVIDIA
    (0x1002, Tuning { flat: 256, row: 128, fill: 512 }),  // AMD
    (0x8086, Tuning { flat: 128, row: 64, fill: 256 }),   // Intel
    (0x106b, Tuning { flat: 256, row: 128, fill: 256 }),  // Apple
];
const OTHERS: Tuning = Tuning { flat: 128, row: 64, fill: 256 };

impl Tuning {
    /// The constants for a vendor's PCI number.
    pub(crate) fn of(vendor: u32, software: bool) -> Tuning {
        let maker = MAKERS.iter().find(|(number, _)| *number == vendor);
        match maker {
            _ if software => SOFTWARE,
            Some((_, tuning)) => *tuning,
            None => OTHERS,
        }
    }

    /// The constants of every class without duplicates, those of software drivers first. Any
    /// device can be opened with any of them ([`crate::Options::tuning`]), so that a card's
    /// constants can be tested without the card.
    #[must_use]
    pub fn classes() -> Vec<Tuning> {
        let mut classes = vec![SOFTWARE];
        for tuning in MAKERS.iter().map(|(_, tuning)| *tuning).chain([OTHERS]) {
            if !classes.contains(&tuning) {
                classes.push(tuning);
            }
        }
        classes
    }
}

impl Facts {
    /// Why no buffer can hold a tensor of this shape; `None` if one can. A possible weight counts
    /// with its imported size if that is larger.
    pub(crate) fn too_large(&self, operand: &str, desc: &TensorDesc) -> Option<String> {
        let imported = if desc.format.is_weight() { imported_size(desc) } else { Some(0) };
        let sizes = stored_size(desc).zip(imported);
        let size = sizes.map_or(Bytes::MAX, |(stored, imported)| rounded(stored.0.max(imported)));
        let limit = Bytes(self.limits.max_buffer_size);
        (size > limit)
            .then(|| format!("operand {operand} takes {size}, but a buffer holds at most {limit}"))
    }

    /// Why one binding cannot cover all of a tensor; `None` if it can. For ops that do not split
    /// an operand by rows.
    pub(crate) fn unbindable(&self, operand: &str, desc: &TensorDesc) -> Option<String> {
        let size = stored_size(desc).unwrap_or(Bytes::MAX);
        // A view may begin at an offset that is not aligned for a binding.
        let limit = Bytes(self.max_binding());
        (size > limit)
            .then(|| format!("operand {operand} takes {size}, but an op binds at most {limit}"))
    }

    /// Largest size of a view that one binding can cover at any offset.
    pub(crate) fn max_binding(&self) -> u64 {
        let align = u64::from(self.limits.min_storage_buffer_offset_alignment);
        self.limits.max_storage_buffer_binding_size.saturating_sub(align) & !255
    }

    /// A grid of at least `n` workgroups: the shader computes its index as `x + y * (groups in x)`
    /// and returns early past the end.
    pub(crate) fn grid(&self, n: usize) -> [u32; 3] {
        let most = self.limits.max_compute_workgroups_per_dimension as usize;
        let y = n.div_ceil(most).max(1);
        [n.div_ceil(y) as u32, y as u32, 1]
    }
}

#[cfg(test)]
mod tests {
    use hal::PackDesc;
    use hal::format::Format;

    use super::*;
    use crate::layout;

    /// Every planned op can be imported: the size limit of a buffer is checked when planning.
    #[test]
    fn a_weight_is_too_large_as_it_is_imported() {
        let (n_rows, n_cols) = (1000, 96);
        for format in Format::ALL.iter().copied().filter(|format| format.is_weight()) {
            let n_cols = n_cols.max(format.block_values() * 3);
            let desc = TensorDesc::new(n_rows, n_cols, format);
            let size = layout::size(&PackDesc::whole(desc)).0;
            let facts = |most: u64| Facts {
                limits: wgpu::Limits { max_buffer_size: most, ..wgpu::Limits::default() },
                tuning: Tuning::of(0, true),
                near: None,
                most_work: u64::MAX,
            };
            assert_eq!(facts(size).too_large("w", &desc), None, "{format}");
            assert!(facts(size - 1).too_large("w", &desc).is_some(), "{format}");
        }
    }
}

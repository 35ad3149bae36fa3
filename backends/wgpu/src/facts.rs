//! Facts about a device for planning and lowering: limits, optional features, tuning constants.

use hal::{Bytes, TensorDesc};

use crate::buffer::{rounded, stored_size};
use layout::imported_size;

/// Bytes of immediates (push constants) per dispatch. Devices that support fewer are refused.
pub(crate) const IMMEDIATES: u32 = 128;

/// Constant facts about an open device. Support of 16-bit floats is not among them: shaders unpack
/// 16-bit weights and caches without it, and sums are F32 for precision.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The limits that the device was opened with.
    pub(crate) limits: wgpu::Limits,
    pub(crate) tuning: Tuning,
    /// Subgroup size for sums ([`crate::probe`]); `None` if sums use workgroup memory.
    pub(crate) subgroup_size: Option<u32>,
    /// With more than one token, the maximum number of multiplications of a submission, and of a
    /// dispatch of a matrix product without experts ([`crate::work`]).
    pub(crate) max_work: u64,
}

/// Tuning constants of a class of devices. They affect only speed and the order of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Workgroup size of elementwise shaders.
    pub(crate) flat: u32,
    /// Workgroup size for the sum of one row.
    pub(crate) row: u32,
    /// Number of workgroups that fill the device.
    pub(crate) fill: u32,
    /// Maximum number of queries that share keys in a workgroup of attention, a power of two. Each
    /// is code of its own.
    pub(crate) queries: u32,
    /// The same for one token, which waits for memory more than it computes: more waves can be worth
    /// more than fewer loads.
    pub(crate) queries_of_one: u32,
    /// Whether products and attention load several rows or units before they multiply, which is code
    /// for each.
    pub(crate) loads_ahead: bool,
}

/// For software drivers: few workgroups, since the driver runs them in a loop, and short code, since
/// the driver's compiler is slow and a processor does not wait for loads as a GPU does.
const SOFTWARE: Tuning =
    Tuning { flat: 64, row: 64, fill: 16, queries: 2, queries_of_one: 2, loads_ahead: false };
/// The constants of a class of cards that waits for memory, with as many queries as their registers
/// hold.
const fn card(flat: u32, row: u32, fill: u32) -> Tuning {
    Tuning { flat, row, fill, queries: 8, queries_of_one: 8, loads_ahead: true }
}

/// Tuning constants by PCI vendor id. Eight queries of one token take up the registers of AMD cards:
/// half as many waves run (`docs/measurements/gpu.md`).
const VENDORS: [(u32, Tuning); 4] = [
    (0x10de, card(256, 128, 1024)), // NVIDIA
    (0x1002, Tuning { queries_of_one: 4, ..card(256, 128, 512) }), // AMD
    (0x8086, card(128, 64, 256)),   // Intel
    (0x106b, card(256, 128, 256)),  // Apple
];
const OTHER_VENDORS: Tuning = card(128, 64, 256);

impl Tuning {
    /// The constants for a PCI vendor id.
    pub(crate) fn of(vendor: u32, software: bool) -> Tuning {
        let found = VENDORS.iter().find(|(id, _)| *id == vendor);
        match found {
            _ if software => SOFTWARE,
            Some((_, tuning)) => *tuning,
            None => OTHER_VENDORS,
        }
    }

    /// The distinct constants of all classes; those of software drivers come first. Every device
    /// can be opened with each of them ([`crate::Options::tuning`]), so that a vendor's constants
    /// can be tested without its card.
    #[must_use]
    pub fn classes() -> Vec<Tuning> {
        let mut classes = vec![SOFTWARE];
        for tuning in VENDORS.iter().map(|(_, tuning)| *tuning).chain([OTHER_VENDORS]) {
            if !classes.contains(&tuning) {
                classes.push(tuning);
            }
        }
        classes
    }

    /// Whether the shaders have the same workgroup sizes, so that only the number of workgroups of
    /// a sparse FFN can differ.
    #[must_use]
    pub fn has_workgroups_of(&self, other: &Tuning) -> bool {
        Tuning { fill: other.fill, ..*self } == *other
    }
}

impl Facts {
    /// Why no buffer can hold a tensor of this shape; `None` if a buffer can. A tensor in a weight
    /// format counts with its imported size if that is larger.
    pub(crate) fn too_large(&self, operand: &str, desc: &TensorDesc) -> Option<String> {
        let imported = if desc.format.is_weight() { imported_size(desc) } else { Some(0) };
        let sizes = stored_size(desc).zip(imported);
        let size = sizes.map_or(Bytes::MAX, |(stored, imported)| rounded(stored.0.max(imported)));
        let limit = Bytes(self.limits.max_buffer_size);
        (size > limit)
            .then(|| format!("operand {operand} needs {size}, but a buffer holds at most {limit}"))
    }

    /// Why one binding cannot cover a whole tensor; `None` if it can. Only for operands that are
    /// not split by rows.
    pub(crate) fn binding_refusal(&self, operand: &str, desc: &TensorDesc) -> Option<String> {
        let size = stored_size(desc).unwrap_or(Bytes::MAX);
        // A view may begin at an offset that is not aligned for a binding.
        let limit = Bytes(self.max_binding());
        (size > limit).then(|| {
            format!("operand {operand} needs {size}, but a binding covers at most {limit}")
        })
    }

    /// Maximum size in bytes of a view that one binding can cover at any offset.
    pub(crate) fn max_binding(&self) -> u64 {
        let align = u64::from(self.limits.min_storage_buffer_offset_alignment);
        self.limits.max_storage_buffer_binding_size.saturating_sub(align) & !255
    }

    /// A grid of at least `n` workgroups. The shader computes the index of its workgroup as
    /// `x + y * (workgroups in x)` and returns if that is not below `n`.
    pub(crate) fn grid(&self, n: usize) -> [u32; 3] {
        let limit = self.limits.max_compute_workgroups_per_dimension as usize;
        let y = n.div_ceil(limit).max(1);
        [n.div_ceil(y) as u32, y as u32, 1]
    }
}

#[cfg(test)]
mod tests {
    use hal::PackDesc;
    use hal::format::Format;

    use super::*;
    use crate::layout;

    /// If a plan accepts a weight, its import fits a buffer.
    #[test]
    fn a_weight_counts_with_its_imported_size() {
        let (n_rows, n_cols) = (1000, 96);
        for format in Format::ALL.iter().copied().filter(|format| format.is_weight()) {
            let n_cols = n_cols.max(format.block_values() * 3);
            let desc = TensorDesc::new(n_rows, n_cols, format);
            let size = layout::size(&PackDesc::whole(desc)).0;
            let facts = |most: u64| Facts {
                limits: wgpu::Limits { max_buffer_size: most, ..wgpu::Limits::default() },
                tuning: Tuning::of(0, true),
                subgroup_size: None,
                max_work: u64::MAX,
            };
            assert_eq!(facts(size).too_large("w", &desc), None, "{format}");
            assert!(facts(size - 1).too_large("w", &desc).is_some(), "{format}");
        }
    }
}

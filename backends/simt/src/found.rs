//! Devices that a vendor's driver lists, before any is opened.

use std::ffi::c_int;

use hal::Bytes;

/// A device that a vendor's driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// `CUDA0`, `HIP1`, ...: numbered by PCI slot.
    pub name: String,
    /// The name that the driver reports, the architecture and the memory.
    pub description: String,
    /// Physical memory.
    pub memory: Bytes,
    /// The PCI slot, `0000:01:00.0`; empty if the driver does not report a slot.
    pub pci: String,
    /// Why the device cannot be used; `None` if it can.
    pub refusal: Option<String>,
    /// The driver's index of the device.
    pub ordinal: c_int,
}

/// Sorts devices by PCI slot and names them, `CUDA0` first.
pub fn sort_and_name(prefix: &str, mut found: Vec<FoundDevice>) -> Vec<FoundDevice> {
    found.sort_by(|a, b| (&a.pci, a.ordinal).cmp(&(&b.pci, b.ordinal)));
    for (number, device) in found.iter_mut().enumerate() {
        device.name = format!("{prefix}{number}");
    }
    found
}

/// Normalises the spelling of a PCI slot: `00000000:3B:00.0` becomes `0000:3b:00.0`.
#[must_use]
pub fn normalise_pci_slot(text: &str) -> String {
    let text = text.trim().to_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) => {
            let short = domain.trim_start_matches('0');
            format!("{short:0>4}:{rest}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_slots_are_normalised() {
        for text in ["00000000:3B:00.0", "0000:3b:00.0", "0:3b:00.0\n"] {
            assert_eq!(normalise_pci_slot(text), "0000:3b:00.0");
        }
        assert_eq!(normalise_pci_slot("00010000:01:00.0"), "10000:01:00.0");
        assert_eq!(normalise_pci_slot(""), "");
    }

    #[test]
    fn devices_are_numbered_by_slot() {
        let found = |ordinal, pci: &str| FoundDevice {
            name: String::new(),
            description: String::new(),
            memory: Bytes(1),
            pci: pci.to_owned(),
            refusal: None,
            ordinal,
        };
        let devices = vec![found(0, "0000:81:00.0"), found(1, "0000:01:00.0"), found(2, "")];
        let named: Vec<_> =
            sort_and_name("CUDA", devices).into_iter().map(|f| (f.name, f.ordinal)).collect();
        let expected = [("CUDA0", 2), ("CUDA1", 1), ("CUDA2", 0)];
        assert_eq!(named, expected.map(|(name, ordinal)| (name.to_owned(), ordinal)));
    }
}

//! Memory and bandwidth of common graphics cards, by their vendors' data sheets, for `--assume`.

use crate::AssumedDevice;

/// Share of a card's nominal bandwidth that kernels which only read reach.
const REACHED: f64 = 0.9;

/// Name, GiB of memory and GB/s of nominal bandwidth.
const CARDS: [(&str, u64, f64); 48] = [
    ("rtx2060", 6, 336.0),
    ("rtx2080ti", 11, 616.0),
    ("rtx3050", 8, 224.0),
    ("rtx3060", 12, 360.0),
    ("rtx3060ti", 8, 448.0),
    ("rtx3070", 8, 448.0),
    ("rtx3080", 10, 760.0),
    ("rtx3090", 24, 936.0),
    ("rtx3090ti", 24, 1008.0),
    ("rtx4060", 8, 272.0),
    ("rtx4060ti", 8, 288.0),
    ("rtx4060ti16gb", 16, 288.0),
    ("rtx4070", 12, 504.0),
    ("rtx4070super", 12, 504.0),
    ("rtx4070ti", 12, 504.0),
    ("rtx4070tisuper", 16, 672.0),
    ("rtx4080", 16, 717.0),
    ("rtx4080super", 16, 736.0),
    ("rtx4090", 24, 1008.0),
    ("rtx5060", 8, 448.0),
    ("rtx5060ti", 8, 448.0),
    ("rtx5060ti16gb", 16, 448.0),
    ("rtx5070", 12, 672.0),
    ("rtx5070ti", 16, 896.0),
    ("rtx5080", 16, 960.0),
    ("rtx5090", 32, 1792.0),
    ("gtx1080ti", 11, 484.0),
    ("p40", 24, 347.0),
    ("t4", 16, 320.0),
    ("l4", 24, 300.0),
    ("l40s", 48, 864.0),
    ("a10", 24, 600.0),
    ("rtxa6000", 48, 768.0),
    ("a100", 80, 2039.0),
    ("h100", 80, 3350.0),
    ("h200", 141, 4800.0),
    ("rx6700xt", 12, 384.0),
    ("rx6800xt", 16, 512.0),
    ("rx6900xt", 16, 512.0),
    ("rx7600", 8, 288.0),
    ("rx7800xt", 16, 624.0),
    ("rx7900xt", 20, 800.0),
    ("rx7900xtx", 24, 960.0),
    ("rx9070xt", 16, 640.0),
    ("mi50", 32, 1024.0),
    ("mi300x", 192, 5300.0),
    ("a770", 16, 560.0),
    ("b580", 12, 456.0),
];

/// The names of all known cards.
pub fn known_cards() -> impl Iterator<Item = &'static str> {
    CARDS.iter().map(|(name, ..)| *name)
}

impl AssumedDevice {
    /// A copy with the memory and bandwidth of the card of this name, such as `RTX 4090` or
    /// `rx7900xtx`, where these are not set.
    pub(crate) fn with_known_values(&self) -> AssumedDevice {
        let name = self.name.as_deref().map(plain).unwrap_or_default();
        let card = CARDS.iter().find(|(known, ..)| *known == name);
        AssumedDevice {
            memory: self.memory.or(card.map(|(_, gib, _)| gib << 30)),
            bandwidth: self.bandwidth.or(card.map(|(_, _, rate)| REACHED * rate * 1e9)),
            ..self.clone()
        }
    }
}

/// A card's name without case, separators and its vendor's words.
fn plain(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let vendors = ["nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "intel", "arc"];
    words.filter(|word| !vendors.contains(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(name: &str, memory: Option<u64>) -> (Option<u64>, Option<f64>) {
        let name = Some(name.to_owned());
        let device = AssumedDevice { name, memory, ..AssumedDevice::default() };
        let known = device.with_known_values();
        (known.memory, known.bandwidth)
    }

    #[test]
    fn a_card_is_known_by_any_spelling() {
        let expected = (Some(24 << 30), Some(0.9 * 1008e9));
        for name in ["rtx4090", "RTX 4090", "NVIDIA GeForce RTX-4090"] {
            assert_eq!(filled(name, None), expected, "{name}");
        }
        assert_eq!(filled("Radeon RX 7900 XTX", Some(1)), (Some(1), Some(0.9 * 960e9)));
        assert_eq!(filled("card", None), (None, None));
        assert!(known_cards().all(|name| plain(name) == name));
    }
}

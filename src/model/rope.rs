//! RoPE with every supported scaling, as one frequency per pair of values.

use hal::op::Pairing;

use super::hyper::Keys;
use super::rope_scaling::{Frequencies, Scaling, base};
use super::{Error, LocalRope};

/// The parameters of the [`hal::op::Rope`] op.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position for each pair, `n_rot / 2`.
    freqs: Vec<f32>,
    /// A number of tokens, and the frequencies for longer contexts (LongRoPE); `None` if all
    /// contexts have the same frequencies.
    long: Option<(usize, Vec<f32>)>,
    /// Which two values of a head are rotated together.
    pub pairing: Pairing,
    /// Factor on the rotated values.
    pub scale: f32,
}

/// Divisors of the frequencies in the file, one per pair, all positive.
#[derive(Debug, Default)]
pub(super) struct Factors {
    /// `rope_freqs.weight` (Llama 3) or `rope_factors_short.weight` (Phi 3); `None` if the file has
    /// neither.
    pub(super) short: Option<Vec<f32>>,
    /// `rope_factors_long.weight`, for contexts longer than the original context size; `None` if
    /// the file has none.
    pub(super) long: Option<Vec<f32>>,
}

impl RopeTable {
    /// Radians per position for each pair in a context of `n_ctx` tokens.
    #[must_use]
    pub fn freqs(&self, n_ctx: usize) -> &[f32] {
        match &self.long {
            Some((from, freqs)) if n_ctx > *from => freqs,
            Some(_) | None => &self.freqs,
        }
    }

    /// RoPE of layers without a sliding window, for `n_rot` values per head.
    pub(super) fn global(
        keys: &Keys<'_>,
        scaling: &Scaling,
        n_rot: usize,
        factors: &Factors,
    ) -> Result<RopeTable, Error> {
        RopeTable::scaled(scaling, &scaling.global, n_rot, factors).checked(keys)
    }

    /// RoPE of layers with a sliding window, for `n_rot` values per head. The base is
    /// `rope.freq_base_swa`, else the family's default, else the global base.
    pub(super) fn local_rope(
        keys: &Keys<'_>,
        scaling: &Scaling,
        n_rot: usize,
        factors: &Factors,
        kind: LocalRope,
    ) -> Result<RopeTable, Error> {
        let own = base(keys, "rope.freq_base_swa")?;
        let table = match kind {
            LocalRope::Scaled => {
                let base = own.unwrap_or(scaling.local.base);
                let local = Frequencies { base, ..scaling.local };
                RopeTable::scaled(scaling, &local, n_rot, factors)
            }
            LocalRope::Unscaled { base } => {
                let base = own.or(base).unwrap_or(scaling.local.base);
                let local = Frequencies { base, factor: 1.0 };
                RopeTable::scaled(scaling, &local, n_rot, &Factors::default())
            }
        };
        table.checked(keys)
    }

    /// The table for pairs of `pairing`.
    pub(super) fn paired(self, pairing: Pairing) -> RopeTable {
        RopeTable { pairing, ..self }
    }

    /// The table with a frequency of 0 for the pairs that `keeps` rejects: RoPE does not rotate
    /// these pairs.
    pub(super) fn mask_pairs(mut self, keeps: impl Fn(usize) -> bool) -> RopeTable {
        let all = [Some(&mut self.freqs), self.long.as_mut().map(|(_, freqs)| freqs)];
        for freqs in all.into_iter().flatten() {
            let refused = freqs.iter_mut().enumerate().filter(|(pair, _)| !keeps(*pair));
            refused.for_each(|(_, freq)| *freq = 0.0);
        }
        self
    }

    fn scaled(
        scaling: &Scaling,
        frequencies: &Frequencies,
        n_rot: usize,
        factors: &Factors,
    ) -> RopeTable {
        let freqs = |factors: Option<&[f32]>| {
            let unscaled = unscaled_freqs(n_rot, frequencies.base, factors);
            scaling.interpolate(frequencies, &unscaled)
        };
        let long = factors.long.as_deref();
        RopeTable {
            freqs: freqs(factors.short.as_deref()),
            pairing: Pairing::Adjacent,
            long: long.map(|long| (scaling.n_ctx_short, freqs(Some(long)))),
            scale: scaling.magnitude(frequencies),
        }
    }

    /// Rejects keys that are valid one by one but give a frequency or factor that is not finite.
    fn checked(self, keys: &Keys<'_>) -> Result<RopeTable, Error> {
        let long = self.long.iter().flat_map(|(_, freqs)| freqs);
        let mut all = self.freqs.iter().chain(long).chain([&self.scale]).copied();
        let wrong = all.find(|value| !value.is_finite());
        drop(all);
        match wrong {
            Some(value) => {
                Err(keys.wrong_key("rope.freq_base", "a base that gives finite frequencies", value))
            }
            None => Ok(self),
        }
    }
}

/// The unscaled frequencies `base^(-2j / n_rot)`, computed by repeated multiplication, divided by
/// the file's factors.
fn unscaled_freqs(n_rot: usize, base: f32, factors: Option<&[f32]>) -> Vec<f32> {
    let step = base.powf(-2.0 / n_rot as f32);
    let mut freq = 1.0f32;
    (0..n_rot / 2)
        .map(|j| {
            let this = freq / factors.map_or(1.0, |factors| factors[j]);
            freq *= step;
            this
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use gguf::{Container, File, Value, Writer};

    use super::super::{RopeOverrides, YarnLog};
    use super::*;

    /// Numbers that a file may contain, including unusual ones.
    fn number() -> impl Strategy<Value = f32> {
        let odd = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3e38, f32::NAN, f32::INFINITY];
        prop_oneof![proptest::sample::select(odd.to_vec()), 0.01f32..1e6, any::<f32>()]
    }

    /// The table of a file with scaling of type `kind` by a factor of 4, and one more key.
    fn table(kind: &str, key: &str, number: f32) -> Result<RopeTable, Error> {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("a.rope.scaling.type", kind).unwrap();
        writer.set("a.rope.scaling.factor", 4.0_f32).unwrap();
        writer.set(&format!("a.rope.scaling.{key}"), number).unwrap();
        let file = File::from_vec(writer.in_memory().unwrap().finish().unwrap(), "f").unwrap();
        let keys = Keys { metadata: file.metadata(), arch: "a", file: "f" };
        let scaling = Scaling::read(&keys, 64, true, YarnLog::Ignored, &RopeOverrides::default())?;
        RopeTable::global(&keys, &scaling, 64, &Factors::default())
    }

    #[test]
    fn unsupported_yarn_factors_are_rejected() {
        let usual = [("yarn", 1.0), ("linear", 0.0), ("yarn", -1.0), ("linear", -1.0)];
        for (kind, factor) in usual {
            let same = table(kind, "yarn_attn_factor", 1.0).unwrap();
            assert_eq!(table(kind, "yarn_ext_factor", factor).unwrap(), same);
        }
        for (kind, factor) in [("yarn", 0.0), ("yarn", 0.5), ("linear", 1.0), ("yarn", f32::NAN)] {
            let error = table(kind, "yarn_ext_factor", factor).unwrap_err().to_string();
            assert!(error.contains("a.rope.scaling.yarn_ext_factor"), "{error}");
        }
        let error = table("yarn", "yarn_attn_factor", 1.2).unwrap_err().to_string();
        assert!(error.contains("a.rope.scaling.yarn_attn_factor"), "{error}");
        // Supported keys change the table.
        for key in ["yarn_beta_fast", "yarn_beta_slow", "attn_factor"] {
            let (one, other) = (table("yarn", key, 1.5).unwrap(), table("yarn", key, 4.0).unwrap());
            assert_ne!(one, other, "{key}");
        }
    }

    proptest! {
        #[test]
        fn unusual_numbers_are_rejected_or_give_finite_tables(
            numbers in proptest::collection::vec(proptest::option::of(number()), 6),
            kind in proptest::sample::select(vec!["none", "linear", "longrope", "yarn"]),
            factors in proptest::option::of(proptest::collection::vec(number(), 32)),
            (pairs, n_ctx_train) in (1usize..=32, 1usize..1 << 24),
        ) {
            let keys = [
                "freq_base_swa", "freq_base", "scaling.factor", "scaling.attn_factor", "scaling.yarn_beta_fast",
                "scaling.yarn_beta_slow",
            ];
            let mut writer = Writer::new(Container::Gguf);
            writer.set("a.rope.scaling.type", Value::from(kind)).unwrap();
            for (key, number) in keys.iter().zip(&numbers) {
                if let Some(number) = number {
                    writer.set(&format!("a.rope.{key}"), Value::from(*number)).unwrap();
                }
            }
            let file = File::from_vec(writer.in_memory().unwrap().finish().unwrap(), "f").unwrap();
            let keys = Keys { metadata: file.metadata(), arch: "a", file: "f" };
            let overrides = RopeOverrides::default();
            let Ok(scaling) = Scaling::read(&keys, n_ctx_train, true, YarnLog::Ignored, &overrides) else {
                return Ok(());
            };
            let factors = factors.map(|factors| factors[..pairs].to_vec());
            let long = factors.clone();
            let factors = Factors { short: factors, long };
            for table in [
                RopeTable::global(&keys, &scaling, 2 * pairs, &factors),
                RopeTable::local_rope(&keys, &scaling, 2 * pairs, &factors, LocalRope::Scaled),
                RopeTable::local_rope(&keys, &scaling, 2 * pairs, &factors, LocalRope::Unscaled { base: Some(10_000.0) }),
            ].into_iter().flatten() {
                prop_assert!(table.scale.is_finite(), "scale {}", table.scale);
                for n_ctx in [1, 1 << 25] {
                    prop_assert_eq!(table.freqs(n_ctx).len(), pairs);
                    prop_assert!(table.freqs(n_ctx).iter().all(|f| f.is_finite()), "{:?}", table);
                }
            }
        }
    }
}

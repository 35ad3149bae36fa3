//! RoPE with every supported scaling, as one frequency per pair of values.

use std::f32::consts::PI;

use super::Error;
use super::hyper::Keys;

/// The parameters of the [`hal::op::Rope`] op.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position for each pair, `n_rot / 2`.
    freqs: Vec<f32>,
    /// A number of tokens, and the frequencies for longer contexts (LongRoPE); `None` if all
    /// contexts have the same frequencies.
    long: Option<(usize, Vec<f32>)>,
    /// Factor on the rotated values.
    pub scale: f32,
}

/// Sizes that determine the frequencies.
#[derive(Clone, Copy, Debug)]
pub(super) struct RopeSizes {
    /// Values of a head that RoPE is applied to.
    pub(super) n_rot: usize,
    /// Context size of the training, in tokens.
    pub(super) n_ctx_train: usize,
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

struct Yarn {
    factor: f32,
    attention: f32,
    fast: f32,
    slow: f32,
    n_ctx_orig: f32,
    base: f32,
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

    /// RoPE of layers without a sliding window: reads the base and the scaling keys.
    pub(super) fn global(
        keys: &Keys<'_>,
        sizes: RopeSizes,
        factors: &Factors,
    ) -> Result<RopeTable, Error> {
        let base = base(keys, "rope.freq_base")?.unwrap_or(10_000.0);
        RopeTable::scaled(keys, sizes, factors, base)
    }

    /// RoPE of layers with a sliding window. The base is `rope.freq_base_swa`, else `default`, else
    /// the global base. A family with a `default` does not scale this RoPE.
    pub(super) fn local_rope(
        keys: &Keys<'_>,
        sizes: RopeSizes,
        factors: &Factors,
        default: Option<f32>,
    ) -> Result<RopeTable, Error> {
        let own = base(keys, "rope.freq_base_swa")?;
        match (own, default) {
            (None, None) => RopeTable::global(keys, sizes, factors),
            (Some(base), None) => RopeTable::scaled(keys, sizes, factors, base),
            (own, Some(default)) => {
                let freqs = unscaled_freqs(sizes.n_rot, own.unwrap_or(default), None);
                RopeTable { freqs, long: None, scale: 1.0 }.checked(keys)
            }
        }
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
        keys: &Keys<'_>,
        sizes: RopeSizes,
        factors: &Factors,
        base: f32,
    ) -> Result<RopeTable, Error> {
        let factor = match keys.f32("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => keys.f32("rope.scale_linear")?,
        };
        let factor = factor.unwrap_or(1.0);
        let factor = if factor == 0.0 { 1.0 } else { factor };
        if !is_positive(factor) {
            return Err(keys.wrong_key("rope.scaling.factor", "a positive number", factor));
        }
        let number = |key: &str, default: f32| match keys.f32(key)?.unwrap_or(default) {
            value if is_positive(value) => Ok(value),
            value => Err(keys.wrong_key(key, "a positive number", value)),
        };
        let attention = number("rope.scaling.attn_factor", 1.0)?;
        let kind = keys.text("rope.scaling.type")?.unwrap_or("linear");
        check_yarn(keys, kind == "yarn")?;
        let orig = keys.count("rope.scaling.original_context_length")?;
        let orig = orig.unwrap_or(sizes.n_ctx_train);
        let linear = |factors: Option<&[f32]>, factor: f32| -> Vec<f32> {
            unscaled_freqs(sizes.n_rot, base, factors).iter().map(|freq| freq / factor).collect()
        };
        let short = factors.short.as_deref();
        let long = factors.long.as_deref();
        let table = match kind {
            "none" => RopeTable { freqs: linear(short, 1.0), long: None, scale: 1.0 },
            // Older files have a factor but no type: their scaling is linear.
            "linear" | "llama3" | "longrope" => RopeTable {
                freqs: linear(short, factor),
                long: long.map(|long| (orig, linear(Some(long), factor))),
                scale: attention,
            },
            "yarn" => {
                let yarn = Yarn {
                    factor,
                    attention,
                    fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
                    slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
                    n_ctx_orig: orig as f32,
                    base,
                };
                yarn.table(&unscaled_freqs(sizes.n_rot, base, short))
            }
            other => {
                let found = format!("`{other}`");
                let expected = "none, linear, longrope or yarn";
                return Err(keys.wrong_key("rope.scaling.type", expected, found));
            }
        };
        table.checked(keys)
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

/// Rejects YaRN keys that no known model uses: an extrapolation factor other than 1 (other than 0
/// without YaRN), and a second attention factor.
fn check_yarn(keys: &Keys<'_>, is_yarn: bool) -> Result<(), Error> {
    let usual = [
        ("rope.scaling.yarn_ext_factor", if is_yarn { 1.0 } else { 0.0 }),
        ("rope.scaling.yarn_attn_factor", 1.0),
    ];
    for (key, usual) in usual {
        match keys.f32(key)? {
            None => {}
            // A negative number means that the key is not set.
            Some(value) if value == usual || value < 0.0 => {}
            Some(value) => return Err(keys.wrong_key(key, usual, value)),
        }
    }
    Ok(())
}

fn base(keys: &Keys<'_>, key: &str) -> Result<Option<f32>, Error> {
    match keys.f32(key)? {
        Some(base) if !is_positive(base) => Err(keys.wrong_key(key, "a positive number", base)),
        base => Ok(base),
    }
}

pub(super) fn is_positive(value: f32) -> bool {
    value > 0.0 && value.is_finite()
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

impl Yarn {
    /// YaRN (Peng et al. 2023) interpolates low frequencies, keeps high ones, and blends those in
    /// between.
    fn table(&self, unscaled: &[f32]) -> RopeTable {
        let n_rot = (2 * unscaled.len()) as f32;
        let correction_dim =
            |beta: f32| n_rot * (self.n_ctx_orig / (beta * 2.0 * PI)).ln() / (2.0 * self.base.ln());
        let low = correction_dim(self.fast).floor().max(0.0);
        let high = correction_dim(self.slow).ceil().min(n_rot - 1.0);
        let freqs = unscaled.iter().enumerate().map(|(j, &freq)| {
            let ramp = (j as f32 - low) / (high - low).max(0.001);
            let keep = 1.0 - ramp.clamp(0.0, 1.0);
            freq / self.factor * (1.0 - keep) + freq * keep
        });
        let scale = self.attention * (1.0 + 0.1 * self.factor.ln());
        RopeTable { freqs: freqs.collect(), long: None, scale }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use gguf::{Container, File, Value, Writer};

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
        RopeTable::global(&keys, sizes(32, 64), &Factors::default())
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

    fn sizes(pairs: usize, n_ctx_train: usize) -> RopeSizes {
        RopeSizes { n_rot: 2 * pairs, n_ctx_train }
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
            let sizes = sizes(pairs, n_ctx_train);
            let factors = factors.map(|factors| factors[..pairs].to_vec());
            let long = factors.clone();
            let factors = Factors { short: factors, long };
            for table in [
                RopeTable::global(&keys, sizes, &factors),
                RopeTable::local_rope(&keys, sizes, &factors, None),
                RopeTable::local_rope(&keys, sizes, &factors, Some(10_000.0)),
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

//! Every rule that scales rotary positions, folded into one frequency per pair of values.

use std::f32::consts::PI;

use super::Error;
use super::hyper::{Hyper, Keys};

/// What the [`hal::op::Rope`] op needs.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position for each pair, `n_rot / 2`.
    pub freqs: Vec<f32>,
    /// Magnitude of the turned values.
    pub scale: f32,
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
    /// Reads the scaling keys. `factors` are the file's `rope_freqs.weight` (Llama 3), one per pair.
    pub(super) fn read(
        keys: &Keys<'_>,
        hyper: &Hyper,
        factors: Option<&[f32]>,
    ) -> Result<RopeTable, Error> {
        let base = keys.f32("rope.freq_base")?.unwrap_or(10_000.0);
        if !is_positive(base) {
            return Err(keys.wrong("rope.freq_base", "a positive number", base));
        }
        if let Some(wrong) = factors.and_then(|list| list.iter().find(|&&f| !is_positive(f))) {
            return Err(Error::Values {
                file: keys.file.to_owned(),
                tensor: "rope_freqs.weight".to_owned(),
                expected: "positive numbers",
                found: wrong.to_string(),
            });
        }
        let factor = match keys.f32("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => keys.f32("rope.scale_linear")?,
        };
        let factor = factor.unwrap_or(1.0);
        let factor = if factor == 0.0 { 1.0 } else { factor };
        if !is_positive(factor) {
            return Err(keys.wrong("rope.scaling.factor", "a positive number", factor));
        }
        let plain = plain(hyper.n_rot, base, factors);
        let linear = |factor: f32| plain.iter().map(|freq| freq / factor).collect();
        let table = match keys.text("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(RopeTable { freqs: linear(1.0), scale: 1.0 }),
            // The type was added after the factor: a factor without a type is linear.
            "linear" | "llama3" => Ok(RopeTable { freqs: linear(factor), scale: 1.0 }),
            "yarn" => {
                let orig = keys.count("rope.scaling.original_context_length")?;
                let number = |key: &str, default: f32| match keys.f32(key)?.unwrap_or(default) {
                    value if is_positive(value) => Ok(value),
                    value => Err(keys.wrong(key, "a positive number", value)),
                };
                let yarn = Yarn {
                    factor,
                    attention: number("rope.scaling.attn_factor", 1.0)?,
                    fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
                    slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
                    n_ctx_orig: orig.unwrap_or(hyper.n_ctx_train) as f32,
                    base,
                };
                Ok(yarn.table(&plain))
            }
            other => {
                let found = format!("`{other}`");
                Err(keys.wrong("rope.scaling.type", "none, linear or yarn", found))
            }
        }?;
        // Each number may be sane and their product not.
        let wrong = table.freqs.iter().copied().chain([table.scale]).find(|v| !v.is_finite());
        match wrong {
            Some(value) => {
                Err(keys.wrong("rope.freq_base", "a base with finite frequencies", value))
            }
            None => Ok(table),
        }
    }
}

fn is_positive(value: f32) -> bool {
    value > 0.0 && value.is_finite()
}

/// `base^(-2j / n_rot)`, by repeated multiplication, divided by the file's factors.
fn plain(n_rot: usize, base: f32, factors: Option<&[f32]>) -> Vec<f32> {
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
    /// YaRN (Peng et al. 2023): low frequencies are interpolated, high ones are not, those between are mixed.
    fn table(&self, plain: &[f32]) -> RopeTable {
        let n_rot = (2 * plain.len()) as f32;
        let turns =
            |beta: f32| n_rot * (self.n_ctx_orig / (beta * 2.0 * PI)).ln() / (2.0 * self.base.ln());
        let low = turns(self.fast).floor().max(0.0);
        let high = turns(self.slow).ceil().min(n_rot - 1.0);
        let freqs = plain.iter().enumerate().map(|(j, &freq)| {
            let ramp = (j as f32 - low) / (high - low).max(0.001);
            let keep = 1.0 - ramp.clamp(0.0, 1.0);
            freq / self.factor * (1.0 - keep) + freq * keep
        });
        let scale = self.attention * (1.0 + 0.1 * self.factor.ln());
        RopeTable { freqs: freqs.collect(), scale }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::gguf::{Container, File, Value, Writer};

    use super::*;

    /// Numbers that a file may hold, the odd ones first.
    fn number() -> impl Strategy<Value = f32> {
        let odd = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3e38, f32::NAN, f32::INFINITY];
        prop_oneof![proptest::sample::select(odd.to_vec()), 0.01f32..1e6, any::<f32>()]
    }

    proptest! {
        #[test]
        fn odd_numbers_are_refused_or_give_finite_tables(
            numbers in proptest::collection::vec(proptest::option::of(number()), 5),
            kind in proptest::sample::select(vec!["none", "linear", "yarn"]),
            factors in proptest::option::of(proptest::collection::vec(number(), 32)),
            (pairs, n_ctx_train) in (1usize..=32, 1usize..1 << 24),
        ) {
            let keys = [
                "freq_base", "scaling.factor", "scaling.attn_factor", "scaling.yarn_beta_fast",
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
            let hyper = Hyper {
                n_layer: 1, n_embd: 64, n_head: 1, n_head_kv: 1, d_head: 64, n_ff: 1, n_ctx_train,
                eps: 0.0, n_rot: 2 * pairs, window: None,
            };
            let factors = factors.map(|factors| factors[..pairs].to_vec());
            if let Ok(table) = RopeTable::read(&keys, &hyper, factors.as_deref()) {
                prop_assert_eq!(table.freqs.len(), pairs);
                prop_assert!(table.scale.is_finite(), "scale {}", table.scale);
                prop_assert!(table.freqs.iter().all(|freq| freq.is_finite()), "{:?}", table.freqs);
            }
        }
    }
}

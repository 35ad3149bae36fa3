//! How RoPE's frequencies are scaled: the keys of the file, and the settings of the user that
//! replace them, with llama.cpp's meaning and defaults.

use std::f32::consts::PI;

use super::hyper::{Keys, MAX_SIZE};
use super::{Error, YarnLog};

/// A method of extending the context by scaling RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies are divided by the factor.
    Linear,
    /// Low frequencies are divided by the factor, high ones are kept (YaRN).
    Yarn,
}

/// RoPE settings of the user. `None` keeps the setting of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeOverrides {
    /// Method of scaling.
    pub scaling: Option<RopeScaling>,
    /// Base of the frequencies, above 0. Layers with a sliding window keep the file's base if the
    /// model also has layers with global attention.
    pub freq_base: Option<f32>,
    /// Factor on the frequencies, above 0: 0.25 extends the context by 4. The same layers as for
    /// [`RopeOverrides::freq_base`] keep the file's factor.
    pub freq_scale: Option<f32>,
    /// YaRN: context size of the original training, in tokens, at least 1.
    pub yarn_orig_ctx: Option<usize>,
    /// YaRN: weight of the unscaled frequencies, at least 0; 0 divides all frequencies by the
    /// factor.
    pub yarn_ext_factor: Option<f32>,
    /// Factor on the rotated values, at least 0. As in llama.cpp, it has an effect only if the
    /// extrapolation factor is 0.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN: pairs that rotate less often than this in the original context are scaled; above 0.
    pub yarn_beta_slow: Option<f32>,
    /// YaRN: pairs that rotate more often than this in the original context are kept; above 0.
    pub yarn_beta_fast: Option<f32>,
}

impl RopeOverrides {
    /// Whether the settings change anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == RopeOverrides::default()
    }

    fn check(&self) -> Result<(), Error> {
        const ABOVE: &str = "a number above 0";
        let above = [
            ("rope_freq_base", self.freq_base),
            ("rope_freq_scale", self.freq_scale),
            ("yarn_beta_slow", self.yarn_beta_slow),
            ("yarn_beta_fast", self.yarn_beta_fast),
        ];
        for (setting, value) in above {
            if let Some(found) = value.filter(|value| !is_positive(*value)) {
                return Err(Error::Rope { setting, expected: ABOVE, found });
            }
        }
        let from_0 = [
            ("yarn_ext_factor", self.yarn_ext_factor),
            ("yarn_attn_factor", self.yarn_attn_factor),
        ];
        for (setting, value) in from_0 {
            let wrong = |value: &f32| !(*value >= 0.0 && value.is_finite());
            if let Some(found) = value.filter(wrong) {
                let expected = "a finite number of at least 0";
                return Err(Error::Rope { setting, expected, found });
            }
        }
        if self.yarn_orig_ctx == Some(0) {
            let setting = "yarn_orig_ctx";
            return Err(Error::Rope { setting, expected: "at least 1 token", found: 0.0 });
        }
        Ok(())
    }
}

/// What the unscaled frequencies of a kind of layer are made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frequencies {
    /// Base of the frequencies.
    pub(super) base: f32,
    /// Context extension: divisor of the interpolated frequencies.
    pub(super) factor: f32,
}

/// The scaling of a model's RoPE.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scaling {
    /// Layers with global attention, or all layers.
    pub(super) global: Frequencies,
    /// Layers with a sliding window.
    pub(super) local: Frequencies,
    /// Context size in tokens above which the file's long factors apply.
    pub(super) n_ctx_short: usize,
    /// Context size of the training in tokens, with the extension by the user.
    pub(super) n_ctx_train: usize,
    /// YaRN: weight of the unscaled frequencies.
    extrapolation: f32,
    /// Factor on the rotated values, without YaRN's own.
    attention: f32,
    fast: f32,
    slow: f32,
    /// YaRN: context size of the original training, in tokens.
    n_ctx_orig: f32,
    /// YaRN: `mscale_all_dim` of the model's configuration; 0 if the file does not have it.
    all_dims: f32,
    log: YarnLog,
}

impl Scaling {
    /// Reads the keys of the file and applies the overrides. `keeps_local`: layers with a sliding
    /// window keep the frequencies of the file.
    pub(super) fn read(
        keys: &Keys<'_>,
        n_ctx_train: usize,
        keeps_local: bool,
        log: YarnLog,
        overrides: &RopeOverrides,
    ) -> Result<Scaling, Error> {
        overrides.check()?;
        let stated = match keys.f32("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => keys.f32("rope.scale_linear")?,
        };
        // Some files state 0 when there is no scaling.
        let stated = stated.filter(|factor| *factor != 0.0).unwrap_or(1.0);
        if !is_positive(stated) {
            return Err(keys.wrong_key("rope.scaling.factor", "a positive number", stated));
        }
        let number = |key: &str, default: f32| match keys.f32(key)?.unwrap_or(default) {
            value if is_positive(value) => Ok(value),
            value => Err(keys.wrong_key(key, "a positive number", value)),
        };
        let of_file = scaling_of_file(keys)?;
        check_yarn(keys, of_file == RopeScaling::Yarn)?;
        let scaling = overrides.scaling.unwrap_or(of_file);
        let base = base(keys, "rope.freq_base")?.unwrap_or(10_000.0);
        let file = match of_file {
            RopeScaling::None => Frequencies { base, factor: 1.0 },
            RopeScaling::Linear | RopeScaling::Yarn => Frequencies { base, factor: stated },
        };
        let global = Frequencies {
            base: overrides.freq_base.unwrap_or(base),
            factor: match scaling {
                RopeScaling::None => 1.0,
                RopeScaling::Linear | RopeScaling::Yarn => {
                    overrides.freq_scale.map_or(stated, f32::recip)
                }
            },
        };
        let n_ctx_short = keys.count("rope.scaling.original_context_length")?;
        let n_ctx_short = n_ctx_short.unwrap_or(n_ctx_train);
        let n_ctx_orig = overrides.yarn_orig_ctx.unwrap_or(n_ctx_short);
        let extrapolation = overrides.yarn_ext_factor;
        let extrapolation =
            extrapolation.unwrap_or(if scaling == RopeScaling::Yarn { 1.0 } else { 0.0 });
        let n_ctx_train = if global.factor == file.factor && overrides.yarn_orig_ctx.is_none() {
            n_ctx_train
        } else if scaling == RopeScaling::Yarn {
            context(n_ctx_orig, global.factor)
        } else {
            context(n_ctx_train, global.factor / file.factor)
        };
        Ok(Scaling {
            global,
            local: if keeps_local { file } else { global },
            n_ctx_short,
            n_ctx_train,
            extrapolation,
            attention: number("rope.scaling.attn_factor", 1.0)?
                * overrides.yarn_attn_factor.filter(|_| extrapolation == 0.0).unwrap_or(1.0),
            fast: match overrides.yarn_beta_fast {
                Some(fast) => fast,
                None => number("rope.scaling.yarn_beta_fast", 32.0)?,
            },
            slow: match overrides.yarn_beta_slow {
                Some(slow) => slow,
                None => number("rope.scaling.yarn_beta_slow", 1.0)?,
            },
            n_ctx_orig: n_ctx_orig as f32,
            all_dims: match log {
                YarnLog::Ignored => 0.0,
                YarnLog::Ratio => log_multiplier(keys)?,
                YarnLog::Scores => log_multiplier(keys)? / 0.1,
            },
            log,
        })
    }

    /// The same scaling of frequencies of another base in layers without a window.
    pub(super) fn with_global_base(&self, base: f32) -> Scaling {
        Scaling { global: Frequencies { base, ..self.global }, ..self.clone() }
    }

    /// The scaled frequencies of `unscaled` ones. YaRN (Peng et al. 2023) interpolates low
    /// frequencies, keeps high ones, and blends those in between.
    pub(super) fn interpolate(&self, frequencies: &Frequencies, unscaled: &[f32]) -> Vec<f32> {
        let Frequencies { base, factor } = *frequencies;
        if self.extrapolation == 0.0 {
            return unscaled.iter().map(|freq| freq / factor).collect();
        }
        let n_rot = (2 * unscaled.len()) as f32;
        let correction_dim =
            |beta: f32| n_rot * (self.n_ctx_orig / (beta * 2.0 * PI)).ln() / (2.0 * base.ln());
        let low = correction_dim(self.fast).floor().max(0.0);
        let high = correction_dim(self.slow).ceil().min(n_rot - 1.0);
        let freqs = unscaled.iter().enumerate().map(|(j, &freq)| {
            let ramp = (j as f32 - low) / (high - low).max(0.001);
            let keep = (1.0 - ramp.clamp(0.0, 1.0)) * self.extrapolation;
            freq / factor * (1.0 - keep) + freq * keep
        });
        freqs.collect()
    }

    /// Factor on the attention scores (DeepSeek's YaRN), as in llama.cpp.
    pub(super) fn score_factor(&self) -> f32 {
        let log = self.global.factor.ln();
        let rotated = if self.extrapolation == 0.0 {
            self.attention * (1.0 + 0.1 * log)
        } else {
            self.magnitude(&self.global)
        };
        (rotated * (1.0 + 0.1 * self.all_dims * log)).powi(2)
    }

    /// Factor on the rotated values. YaRN's own, `1 + 0.1 ln(factor)`, is at least 1 in global
    /// layers, as in llama.cpp.
    pub(super) fn magnitude(&self, frequencies: &Frequencies) -> f32 {
        if self.extrapolation == 0.0 {
            return self.attention;
        }
        let by_factor = |factor: f32| 1.0 + 0.1 * factor.ln();
        let scaled = |scale: f32| 1.0 + 0.1 * scale * self.global.factor.max(1.0).ln();
        let own = match self.log {
            // llama.cpp takes the same scale for both in DeepSeek's models.
            YarnLog::Scores if self.all_dims != 0.0 => 1.0,
            YarnLog::Ratio if self.all_dims != 0.0 => scaled(1.0) / scaled(self.all_dims),
            YarnLog::Ignored | YarnLog::Scores | YarnLog::Ratio => scaled(1.0),
        };
        let bounded = own / by_factor(self.global.factor);
        self.attention * bounded * by_factor(frequencies.factor)
    }
}

/// The file's method of scaling. Phi 3's and Llama 3's methods are linear, with factors per
/// frequency in tensors.
fn scaling_of_file(keys: &Keys<'_>) -> Result<RopeScaling, Error> {
    // Older files have a factor but no type: their scaling is linear.
    match keys.text("rope.scaling.type")?.unwrap_or("linear") {
        "none" => Ok(RopeScaling::None),
        "linear" | "llama3" | "longrope" => Ok(RopeScaling::Linear),
        "yarn" => Ok(RopeScaling::Yarn),
        other => {
            let expected = "none, linear, longrope or yarn";
            Err(keys.wrong_key("rope.scaling.type", expected, format!("`{other}`")))
        }
    }
}

/// Rejects YaRN keys that no known model uses: an extrapolation factor other than 1 (other than 0
/// without YaRN), and a second attention factor other than 1.
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

fn log_multiplier(keys: &Keys<'_>) -> Result<f32, Error> {
    keys.non_negative("rope.scaling.yarn_log_multiplier", 0.0)
}

/// `n_ctx` tokens times `factor`, as a context size of at least 1.
fn context(n_ctx: usize, factor: f32) -> usize {
    ((n_ctx as f64 * f64::from(factor)) as usize).clamp(1, MAX_SIZE as usize)
}

pub(super) fn base(keys: &Keys<'_>, key: &str) -> Result<Option<f32>, Error> {
    match keys.f32(key)? {
        Some(base) if !is_positive(base) => Err(keys.wrong_key(key, "a positive number", base)),
        base => Ok(base),
    }
}

pub(super) fn is_positive(value: f32) -> bool {
    value > 0.0 && value.is_finite()
}

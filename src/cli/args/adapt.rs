//! Flags that change the model's weights and position encoding: LoRA adapters and RoPE.

use super::choice::{Choice, choice, one_of};
use super::whole;
use crate::cli::parse;
use crate::model::{RopeOverrides, RopeScaling};
use clap::Args;
use runtime::AdapterFile;
use std::path::PathBuf;

/// LoRA and RoPE flags, with llama.cpp's names and meanings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Adapters and RoPE")]
pub(crate) struct AdaptArgs {
    /// LoRA adapters (GGUF), separated by commas; may be repeated
    ///
    /// Adapters are merged into the weights when the model is loaded.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_LORA", value_delimiter = ',')]
    pub(crate) lora: Vec<PathBuf>,
    /// LoRA adapters with scales, as FILE:SCALE separated by commas
    #[arg(long, value_name = "FILE:SCALE", env = "THERMOCLINE_ARG_LORA_SCALED")]
    #[arg(value_delimiter = ',', value_parser = scaled_adapter)]
    pub(crate) lora_scaled: Vec<AdapterFile>,
    #[command(flatten)]
    pub(crate) rope: RopeArgs,
}

/// RoPE flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct RopeArgs {
    /// How RoPE is scaled for a longer context; default: as in the file
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_ROPE_SCALING_TYPE")]
    #[arg(value_parser = one_of(&SCALINGS))]
    pub(crate) rope_scaling: Option<RopeScaling>,
    /// Extend the context by a factor of N with RoPE scaling
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_ROPE_SCALE")]
    #[arg(value_parser = above_zero, overrides_with = "rope_freq_scale")]
    pub(crate) rope_scale: Option<f32>,
    /// Base of RoPE's frequencies; 0: as in the file
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_ROPE_FREQ_BASE")]
    #[arg(value_parser = zero_or_above)]
    pub(crate) rope_freq_base: Option<f32>,
    /// Factor on RoPE's frequencies, 1/N of --rope-scale; 0: as in the file
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_ROPE_FREQ_SCALE")]
    #[arg(value_parser = zero_or_above, overrides_with = "rope_scale")]
    pub(crate) rope_freq_scale: Option<f32>,
    /// YaRN: original context size in tokens; 0: as in the file
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_YARN_ORIG_CTX")]
    #[arg(value_parser = whole::<u32>(0..=1 << 24))]
    pub(crate) yarn_orig_ctx: Option<u32>,
    /// YaRN: extrapolation mix, 0 for full interpolation; -1: 1 with YaRN
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_YARN_EXT_FACTOR")]
    #[arg(allow_negative_numbers = true, value_parser = parse::number)]
    pub(crate) yarn_ext_factor: Option<f32>,
    /// Attention magnitude without YaRN's extrapolation mix; -1: as in the file
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_YARN_ATTN_FACTOR")]
    #[arg(allow_negative_numbers = true, value_parser = parse::number)]
    pub(crate) yarn_attn_factor: Option<f32>,
    /// YaRN: high correction dimension or alpha; -1: as in the file, else 1
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_YARN_BETA_SLOW")]
    #[arg(allow_negative_numbers = true, value_parser = parse::number)]
    pub(crate) yarn_beta_slow: Option<f32>,
    /// YaRN: low correction dimension or beta; -1: as in the file, else 32
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_YARN_BETA_FAST")]
    #[arg(allow_negative_numbers = true, value_parser = parse::number)]
    pub(crate) yarn_beta_fast: Option<f32>,
}

static SCALINGS: [Choice<RopeScaling>; 3] = [
    choice("none", "No scaling", RopeScaling::None),
    choice("linear", "All frequencies are divided by the factor", RopeScaling::Linear),
    choice("yarn", "Low frequencies are divided by the factor", RopeScaling::Yarn),
];

impl AdaptArgs {
    /// The adapters of both flags.
    pub(crate) fn adapters(&self) -> Vec<AdapterFile> {
        let plain = self.lora.iter().map(|path| AdapterFile { path: path.clone(), scale: 1.0 });
        plain.chain(self.lora_scaled.iter().cloned()).collect()
    }
}

impl RopeArgs {
    /// The settings that these flags replace. As in llama.cpp, 0 or a negative number keeps the
    /// file's setting.
    pub(crate) fn overrides(&self) -> RopeOverrides {
        let above = |value: Option<f32>| value.filter(|value| *value != 0.0);
        let from_0 = |value: Option<f32>| value.filter(|value| *value >= 0.0);
        RopeOverrides {
            scaling: self.rope_scaling,
            freq_base: above(self.rope_freq_base),
            freq_scale: self.rope_scale.map(f32::recip).or(above(self.rope_freq_scale)),
            yarn_orig_ctx: self.yarn_orig_ctx.filter(|n| *n > 0).map(|n| n as usize),
            yarn_ext_factor: from_0(self.yarn_ext_factor),
            yarn_attn_factor: from_0(self.yarn_attn_factor),
            yarn_beta_slow: from_0(self.yarn_beta_slow),
            yarn_beta_fast: from_0(self.yarn_beta_fast),
        }
    }
}

/// Parses `FILE:SCALE`, or `FILE SCALE` as older versions of llama.cpp had it.
fn scaled_adapter(text: &str) -> Result<AdapterFile, String> {
    let parts = text.rsplit_once([':', ' ']);
    let scale = parts.and_then(|(path, scale)| Some((path, scale.trim().parse::<f32>().ok()?)));
    match scale.filter(|(path, scale)| !path.is_empty() && scale.is_finite()) {
        Some((path, scale)) => Ok(AdapterFile { path: path.into(), scale }),
        None => Err(format!("'{text}' has no scale: write FILE:SCALE, such as a.gguf:0.5")),
    }
}

fn above_zero(text: &str) -> Result<f32, String> {
    parse::number(text)
        .ok()
        .filter(|n| *n > 0.0 && n.is_finite() && n.recip().is_finite())
        .ok_or_else(|| format!("'{text}' is not a number above 0"))
}

fn zero_or_above(text: &str) -> Result<f32, String> {
    let number = parse::number(text).ok().filter(|n| *n >= 0.0 && n.is_finite());
    number.ok_or_else(|| format!("'{text}' is not a number of at least 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_scales() {
        let adapter = |path: &str, scale| Ok(AdapterFile { path: path.into(), scale });
        assert_eq!(scaled_adapter("a.gguf:0.5"), adapter("a.gguf", 0.5));
        assert_eq!(scaled_adapter("a b.gguf -1"), adapter("a b.gguf", -1.0));
        assert_eq!(scaled_adapter(r"C:\a.gguf:2"), adapter(r"C:\a.gguf", 2.0));
        for wrong in ["a.gguf", r"C:\a.gguf", "a.gguf:x", "a.gguf:inf", ":1", ""] {
            assert!(scaled_adapter(wrong).unwrap_err().contains("FILE:SCALE"), "{wrong}");
        }
    }
}

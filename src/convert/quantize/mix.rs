//! Chooses the type of each tensor.
//!
//! Source: the choices of llama.cpp's quantiser without an importance matrix, so that the same
//! name means the same mix.

use super::Quantization;
use super::target::Extra;
use crate::Error;
use gguf::{Container, File, TensorInfo, TensorType};
use hal::format::Format;

/// Endings of small matrices whose errors matter most; they are copied unchanged.
const SENSITIVE: [&str; 3] =
    ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight"];

/// The options, and the properties of the model, that determine the types.
pub(super) struct Mix<'a> {
    job: &'a Quantization,
    is_falcon: bool,
    container: Container,
    n_layer: u64,
    n_expert: u64,
    /// Whether the embedding is also the output matrix.
    is_tied: bool,
    /// Llama 70B (80 layers, grouped-query attention). Many query heads share its small V matrices,
    /// which therefore get more bits.
    is_70b: bool,
}

impl<'a> Mix<'a> {
    pub(super) fn new(file: &File, job: &'a Quantization) -> Result<Mix<'a>, Error> {
        let metadata = file.metadata();
        let arch = metadata.str("general.architecture")?.unwrap_or_default();
        // A key with one number per layer counts as missing: no mix depends on such a list.
        let number = |key: &str| metadata.u64(&format!("{arch}.{key}")).ok().flatten();
        let n_layer = number("block_count").unwrap_or(0);
        let heads = (number("attention.head_count"), number("attention.head_count_kv"));
        Ok(Mix {
            job,
            is_falcon: arch == "falcon",
            container: file.container(),
            n_layer,
            n_expert: number("expert_count").unwrap_or(0),
            is_tied: file.tensor("output.weight").is_none(),
            is_70b: arch == "llama" && n_layer == 80 && heads.1.is_some() && heads.0 != heads.1,
        })
    }

    /// The type of a tensor in the copy, and the preferred type, which its shape may not allow.
    pub(super) fn choose(&self, tensor: &TensorInfo) -> (TensorType, TensorType) {
        let name = tensor.name.as_str();
        let is_matrix =
            tensor.shape.len() >= 2 && name.ends_with("weight") && !name.contains("_norm.weight");
        let is_kept = SENSITIVE.iter().any(|end| name.ends_with(end))
            || (name == "output.weight" && self.job.leave_output);
        if !is_matrix || is_kept || tensor.ty.block().is_none() {
            return (tensor.ty, tensor.ty);
        }
        let wanted = self.target_format(tensor);
        (fitting_format(tensor.shape[0], wanted).into(), wanted.into())
    }

    fn target_format(&self, tensor: &TensorInfo) -> Format {
        let (name, base) = (tensor.name.as_str(), self.job.target.format());
        let is_embedding = name == "token_embd.weight";
        let is_output = name == "output.weight" || (is_embedding && self.is_tied);
        let overrides =
            [(is_output, self.job.output_type), (is_embedding, self.job.embedding_type)];
        if let Some(format) =
            overrides.iter().find_map(|(applies, format)| format.filter(|_| *applies))
        {
            return format;
        }
        if self.job.pure || self.job.target.extra == Extra::None {
            return base;
        }
        if is_output {
            let is_wide =
                self.is_falcon || self.job.target.extra == Extra::Experts || base == Format::Q8_0;
            return if is_wide { Format::Q8_0 } else { Format::Q6_K };
        }
        if self.job.target.extra == Extra::Experts {
            let is_stack = tensor.shape.get(2).is_some_and(|&n| n > 1);
            return if is_stack { base } else { Format::Q8_0 };
        }
        match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => self.layer_format(layer.parse().unwrap_or(0), part, base),
            None => base,
        }
    }

    fn layer_format(&self, layer: u64, part: &str, base: Format) -> Format {
        let n = self.n_layer;
        let extra = self.job.target.extra;
        let gets_more = layer < n / 8 || layer >= 7 * n / 8 || layer.wrapping_sub(n / 8) % 3 == 2;
        match part {
            // PowerInfer quantises predictors to Q5_0.
            "fc1.weight" | "fc2.weight"
                if self.container == Container::PowerInfer && base != Format::Q4_0 =>
            {
                Format::Q5_0
            }
            "attn_v.weight" | "attn_qkv.weight" | "attn_kv_b.weight" => match extra {
                _ if self.n_expert == 8 => Format::Q8_0,
                Extra::More if gets_more => Format::Q6_K,
                Extra::Some if layer < 4 => Format::Q5_K,
                _ if self.is_70b && base == Format::Q4_K => Format::Q5_K,
                Extra::None | Extra::Output | Extra::Some | Extra::More | Extra::Experts => base,
            },
            "attn_k.weight" if self.n_expert == 8 => Format::Q8_0,
            "attn_output.weight"
                if self.n_expert == 8 && base == Format::Q4_K && !self.is_falcon =>
            {
                Format::Q5_K
            }
            _ if part.starts_with("ffn_down") && !part.starts_with("ffn_down_t") => match extra {
                Extra::More if self.is_falcon && base == Format::Q4_K => match layer {
                    _ if layer < n / 16 => Format::Q6_K,
                    _ if gets_more => Format::Q5_K,
                    _ => base,
                },
                Extra::More if gets_more => Format::Q6_K,
                Extra::Some if !self.is_falcon && layer < n / 8 => Format::Q5_K,
                Extra::None | Extra::Output | Extra::Some | Extra::More | Extra::Experts => base,
            },
            _ => base,
        }
    }
}

/// `wanted`, or the first alternative whose blocks fit rows of `n_cols` values, or F16.
fn fitting_format(n_cols: u64, wanted: Format) -> Format {
    let fits = |format: Format| n_cols.is_multiple_of(format.block_values() as u64);
    let smaller = [
        (Format::Q4_K, [Format::Q5_0, Format::Q8_0]),
        (Format::Q5_K, [Format::Q5_1, Format::Q8_0]),
        (Format::Q6_K, [Format::Q8_0, Format::Q8_0]),
        (Format::Q5_0, [Format::Q8_0, Format::Q8_0]),
    ];
    let others =
        smaller.iter().find(|(format, _)| *format == wanted).map(|(_, others)| others.as_slice());
    let candidates = std::iter::once(&wanted).chain(others.unwrap_or_default());
    candidates.copied().find(|format| fits(*format)).unwrap_or(Format::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_rows_get_a_smaller_block() {
        assert_eq!(fitting_format(512, Format::Q4_K), Format::Q4_K);
        assert_eq!(fitting_format(96, Format::Q6_K), Format::Q8_0);
        assert_eq!(fitting_format(33, Format::Q4_0), Format::F16);
    }
}

//! Chooses the type of each tensor.
//!
//! Source: the choices of llama.cpp's quantiser, so that the same name means the same mix.

use super::Quantization;
use super::target::Mixture;
use crate::Error;
use gguf::{Container, File, Metadata, TensorInfo, TensorType};
use hal::format::Format;

/// Endings of small matrices whose errors matter most; they are copied unchanged.
const KEPT_ENDS: [&str; 7] = [
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ffn_gate_tid2eid.weight",
    "position_embd.weight",
    "token_types.weight",
    "attn_rel_b.weight",
    "shortconv.conv.weight",
];
/// Parts of the names of further such matrices.
const KEPT_PARTS: [&str; 8] = [
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "indexer.",
    "indexer_compressor_",
    "hc_",
    "time_mix_",
];

/// What a matrix does in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Category {
    Output,
    Embedding,
    /// Values, or a matrix that also computes them.
    Values,
    Keys,
    AttentionOutput,
    Down,
    Other,
}

fn category(name: &str) -> Category {
    const PARTS: [(&str, Category); 6] = [
        ("attn_qkv.weight", Category::Values),
        ("attn_kv_b.weight", Category::Values),
        ("attn_v.weight", Category::Values),
        ("attn_k.weight", Category::Keys),
        ("attn_output.weight", Category::AttentionOutput),
        ("ffn_down", Category::Down),
    ];
    match name {
        "output.weight" => Category::Output,
        "token_embd.weight" | "per_layer_token_embd.weight" => Category::Embedding,
        // PowerInfer's transposed down has one row per neuron.
        _ if name.contains("ffn_down_t") => Category::Other,
        _ => {
            let found = PARTS.iter().find(|(part, _)| name.contains(part));
            found.map_or(Category::Other, |(_, category)| *category)
        }
    }
}

/// The layer in a tensor's name; `None` for a tensor without a layer.
fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Whether a layer belongs to the about half of the layers that get more bits.
fn gets_more(layer: u64, n: u64) -> bool {
    layer < n / 8 || layer >= 7 * n / 8 || (layer.wrapping_sub(n / 8)) % 3 == 2
}

/// The options, and the properties of the model, that determine the types.
pub(crate) struct Mix<'a> {
    job: &'a Quantization,
    is_falcon: bool,
    container: Container,
    n_layer: u64,
    n_expert: u64,
    /// Query heads per KV head in the first layer.
    n_gqa: u64,
    /// Whether the embedding is also the output matrix.
    is_tied: bool,
    /// Llama 70B (80 layers, grouped-query attention). Many query heads share its small V matrices,
    /// which therefore get more bits.
    is_70b: bool,
    has_importance: bool,
    /// Layers of the matrices for values, and of the down matrices, ascending.
    value_layers: Vec<u64>,
    down_layers: Vec<u64>,
}

/// The number of `key`, or its first layer's.
fn number(metadata: &Metadata, key: &str) -> Option<u64> {
    let all = || metadata.u32_array(key).ok().flatten()?.first().map(|&n| u64::from(n));
    metadata.u64(key).ok().flatten().or_else(all)
}

impl<'a> Mix<'a> {
    pub(crate) fn new(file: &File, job: &'a Quantization) -> Result<Mix<'a>, Error> {
        let metadata = file.metadata();
        let arch = metadata.str("general.architecture")?.unwrap_or_default();
        let number = |key: &str| number(metadata, &format!("{arch}.{key}"));
        let n_layer = number("block_count").unwrap_or(0);
        let n_head = number("attention.head_count").unwrap_or(0);
        let n_head_kv = number("attention.head_count_kv").unwrap_or(n_head);
        let layers = |of: Category| {
            let names = file.tensors().iter().map(|tensor| tensor.name.as_str());
            let mut layers: Vec<u64> =
                names.filter(|name| category(name) == of).filter_map(layer_of).collect();
            layers.sort_unstable();
            layers
        };
        Ok(Mix {
            job,
            is_falcon: arch == "falcon",
            container: file.container(),
            n_layer,
            n_expert: number("expert_count").unwrap_or(0),
            n_gqa: n_head.checked_div(n_head_kv).unwrap_or(0),
            is_tied: file.tensor("output.weight").is_none(),
            is_70b: arch == "llama" && n_layer == 80 && n_head != n_head_kv,
            has_importance: job.importance.is_some(),
            value_layers: layers(Category::Values),
            down_layers: layers(Category::Down),
        })
    }

    /// The type of a tensor in the copy, and the preferred type, which its shape may not allow.
    pub(crate) fn choose(&self, tensor: &TensorInfo) -> (TensorType, TensorType) {
        let name = tensor.name.as_str();
        let is_matrix = tensor.shape.iter().skip(1).any(|&n| n > 1)
            && name.ends_with("weight")
            && !name.contains("_norm.weight");
        let is_kept = KEPT_ENDS.iter().any(|end| name.ends_with(end))
            || KEPT_PARTS.iter().any(|part| name.contains(part))
            || (name == "output.weight" && self.job.leave_output)
            || self.job.target.mixture == Mixture::Copy;
        if !is_matrix || is_kept || tensor.ty.block().is_none() {
            return (tensor.ty, tensor.ty);
        }
        let wanted = self.target_format(tensor);
        (fitting_format(tensor.shape[0], wanted).into(), wanted.into())
    }

    /// Whether a tensor of this format is useless without an importance matrix.
    pub(super) fn needs_importance(&self, tensor: &str, ty: TensorType) -> bool {
        let is_of_layer = !matches!(category(tensor), Category::Output | Category::Embedding);
        self.job.target.mixture == Mixture::Q2KS && is_of_layer && ty == Format::Q2_K
    }

    fn target_format(&self, tensor: &TensorInfo) -> Format {
        let (name, target) = (tensor.name.as_str(), self.job.target);
        let (base, category) = (target.format(), category(name));
        let rule = self.job.tensor_types.iter().find(|rule| rule.pattern.is_match(name));
        let is_large_table = name == "per_layer_token_embd.weight";
        let named = match category {
            Category::Embedding if is_large_table && rule.is_some() => None,
            Category::Embedding => self.job.embedding_type,
            Category::Output => self.job.output_type,
            Category::Values
            | Category::Keys
            | Category::AttentionOutput
            | Category::Down
            | Category::Other => None,
        };
        if let Some(format) = named.or(rule.map(|rule| rule.format)) {
            return format;
        }
        if self.job.pure || target.mixture == Mixture::None {
            return base;
        }
        if category == Category::Output || (category == Category::Embedding && self.is_tied) {
            let is_wide = self.is_falcon
                || target.mixture == Mixture::Experts
                || base == Format::Q8_0
                || !tensor.shape[0].is_multiple_of(base.block_values() as u64);
            let usual = if is_wide { Format::Q8_0 } else { Format::Q6_K };
            return self.job.output_type.unwrap_or(usual);
        }
        if target.mixture == Mixture::Experts {
            let is_stack = tensor.shape.get(2).is_some_and(|&n| n > 1);
            return if is_stack { base } else { Format::Q8_0 };
        }
        let layer = layer_of(name).unwrap_or(0);
        match category {
            Category::Values => self.values(layer, base),
            Category::Keys if self.n_expert == 8 => Format::Q8_0,
            Category::AttentionOutput => self.attention_output(base),
            Category::Down => self.down(layer, base),
            // PowerInfer quantises predictors to Q5_0.
            Category::Other
                if self.container == Container::PowerInfer
                    && base != Format::Q4_0
                    && (name.ends_with("fc1.weight") || name.ends_with("fc2.weight")) =>
            {
                Format::Q5_0
            }
            Category::Keys | Category::Other | Category::Output | Category::Embedding => base,
        }
    }

    fn is(&self, mixtures: &[Mixture]) -> bool {
        mixtures.contains(&self.job.target.mixture)
    }

    fn values(&self, layer: u64, base: Format) -> Format {
        if self.n_expert == 8 {
            return Format::Q8_0;
        }
        let rank = self.value_layers.partition_point(|&other| other < layer) as u64;
        let more = gets_more(rank, self.value_layers.len() as u64);
        let format = if self.is(&[Mixture::Q2K, Mixture::Q2KS]) && self.n_gqa >= 4 {
            Format::Q4_K
        } else if self.is(&[Mixture::Q2K]) {
            Format::Q3_K
        } else if self.is(&[Mixture::Q3KM]) {
            if rank < 2 { Format::Q5_K } else { Format::Q4_K }
        } else if self.is(&[Mixture::Q3KL])
            || (self.is(&[Mixture::Iq4]) && self.n_gqa >= 4)
            || (self.is(&[Mixture::Q4KS]) && rank < 4)
        {
            Format::Q5_K
        } else if self.is(&[Mixture::Q4KM, Mixture::Q5KM]) && more {
            Format::Q6_K
        } else {
            base
        };
        let is_small = format == Format::Q3_K || format == Format::Q4_K;
        if self.is_70b && is_small { Format::Q5_K } else { format }
    }

    fn down(&self, layer: u64, base: Format) -> Format {
        // Experts are counted by layer, other matrices by their order.
        let rank = self.down_layers.partition_point(|&other| other < layer) as u64;
        let (at, n) = (if self.n_expert > 1 { layer } else { rank }, self.n_layer);
        let (first, more) = (at < n / 8, gets_more(at, n));
        if self.is_falcon
            && let Some(format) = self.down_of_falcon(at, more)
        {
            return format;
        }
        if self.is(&[Mixture::Q2K]) {
            Format::Q3_K
        } else if self.is(&[Mixture::Q3KM]) {
            if at < n / 16 { Format::Q5_K } else { Format::Q4_K }
        } else if self.is(&[Mixture::Q2KS]) && first {
            Format::Q4_K
        } else if self.is(&[Mixture::Q3KL])
            || (self.is(&[Mixture::Q4KS]) && first)
            || (self.is(&[Mixture::Iq4]) && first && !self.has_importance)
        {
            Format::Q5_K
        } else if self.is(&[Mixture::Q4KM, Mixture::Q5KM]) && more {
            Format::Q6_K
        } else if self.is(&[Mixture::Legacy]) && first && self.has_importance {
            // With an importance matrix, the scales of the first layers' outliers can go wrong
            // without a minimum.
            if base == Format::Q4_0 { Format::Q4_1 } else { Format::Q5_1 }
        } else {
            base
        }
    }

    /// The type of down where falcon differs from other families.
    fn down_of_falcon(&self, at: u64, more: bool) -> Option<Format> {
        let first = at < self.n_layer / 16;
        if self.is(&[Mixture::Q3KM]) {
            Some(match (first, more) {
                (true, _) => Format::Q5_K,
                (false, true) => Format::Q4_K,
                (false, false) => Format::Q3_K,
            })
        } else if self.is(&[Mixture::Q4KM]) {
            Some(match (first, more) {
                (true, _) => Format::Q6_K,
                (false, true) => Format::Q5_K,
                (false, false) => Format::Q4_K,
            })
        } else if self.is(&[Mixture::Q3KL]) {
            Some(Format::Q4_K)
        } else {
            self.is(&[Mixture::Q4KS]).then_some(Format::Q4_K)
        }
    }

    fn attention_output(&self, base: Format) -> Format {
        const MORE: [Mixture; 6] = [
            Mixture::Q2K,
            Mixture::Q3KS,
            Mixture::Q3KM,
            Mixture::Iq4,
            Mixture::Q4KS,
            Mixture::Q4KM,
        ];
        if self.is_falcon {
            return if self.is(&[Mixture::Q3KL]) { Format::Q4_K } else { base };
        }
        if self.n_expert == 8 {
            return if self.is(&MORE) { Format::Q5_K } else { base };
        }
        if self.is(&[Mixture::Q2K]) {
            Format::Q3_K
        } else if self.is(&[Mixture::Q3KM]) {
            Format::Q4_K
        } else if self.is(&[Mixture::Q3KL]) {
            Format::Q5_K
        } else {
            base
        }
    }
}

/// `wanted`, or the first alternative whose blocks fit rows of `n_cols` values, or F16.
fn fitting_format(n_cols: u64, wanted: Format) -> Format {
    let fits = |format: Format| n_cols.is_multiple_of(format.block_values() as u64);
    let smaller = [
        (Format::IQ4_XS, Format::IQ4_NL),
        (Format::Q2_K, Format::Q4_0),
        (Format::Q3_K, Format::Q4_0),
        (Format::Q4_K, Format::Q5_0),
        (Format::Q5_K, Format::Q5_1),
        (Format::Q6_K, Format::Q8_0),
        (Format::Q1_0, Format::Q4_0),
    ];
    let other = smaller.iter().find(|(format, _)| *format == wanted).map(|(_, other)| *other);
    let candidates = std::iter::once(wanted).chain(other);
    candidates.into_iter().find(|format| fits(*format)).unwrap_or(Format::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_rows_get_a_smaller_block() {
        assert_eq!(fitting_format(512, Format::Q4_K), Format::Q4_K);
        assert_eq!(fitting_format(96, Format::Q6_K), Format::Q8_0);
        assert_eq!(fitting_format(96, Format::IQ4_XS), Format::IQ4_NL);
        assert_eq!(fitting_format(33, Format::Q4_0), Format::F16);
    }

    #[test]
    fn names_have_categories() {
        assert_eq!(category("blk.3.attn_kv_b.weight"), Category::Values);
        assert_eq!(category("blk.3.ffn_down_exps.weight"), Category::Down);
        assert_eq!(category("blk.3.ffn_down_t.weight"), Category::Other);
        assert_eq!((layer_of("blk.13.x.weight"), layer_of("output.weight")), (Some(13), None));
    }

    #[test]
    fn about_half_of_the_layers_get_more_bits() {
        let layers = |n| (0..n).filter(|&layer| gets_more(layer, n)).collect::<Vec<_>>();
        assert_eq!(layers(8), [0, 3, 6, 7]);
        assert_eq!(layers(5), [2, 4]);
    }
}

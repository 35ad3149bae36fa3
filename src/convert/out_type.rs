//! The type of each tensor in the file.

use std::collections::BTreeMap;

use hal::format::Format;

use super::OutType;
use super::output::Output;
use super::source::Encoding;
use gguf::TensorType;

impl OutType {
    /// A tensor's type in the file: F32 for vectors and small sensitive matrices, F16 if rows do
    /// not fit the type.
    pub(super) fn tensor_type(self, name: &str, shape: &[u64], source: Encoding) -> TensorType {
        let sensitive = [
            "_norm.weight",
            "ffn_gate_inp.weight",
            "ffn_gate_inp_shexp.weight",
            "position_embd.weight",
            "token_types.weight",
            "conv1d.weight",
            "conv1d_q.weight",
            "conv1d_k.weight",
            "conv1d_v.weight",
            "shortconv.conv.weight",
            "altup_correct_coef.weight",
            "altup_predict_coef.weight",
            // Streams and gates of blocks, which checkpoints have in F32.
            "hc_attn_fn.weight",
            "hc_ffn_fn.weight",
            "output_hc_fn.weight",
            "compressor_ape.weight",
            "time_mix_first.weight",
            "time_mix_w1.weight",
            "time_mix_w2.weight",
            "time_mix_decay_w1.weight",
            "time_mix_decay_w2.weight",
            "time_mix_lerp_fused.weight",
        ];
        if shape.len() < 2
            || !name.ends_with(".weight")
            || sensitive.iter().any(|end| name.ends_with(end))
        {
            return TensorType::F32;
        }
        let format = match self {
            OutType::F32 => Format::F32,
            OutType::F16 => Format::F16,
            OutType::Bf16 => Format::BF16,
            OutType::Q8_0 => Format::Q8_0,
            OutType::Auto if source == Encoding::Plain(Format::BF16) => Format::BF16,
            OutType::Auto => Format::F16,
        };
        let fits = shape[0].is_multiple_of(format.block_values() as u64);
        if fits { format.into() } else { TensorType::F16 }
    }

    /// Notes about tensors whose rows do not fit the type.
    pub(super) fn misfit_notes(self, outputs: &[Output]) -> Vec<String> {
        if self != OutType::Q8_0 {
            return Vec::new();
        }
        let mut misfits: BTreeMap<u64, usize> = BTreeMap::new();
        for output in outputs.iter().filter(|output| output.ty == TensorType::F16) {
            *misfits.entry(output.shape[0]).or_default() += 1;
        }
        let note =
            |(len, n)| format!("rows of {len} values do not fit Q8_0; using F16 for {n} tensors");
        misfits.into_iter().map(note).collect()
    }
}

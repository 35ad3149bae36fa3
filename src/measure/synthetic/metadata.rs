//! Metadata of a synthetic model, and a vocabulary that can encode any text.

use hal::format::Format;

use super::{Error, Rope, Spec};
use gguf::{Array, Container, Strings, Value, Writer};

/// Number of tokens that are not text: unknown, BOS, EOS, and one per byte.
pub(super) const N_SPECIAL: usize = 259;
/// The characters of the vocabulary. The space mark comes first, because most text begins with it.
const CHARACTERS: &str =
    "\u{2581}abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"()-\n";
const N_CTX_TRAIN: u32 = 4096;
/// Epsilon of the norms, as in Llama 2.
pub(super) const EPS: f32 = 1e-5;
/// Llama 3.1's RoPE base.
const LLAMA3_BASE: f32 = 500_000.0;

pub(super) fn set(spec: &Spec, container: Container, writer: &mut Writer) -> Result<(), Error> {
    let n = |n: usize| Value::U32(n as u32);
    let shape = &spec.shape;
    writer.set("general.architecture", "llama")?;
    writer.set("general.name", format!("synthetic {spec}, seed {}", spec.seed))?;
    writer.set("llama.context_length", N_CTX_TRAIN)?;
    writer.set("llama.embedding_length", n(shape.n_embd))?;
    writer.set("llama.block_count", n(shape.n_layer))?;
    writer.set("llama.feed_forward_length", n(shape.n_ff))?;
    writer.set("llama.attention.head_count", n(shape.n_head))?;
    writer.set("llama.attention.head_count_kv", n(shape.n_head_kv))?;
    writer.set("llama.attention.layer_norm_rms_epsilon", EPS)?;
    writer.set("llama.rope.dimension_count", n(spec.d_head()))?;
    if let Some(d_head) = spec.d_head {
        writer.set("llama.attention.key_length", n(d_head))?;
        writer.set("llama.attention.value_length", n(d_head))?;
    }
    if let Some([count, used]) = spec.experts {
        writer.set("llama.expert_count", n(count))?;
        writer.set("llama.expert_used_count", n(used))?;
    }
    if let Some(window) = spec.window {
        writer.set("llama.attention.sliding_window", window)?;
    }
    match container {
        Container::Gguf if spec.relu => writer.set("llama.hidden_activation", "relu")?,
        Container::Gguf => {}
        Container::PowerInfer => writer.set("powerinfer.sparse_threshold", 0.0_f32)?,
    }
    rope(spec.rope, writer)?;
    writer.set("general.file_type", file_type(spec.format))?;
    if spec.format.quants().is_some() {
        writer.set("general.quantization_version", 2_u32)?;
    }
    vocabulary(spec.n_vocab, writer)
}

fn rope(rope: Rope, writer: &mut Writer) -> Result<(), Error> {
    match rope {
        Rope::Plain => {}
        Rope::Linear { factor } => {
            writer.set("llama.rope.scaling.type", "linear")?;
            writer.set("llama.rope.scaling.factor", factor)?;
        }
        Rope::Yarn { factor, n_ctx_orig } => {
            writer.set("llama.rope.scaling.type", "yarn")?;
            writer.set("llama.rope.scaling.factor", factor)?;
            writer.set("llama.rope.scaling.original_context_length", n_ctx_orig)?;
        }
        Rope::Llama3 { .. } => writer.set("llama.rope.freq_base", LLAMA3_BASE)?,
    }
    Ok(())
}

/// `rope_freqs.weight` of Llama 3.1: the divisors of the frequencies of `n` pairs.
pub(super) fn llama3_factors(factor: f32, n: usize) -> impl Iterator<Item = f32> {
    const N_CTX_ORIG: f32 = 8192.0;
    const HIGH: f32 = 4.0;
    (0..n).map(move |pair| {
        let frequency = LLAMA3_BASE.powf(-(pair as f32) / n as f32);
        // Rotations within the original context: pairs with at most 1 are slow, pairs with at least
        // 4 are fast.
        let rotations = N_CTX_ORIG * frequency / std::f32::consts::TAU;
        let fast = ((rotations - 1.0) / (HIGH - 1.0)).clamp(0.0, 1.0);
        1.0 / ((1.0 - fast) / factor + fast)
    })
}

/// llama.cpp's number for "mostly this format".
fn file_type(format: Format) -> u32 {
    match format {
        Format::F32 | Format::U32 => 0,
        Format::F16 => 1,
        Format::Q4_0 => 2,
        Format::Q4_1 => 3,
        Format::Q8_0 => 7,
        Format::Q5_0 => 8,
        Format::Q5_1 => 9,
        Format::Q2_K => 10,
        Format::Q3_K => 11,
        Format::Q4_K => 14,
        Format::Q5_K => 16,
        Format::Q6_K => 18,
        Format::IQ2_XXS => 19,
        Format::IQ2_XS => 20,
        Format::IQ3_XXS => 23,
        Format::IQ1_S => 24,
        Format::IQ4_NL => 25,
        Format::IQ3_S => 26,
        Format::IQ2_S => 28,
        Format::IQ4_XS => 30,
        Format::IQ1_M => 31,
        Format::BF16 => 32,
        Format::MXFP4 => 38,
        Format::Q1_0 => 40,
    }
}

/// Sets a vocabulary of bytes, characters, and strings of a character followed by letters. Merges
/// can form every string, because the string without its last letter is also a token.
fn vocabulary(n_vocab: usize, writer: &mut Writer) -> Result<(), Error> {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let mut types = vec![2, 3, 3];
    types.resize(N_SPECIAL, 6);
    types.resize(n_vocab, 1);
    let mut words: Vec<String> = CHARACTERS.chars().map(String::from).collect();
    while tokens.len() < n_vocab {
        let missing = n_vocab - tokens.len();
        tokens.extend(words.iter().take(missing).cloned());
        let longer = |word: &String| -> Vec<String> {
            ('a'..='z').map(|letter| format!("{word}{letter}")).collect()
        };
        words = words.iter().flat_map(longer).take(missing).collect();
    }
    let score = |id: usize| N_SPECIAL as f32 - id.max(N_SPECIAL) as f32;
    let array = Value::Array;
    writer.set("tokenizer.ggml.model", "llama")?;
    writer.set("tokenizer.ggml.tokens", array(Array::String(Strings::from_iter(tokens))))?;
    writer.set("tokenizer.ggml.scores", array(Array::F32((0..n_vocab).map(score).collect())))?;
    writer.set("tokenizer.ggml.token_type", array(Array::I32(types)))?;
    writer.set("tokenizer.ggml.bos_token_id", 1_u32)?;
    writer.set("tokenizer.ggml.eos_token_id", 2_u32)?;
    writer.set("tokenizer.ggml.unknown_token_id", 0_u32)?;
    writer.set("tokenizer.ggml.add_bos_token", true)?;
    writer.set("tokenizer.ggml.add_eos_token", false)?;
    Ok(())
}

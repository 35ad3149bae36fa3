//! A model as found in a file: which tensor plays which part, all shapes checked.

use std::sync::Arc;

use hal::HostRows;
use hal::op::{Activation, FfnKind};

use crate::gguf::{Container, File};

use super::hyper::{self, Keys};
use super::layer::{Ffn, Frame, Kv, Latent, LayerWeights, Predictor, Shared};
use super::reader::Reader;
use super::rope::{Factors, RopeTable, is_positive};
use super::{Affine, ArchSpec, BlockKind, Error, Experts, Hyper, KvKind, Positions, arch};

/// What the user may say about a model.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// `--ffn-activation`: for files that do not say what they are.
    pub activation: Option<String>,
}

/// Learned positions.
#[derive(Clone, Debug)]
pub struct PositionTable {
    /// `[offset + most positions, n_embd]`.
    pub rows: HostRows,
    /// Rows before the first position's.
    pub offset: usize,
}

impl PositionTable {
    /// How many positions have a row.
    #[must_use]
    pub fn n_positions(&self) -> usize {
        self.rows.desc().n_rows.saturating_sub(self.offset)
    }
}

/// A model that can be run, still in its file.
#[derive(Debug)]
pub struct Model {
    /// The file; its mapping lives as long as the weights.
    pub file: File,
    /// The family.
    pub spec: &'static ArchSpec,
    /// Sizes.
    pub hyper: Hyper,
    /// How gate and up combine.
    pub ffn_kind: FfnKind,
    /// Activation of the feed-forward blocks.
    pub activation: Activation,
    /// `[n_vocab, n_embd]`.
    pub token_embd: HostRows,
    /// Added to the embeddings.
    pub positions: Option<PositionTable>,
    /// Of `[1, n_embd]`.
    pub output_norm: Affine,
    /// `[n_vocab, n_embd]`; the embedding again where the file ties them.
    pub output: HostRows,
    /// Layers in order.
    pub layers: Vec<LayerWeights>,
    /// Layers with a predictor in the file, of whatever format.
    pub n_predictors: usize,
    /// Least score of a neuron that is computed (`powerinfer.sparse_threshold`, else 0).
    pub predictor_threshold: f32,
}

impl Model {
    /// Understands `file`.
    ///
    /// # Errors
    /// [`Error`]: unknown architecture, missing or wrong keys and tensors.
    pub fn from_file(file: File, options: &ModelOptions) -> Result<Model, Error> {
        let name = file.name().to_owned();
        let spec = family(&file)?;
        let keys = Keys { metadata: file.metadata(), arch: spec.name, file: &name };
        let hyper = Hyper::read(&keys, spec)?;
        let (ffn_kind, activation) = activation(&keys, spec, file.container(), options)?;
        let reader = Reader::new(&file, spec.name);
        let predictor_threshold = threshold(&keys)?;
        let n_vocab = reader.n_rows("token_embd.weight", hyper.n_embd, "the number of tokens")?;
        let token_embd = reader.matrix("token_embd.weight", n_vocab, hyper.n_embd)?;
        let output = match reader.has("output.weight") {
            true => reader.matrix("output.weight", n_vocab, hyper.n_embd)?,
            false => token_embd.clone(),
        };
        let output_norm = reader.norm("output_norm", hyper.n_embd)?;
        let positions = positions(&reader, spec, &hyper)?;
        let layers = Layers { reader: &reader, spec, hyper: &hyper, ffn_kind }.read(&keys)?;
        let n_predictors = reader.finish(hyper.n_layer)?;
        Ok(Model {
            spec,
            ffn_kind,
            activation,
            token_embd,
            positions,
            output_norm,
            output,
            layers,
            n_predictors,
            predictor_threshold,
            hyper,
            file,
        })
    }

    /// Number of token ids.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.token_embd.desc().n_rows
    }

    /// How the neurons of a block come to their values, in words that tell it from other ways.
    #[must_use]
    pub fn neurons_by(&self) -> String {
        format!("{:?} {:?}", self.ffn_kind, self.activation)
    }

    /// Whether neurons may be dropped without any loss.
    #[must_use]
    pub fn is_exactly_sparse(&self) -> bool {
        self.activation.is_exactly_sparse()
    }
}

/// The family that a file names.
fn family(file: &File) -> Result<&'static ArchSpec, Error> {
    let name = file.name().to_owned();
    let arch = file.metadata().str("general.architecture")?.ok_or_else(|| Error::MissingKey {
        file: name.clone(),
        key: "general.architecture".into(),
        expected: "the name of the architecture",
    })?;
    arch::find(arch).ok_or_else(|| Error::Architecture {
        file: name,
        arch: arch.to_owned(),
        known: arch::ALL.iter().map(|spec| spec.name).collect(),
        readable: readable(file),
    })
}

/// One line on what a file of an unknown family holds.
fn readable(file: &File) -> String {
    let metadata = file.metadata();
    let tokens = metadata.str_array("tokenizer.ggml.tokens").ok().flatten().map_or(0, |t| t.len());
    format!(
        "{} keys, {} tensors, a vocabulary of {tokens} tokens",
        metadata.len(),
        file.tensors().len()
    )
}

/// The activation: the user's word, else the file's key, else what the container means.
fn activation(
    keys: &Keys<'_>,
    spec: &ArchSpec,
    container: Container,
    options: &ModelOptions,
) -> Result<(FfnKind, Activation), Error> {
    const KNOWN: &str = "relu, relu2, silu, gelu, gelu_erf or drelu";
    let named = match &options.activation {
        Some(name) => Some(name.as_str()),
        None => keys.text("hidden_activation")?,
    };
    let Some(named) = named else {
        let activation = match container {
            Container::Gguf => spec.activation,
            Container::PowerInfer => spec.sparse_activation,
        };
        return Ok((spec.ffn, activation));
    };
    match named {
        "relu" => Ok((spec.ffn, Activation::Relu)),
        "relu2" => Ok((spec.ffn, Activation::Relu2)),
        "silu" | "swish" | "swiglu" => Ok((spec.ffn, Activation::Silu)),
        "gelu" | "gelu_pytorch_tanh" | "gelu_new" => Ok((spec.ffn, Activation::Gelu)),
        "gelu_erf" => Ok((spec.ffn, Activation::GeluErf)),
        "drelu" if spec.ffn != FfnKind::Plain => Ok((FfnKind::GatedBoth, Activation::Relu)),
        other => Err(keys.wrong("hidden_activation", KNOWN, format!("`{other}`"))),
    }
}

/// Least score of a neuron that the predictor wants: the file's, else 0 as in PowerInfer.
fn threshold(keys: &Keys<'_>) -> Result<f32, Error> {
    const KEY: &str = "powerinfer.sparse_threshold";
    let value = keys.metadata.f32(KEY)?.unwrap_or(0.0);
    let error = || Error::Key {
        file: keys.file.to_owned(),
        key: KEY.to_owned(),
        expected: "a number to compare scores with".to_owned(),
        found: value.to_string(),
    };
    if value.is_nan() { Err(error()) } else { Ok(value) }
}

fn positions(
    reader: &Reader<'_>,
    spec: &ArchSpec,
    hyper: &Hyper,
) -> Result<Option<PositionTable>, Error> {
    const TABLE: &str = "position_embd.weight";
    let Positions::Learned { offset } = spec.positions else {
        return Ok(None);
    };
    let n_rows = reader.n_rows(TABLE, hyper.n_embd, "a row per position")?;
    Ok(Some(PositionTable { rows: reader.matrix(TABLE, n_rows, hyper.n_embd)?, offset }))
}

/// What reading layers needs.
struct Layers<'a> {
    reader: &'a Reader<'a>,
    spec: &'a ArchSpec,
    hyper: &'a Hyper,
    ffn_kind: FfnKind,
}

impl Layers<'_> {
    fn read(&self, keys: &Keys<'_>) -> Result<Vec<LayerWeights>, Error> {
        let Layers { reader, spec, hyper, .. } = *self;
        let factors = |tensor: &str| {
            let list = reader.optional_floats(tensor, hyper.n_rot / 2)?;
            match list.iter().flatten().find(|&&factor| !is_positive(factor)) {
                Some(wrong) => Err(Error::Values {
                    file: keys.file.to_owned(),
                    tensor: tensor.to_owned(),
                    expected: "positive numbers",
                    found: wrong.to_string(),
                }),
                None => Ok(list),
            }
        };
        let short = match factors("rope_freqs.weight")? {
            Some(factors) => Some(factors),
            None => factors("rope_factors_short.weight")?,
        };
        let factors = Factors { short, long: factors("rope_factors_long.weight")? };
        let global = Arc::new(RopeTable::global(keys, hyper, &factors)?);
        let local = Arc::new(RopeTable::local(keys, hyper, &factors, spec.local_base)?);
        let windowed = hyper::windowed(keys, spec, hyper.n_layer)?;
        let layer = |(layer, windowed): (usize, bool)| -> Result<LayerWeights, Error> {
            let window = hyper.window.filter(|_| windowed);
            let rope = match (spec.positions, window) {
                (Positions::Learned { .. }, _) => None,
                (Positions::Rotary(_), Some(_)) => Some(Arc::clone(&local)),
                (Positions::Rotary(_), None) if spec.global_rotary || hyper.window.is_none() => {
                    Some(Arc::clone(&global))
                }
                (Positions::Rotary(_), None) => None,
            };
            let (frame, ffn) = (self.frame(layer)?, self.ffn(layer)?);
            Ok(LayerWeights { frame, ffn, window, rope })
        };
        windowed.into_iter().enumerate().map(layer).collect()
    }

    fn frame(&self, layer: usize) -> Result<Frame, Error> {
        let Layers { reader, spec, hyper, .. } = *self;
        let Hyper { n_embd, d_head, .. } = *hyper;
        let tensor = |part: &str| format!("blk.{layer}.{part}");
        let norm = |part: &str| reader.norm(&tensor(part), n_embd);
        let head_norm =
            |part: &str| spec.qk_norm.then(|| reader.norm(&tensor(part), d_head)).transpose();
        let post_norm =
            |part: &str| (spec.block == BlockKind::Sandwich).then(|| norm(part)).transpose();
        let (attn_norm, ffn_norm) = match spec.block {
            BlockKind::Sequential | BlockKind::Sandwich => {
                (norm("attn_norm")?, Some(norm(spec.ffn_norm)?))
            }
            BlockKind::Parallel if reader.has(&tensor("attn_norm_2.weight")) => {
                (norm("attn_norm_2")?, Some(norm("attn_norm")?))
            }
            BlockKind::Parallel => (norm("attn_norm")?, None),
        };
        let (q, kv) = match spec.kv {
            KvKind::Direct => self.direct(layer)?,
            KvKind::Latent => (
                reader.affine(&tensor("attn_q"), hyper.n_q(), n_embd)?,
                Kv::Latent(self.latent(layer)?),
            ),
        };
        Ok(Frame {
            attn_norm,
            q,
            q_norm: head_norm("attn_q_norm")?,
            kv,
            k_norm: head_norm("attn_k_norm")?,
            sinks: reader.optional_vector(&tensor("attn_sinks.weight"), hyper.n_head)?,
            o: reader.affine(&tensor("attn_output"), n_embd, hyper.n_gathered())?,
            post_attn_norm: post_norm("post_attention_norm")?,
            ffn_norm,
            router: match &hyper.experts {
                Some(experts) => Some(reader.affine(&tensor("ffn_gate_inp"), experts.n, n_embd)?),
                None => None,
            },
            shared: self.shared(layer)?,
            post_ffn_norm: post_norm("post_ffw_norm")?,
        })
    }

    /// What every token uses beside its experts.
    fn shared(&self, layer: usize) -> Result<Option<Shared>, Error> {
        let Layers { reader, hyper, .. } = *self;
        let n_embd = hyper.n_embd;
        let tensor = |part: &str| format!("blk.{layer}.{part}");
        let up = tensor("ffn_up_shexp.weight");
        if hyper.experts.is_none() || !reader.has(&up) {
            return Ok(None);
        }
        let n_ff = reader.n_rows(&up, n_embd, "neurons")?;
        let weight = tensor("ffn_gate_inp_shexp");
        let weight = reader.has(&format!("{weight}.weight")).then_some(weight);
        Ok(Some(Shared {
            weight: weight.map(|weight| reader.affine(&weight, 1, n_embd)).transpose()?,
            gate: reader.affine(&tensor("ffn_gate_shexp"), n_ff, n_embd)?,
            up: reader.affine(&tensor("ffn_up_shexp"), n_ff, n_embd)?,
            down: reader.affine(&tensor("ffn_down_shexp"), n_embd, n_ff)?,
        }))
    }

    /// Queries, keys and values, in a matrix each or in one.
    fn direct(&self, layer: usize) -> Result<(Affine, Kv), Error> {
        let Layers { reader, hyper, .. } = *self;
        let tensor = |part: &str| format!("blk.{layer}.{part}");
        let joined = reader.has(&tensor("attn_qkv.weight"));
        let (n_q, n_k, n_v) = (hyper.n_q(), hyper.n_kv(), hyper.n_value());
        let one = |part: &str, first: usize, rows: usize| match joined {
            true => {
                let (all, some) = (n_q + n_k + n_v, first..first + rows);
                reader.affine_rows(&tensor("attn_qkv"), all, hyper.n_embd, some)
            }
            false => reader.affine(&tensor(part), rows, hyper.n_embd),
        };
        let (k, v) = (one("attn_k", n_q, n_k)?, one("attn_v", n_q + n_k, n_v)?);
        Ok((one("attn_q", 0, n_q)?, Kv::Direct { k, v }))
    }

    fn latent(&self, layer: usize) -> Result<Latent, Error> {
        let Layers { reader, hyper, .. } = *self;
        let Hyper { n_embd, n_head, n_rot, d_head, d_value, d_latent, .. } = *hyper;
        let tensor = |part: &str| format!("blk.{layer}.{part}");
        let all = d_latent + n_rot;
        let fold = |some| reader.affine_rows(&tensor("attn_kv_a_mqa"), all, n_embd, some);
        let unfolded = n_head * (d_head - n_rot + d_value);
        Ok(Latent {
            fold: fold(0..d_latent)?,
            norm: reader.norm(&tensor("attn_kv_a_norm"), d_latent)?,
            turning: fold(d_latent..all)?,
            unfold: reader.affine(&tensor("attn_kv_b"), unfolded, d_latent)?,
        })
    }

    fn experts(&self, layer: usize, experts: &Experts) -> Result<Ffn, Error> {
        let Layers { reader, hyper, ffn_kind, .. } = *self;
        let (n_embd, blk) = (hyper.n_embd, format!("blk.{layer}"));
        let Experts { n, n_ff, .. } = *experts;
        let part = |part: &str| reader.experts((&blk, part), (n, n_ff, n_embd), 1);
        Ok(Ffn {
            gate: match ffn_kind {
                FfnKind::Plain => None,
                FfnKind::Gated | FfnKind::GatedBoth => Some(part("ffn_gate")?),
            },
            up: part("ffn_up")?,
            down: reader.experts((&blk, "ffn_down"), (n, n_embd, n_ff), n)?,
            n_expert: Some(n),
            down_by_neuron: false,
            predictor: None,
        })
    }

    fn ffn(&self, layer: usize) -> Result<Ffn, Error> {
        let Layers { reader, hyper, ffn_kind, .. } = *self;
        if let Some(experts) = &hyper.experts {
            return self.experts(layer, experts);
        }
        let Hyper { n_embd, n_ff, .. } = *hyper;
        let tensor = |part: &str| format!("blk.{layer}.{part}");
        let half = |first: usize| {
            reader.affine_rows(&tensor("ffn_up"), 2 * n_ff, n_embd, first..first + n_ff)
        };
        let (gate, up) = match ffn_kind {
            FfnKind::Plain => (None, reader.affine(&tensor("ffn_up"), n_ff, n_embd)?),
            FfnKind::Gated | FfnKind::GatedBoth => {
                // Phi 3 has the gate as the first half of up; elsewhere a file without one is damaged.
                let joined = !reader.has(&tensor("ffn_gate.weight"))
                    && reader.n_rows(&tensor("ffn_up.weight"), n_embd, "neurons")? == 2 * n_ff;
                match joined {
                    true => (Some(half(0)?), half(n_ff)?),
                    false => (
                        Some(reader.affine(&tensor("ffn_gate"), n_ff, n_embd)?),
                        reader.affine(&tensor("ffn_up"), n_ff, n_embd)?,
                    ),
                }
            }
        };
        let down_by_neuron = reader.has(&tensor("ffn_down_t.weight"));
        let down = match down_by_neuron {
            true => Affine {
                w: reader.matrix(&tensor("ffn_down_t.weight"), n_ff, n_embd)?,
                bias: reader.optional_vector(&tensor("ffn_down_t.bias"), n_embd)?,
            },
            false => reader.affine(&tensor("ffn_down"), n_embd, n_ff)?,
        };
        let predictor = self.predictor(layer)?;
        Ok(Ffn { gate, up, down, n_expert: None, down_by_neuron, predictor })
    }

    /// The predictor of a layer, of whatever rank; none if its format is not built: it can be done without.
    fn predictor(&self, layer: usize) -> Result<Option<Predictor>, Error> {
        let Layers { reader, hyper, .. } = *self;
        let [fc1, fc2] = ["fc1", "fc2"].map(|part| format!("blk.{layer}.{part}.weight"));
        let found = [&fc1, &fc2].map(|name| reader.has(name));
        let built = [&fc1, &fc2].map(|name| reader.has_built(name));
        if found == [false; 2] || found != built {
            return Ok(None);
        }
        // If only the second is there, that the first is missing is told below.
        let rank = reader.n_rows(&fc1, hyper.n_embd, "any rank")?;
        Ok(Some(Predictor {
            fc1: reader.matrix(&fc1, rank, hyper.n_embd)?,
            fc2: reader.matrix(&fc2, hyper.n_ff, rank)?,
        }))
    }
}

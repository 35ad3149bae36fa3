//! A model as found in a file: which tensor plays which part, all shapes checked.

use std::collections::HashSet;
use std::sync::Arc;

use hal::format::Format;
use hal::op::{Activation, FfnKind};
use hal::{HostRows, Source};

use crate::gguf::{Container, File, TensorInfo, TensorType};

use super::hyper::Keys;
use super::{ArchSpec, Error, Hyper, RopeTable, arch};

/// What the user may say about a model.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// `--ffn-activation`: for files that do not say what they are.
    pub activation: Option<String>,
}

/// The F32 vectors around a layer.
#[derive(Clone, Debug)]
pub struct Norms {
    /// `[1, n_embd]`.
    pub attn: HostRows,
    /// `[1, n_embd]`.
    pub ffn: HostRows,
}

/// A feed-forward block in the file.
#[derive(Clone, Debug)]
pub struct Ffn {
    /// `[n_ff, n_embd]`.
    pub gate: HostRows,
    /// `[n_ff, n_embd]`.
    pub up: HostRows,
    /// `[n_embd, n_ff]`, or `[n_ff, n_embd]` if [`Ffn::down_by_neuron`].
    pub down: HostRows,
    /// The file holds down with one row per neuron (PowerInfer's `ffn_down_t`).
    pub down_by_neuron: bool,
    /// What tells active neurons before their gate is known, if the file has it in a format that is built.
    pub predictor: Option<Predictor>,
}

/// PowerInfer's predictor of active neurons: `score = fc2 . relu(fc1 . p)`, no offsets.
#[derive(Clone, Debug)]
pub struct Predictor {
    /// `[rank, n_embd]`, any rank.
    pub fc1: HostRows,
    /// `[n_ff, rank]`.
    pub fc2: HostRows,
}

/// One layer in the file.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// Norms.
    pub norms: Norms,
    /// `[n_head * d_head, n_embd]` and its offset.
    pub q: (HostRows, Option<HostRows>),
    /// `[n_head_kv * d_head, n_embd]` and its offset.
    pub k: (HostRows, Option<HostRows>),
    /// `[n_head_kv * d_head, n_embd]` and its offset.
    pub v: (HostRows, Option<HostRows>),
    /// `[n_embd, n_head * d_head]` and its offset.
    pub o: (HostRows, Option<HostRows>),
    /// The feed-forward block.
    pub ffn: Ffn,
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
    /// Rotary positions.
    pub rope: RopeTable,
    /// How gate and up combine.
    pub ffn_kind: FfnKind,
    /// Activation of the feed-forward blocks.
    pub activation: Activation,
    /// `[n_vocab, n_embd]`.
    pub token_embd: HostRows,
    /// `[1, n_embd]`.
    pub output_norm: HostRows,
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
        let arch_name =
            file.metadata().str("general.architecture")?.ok_or_else(|| Error::MissingKey {
                file: name.clone(),
                key: "general.architecture".into(),
                expected: "the name of the architecture",
            })?;
        let spec = arch::find(arch_name).ok_or_else(|| Error::Architecture {
            file: name.clone(),
            arch: arch_name.to_owned(),
            known: arch::ALL.iter().map(|spec| spec.name).collect(),
            readable: readable(&file),
        })?;
        let keys = Keys { metadata: file.metadata(), arch: spec.name, file: &name };
        if keys.count("expert_count").ok().flatten().is_some_and(|n| n > 1) {
            return Err(Error::Feature { file: name, what: "a mixture of experts".into() });
        }
        let hyper = Hyper::read(&keys)?;
        let (ffn_kind, activation) = activation(&keys, spec, file.container(), options)?;
        let reader = Reader { file: &file, arch: spec.name, used: HashSet::new().into() };
        let factors = reader.optional_f32("rope_freqs.weight", hyper.n_rot / 2)?;
        let rope = RopeTable::read(&keys, &hyper, factors.as_deref())?;
        let predictor_threshold = threshold(&keys)?;
        let n_vocab = reader.vocabulary(hyper.n_embd)?;
        let token_embd = reader.matrix("token_embd.weight", n_vocab, hyper.n_embd)?;
        let output = match file.tensor("output.weight") {
            Some(_) => reader.matrix("output.weight", n_vocab, hyper.n_embd)?,
            None => token_embd.clone(),
        };
        let output_norm = reader.vector("output_norm.weight", hyper.n_embd)?;
        let layers: Result<Vec<_>, Error> =
            (0..hyper.n_layer).map(|layer| reader.layer(layer, &hyper)).collect();
        let layers = layers?;
        let n_predictors = reader.finish(hyper.n_layer)?;
        Ok(Model {
            spec,
            rope,
            ffn_kind,
            activation,
            token_embd,
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

    /// Whether neurons may be dropped without any loss.
    #[must_use]
    pub fn is_exactly_sparse(&self) -> bool {
        self.activation.is_exactly_sparse()
    }
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
    const KNOWN: &str = "relu, relu2, silu, gelu or drelu";
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
        "drelu" => Ok((FfnKind::GatedBoth, Activation::Relu)),
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

/// A shape in ggml order, as errors show it.
fn shape_list(shape: &[u64]) -> String {
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// A tensor type, as errors show it.
fn type_text(ty: TensorType) -> String {
    if let TensorType::Unknown(id) = ty {
        return format!("of the unknown type {id}{}", TensorType::history(id));
    }
    ty.to_string()
}

/// Takes tensors out of a file and remembers which, so that a tensor nobody asked for is noticed.
struct Reader<'a> {
    file: &'a File,
    arch: &'a str,
    used: std::cell::RefCell<HashSet<String>>,
}

impl Reader<'_> {
    fn name(&self) -> String {
        self.file.name().to_owned()
    }

    /// How many tokens the embedding has rows for: every other shape is checked against it.
    fn vocabulary(&self, n_embd: usize) -> Result<usize, Error> {
        let tensor = "token_embd.weight";
        let expected = format!("{n_embd}, the number of tokens");
        let Some(info) = self.file.tensor(tensor) else {
            return Err(Error::MissingTensor {
                file: self.name(),
                tensor: tensor.into(),
                expected,
            });
        };
        match info.shape.as_slice() {
            [_, rows, ..] if *rows > 0 => Ok(*rows as usize),
            shape => Err(Error::Shape {
                file: self.name(),
                tensor: tensor.into(),
                expected,
                found: shape_list(shape),
            }),
        }
    }

    fn shape_text(rows: usize, cols: usize) -> String {
        if rows == 1 { cols.to_string() } else { format!("{cols}, {rows}") }
    }

    fn find(&self, tensor: &str, rows: usize, cols: usize) -> Result<&TensorInfo, Error> {
        let info = self.file.tensor(tensor).ok_or_else(|| Error::MissingTensor {
            file: self.name(),
            tensor: tensor.to_owned(),
            expected: Self::shape_text(rows, cols),
        })?;
        let fits = info.shape.first() == Some(&(cols as u64))
            && info.shape.get(1).copied().unwrap_or(1) == rows as u64
            && info.shape.iter().skip(2).all(|&n| n == 1);
        if !fits {
            return Err(Error::Shape {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: Self::shape_text(rows, cols),
                found: shape_list(&info.shape),
            });
        }
        self.used.borrow_mut().insert(tensor.to_owned());
        Ok(info)
    }

    /// `[rows, cols]` in any weight format.
    fn matrix(&self, tensor: &str, rows: usize, cols: usize) -> Result<HostRows, Error> {
        let info = self.find(tensor, rows, cols)?;
        let format = info
            .ty
            .id(Container::Gguf)
            .and_then(Format::from_gguf_id)
            .filter(|format| format.is_weight());
        let Some(format) = format else {
            let known: Vec<_> =
                Format::ALL.iter().filter(|f| f.is_weight()).map(Format::to_string).collect();
            return Err(Error::Format {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: known.join(", "),
                found: type_text(info.ty),
            });
        };
        let bytes = self.file.slice(info)?;
        HostRows::new(Source::Mapped(Arc::new(bytes)), rows, cols, format).map_err(|error| {
            Error::Shape {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: Self::shape_text(rows, cols),
                found: error.to_string(),
            }
        })
    }

    /// The values of a vector, whatever its format.
    fn floats(&self, tensor: &str, len: usize) -> Result<Vec<f32>, Error> {
        let stored = self.matrix(tensor, 1, len)?;
        let mut values = vec![0.0f32; len];
        let bytes = stored.rows(0..1).expect("mapped rows are in memory");
        stored.desc().format.dequantize(&bytes, &mut values);
        Ok(values)
    }

    /// A vector as F32.
    fn vector(&self, tensor: &str, len: usize) -> Result<HostRows, Error> {
        let bytes: Vec<u8> = bytemuck::cast_slice(&self.floats(tensor, len)?).to_vec();
        let rows = HostRows::new(Source::Owned(Arc::new(bytes)), 1, len, Format::F32);
        Ok(rows.expect("as many bytes as values"))
    }

    fn optional_vector(&self, tensor: &str, len: usize) -> Result<Option<HostRows>, Error> {
        self.file.tensor(tensor).map(|_| self.vector(tensor, len)).transpose()
    }

    fn optional_f32(&self, tensor: &str, len: usize) -> Result<Option<Vec<f32>>, Error> {
        self.file.tensor(tensor).map(|_| self.floats(tensor, len)).transpose()
    }

    fn layer(&self, layer: usize, hyper: &Hyper) -> Result<LayerWeights, Error> {
        let Hyper { n_embd, n_ff, .. } = *hyper;
        let tensor = |part: &str| format!("blk.{layer}.{part}");
        let linear = |part: &str, rows, cols| -> Result<_, Error> {
            let weight = self.matrix(&tensor(&format!("{part}.weight")), rows, cols)?;
            let bias = self.optional_vector(&tensor(&format!("{part}.bias")), rows)?;
            Ok((weight, bias))
        };
        let norm = |part: &str| self.vector(&tensor(&format!("{part}.weight")), n_embd);
        let down_by_neuron = self.file.tensor(&tensor("ffn_down_t.weight")).is_some();
        let down = match down_by_neuron {
            true => self.matrix(&tensor("ffn_down_t.weight"), n_ff, n_embd)?,
            false => self.matrix(&tensor("ffn_down.weight"), n_embd, n_ff)?,
        };
        Ok(LayerWeights {
            norms: Norms { attn: norm("attn_norm")?, ffn: norm("ffn_norm")? },
            q: linear("attn_q", hyper.n_q(), n_embd)?,
            k: linear("attn_k", hyper.n_kv(), n_embd)?,
            v: linear("attn_v", hyper.n_kv(), n_embd)?,
            o: linear("attn_output", n_embd, hyper.n_q())?,
            ffn: Ffn {
                gate: self.matrix(&tensor("ffn_gate.weight"), n_ff, n_embd)?,
                up: self.matrix(&tensor("ffn_up.weight"), n_ff, n_embd)?,
                down,
                down_by_neuron,
                predictor: self.predictor(layer, hyper)?,
            },
        })
    }

    /// The predictor of a layer, of whatever rank; none if its format is not built: it can be done without.
    fn predictor(&self, layer: usize, hyper: &Hyper) -> Result<Option<Predictor>, Error> {
        let [fc1, fc2] = ["fc1", "fc2"].map(|part| format!("blk.{layer}.{part}.weight"));
        let found = [&fc1, &fc2].map(|name| self.file.tensor(name));
        let built = |info: &TensorInfo| {
            info.ty
                .id(Container::Gguf)
                .and_then(Format::from_gguf_id)
                .is_some_and(Format::is_weight)
        };
        if found == [None, None] || !found.into_iter().flatten().all(built) {
            return Ok(None);
        }
        let rank = found[0].and_then(|info| info.shape.get(1)).map_or(1, |&rank| rank as usize);
        Ok(Some(Predictor {
            fc1: self.matrix(&fc1, rank.max(1), hyper.n_embd)?,
            fc2: self.matrix(&fc2, hyper.n_ff, rank.max(1))?,
        }))
    }

    /// Every tensor must have been asked for; predictors are counted. Gives the number of predictors.
    fn finish(&self, n_layer: usize) -> Result<usize, Error> {
        let used = self.used.borrow();
        let mut n_predictors = 0;
        for info in self.file.tensors() {
            let part = info.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            let of_layer =
                part.filter(|(layer, _)| layer.parse::<usize>().is_ok_and(|layer| layer < n_layer));
            match of_layer.map(|(_, part)| part) {
                Some("fc1.weight") => n_predictors += 1,
                Some("fc2.weight" | "attn_rot_embd" | "attn_rot_embd.weight") => {}
                Some("attention.rotary_emb.inv_freq" | "attn.rot_embd.weight") => {}
                _ if used.contains(&info.name) => {}
                _ => {
                    return Err(Error::UnknownTensor {
                        file: self.name(),
                        tensor: info.name.clone(),
                        arch: self.arch.to_owned(),
                    });
                }
            }
        }
        Ok(n_predictors)
    }
}

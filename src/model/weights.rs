//! A model read from a file: the role of each tensor, with all shapes checked.

use hal::HostRows;
use hal::op::{Activation, FfnKind};

use gguf::{Container, File};

use super::hyper::Keys;
use super::layers::Layers;
use super::reader::{Reader, f32_matrix};
use super::rope_scaling::Scaling;
use super::{
    Affine, ArchSpec, BlockKind, EmbeddingNorm, Error, Experts, Ffn, Hyper, LayerWeights, Linear,
    LocalRope, Ngrams, PerLayerEmbedding, Positions, RankHead, RopeOverrides, arch, situ,
};

/// User options for a model.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// Value of `--ffn-activation`, which replaces the file's activation. `None` keeps the file's
    /// activation or, if the file names none, uses the architecture's default.
    pub activation: Option<String>,
    /// RoPE settings that replace those of the file.
    pub rope: RopeOverrides,
}

/// Learned positions.
#[derive(Clone, Debug)]
pub struct PositionTable {
    /// `[offset + n_positions, n_embd]`.
    pub rows: HostRows,
    /// Number of rows before the row of position 0.
    pub offset: usize,
}

impl PositionTable {
    /// Number of positions with a row.
    #[must_use]
    pub fn n_positions(&self) -> usize {
        self.rows.desc().n_rows.saturating_sub(self.offset)
    }
}

/// A parsed model. Its weights point into `file`, which is memory-mapped, read into memory or built
/// in.
#[derive(Debug)]
pub struct Model {
    /// The file, whose bytes the weights use.
    pub file: File,
    /// The family.
    pub spec: &'static ArchSpec,
    /// Sizes that hold for all layers.
    pub hyper: Hyper,
    /// How gate and up are combined.
    pub ffn_kind: FfnKind,
    /// Activation of the feed-forward blocks.
    pub activation: Activation,
    /// `[n_vocab, n_embd]`.
    pub token_embd: HostRows,
    /// Norm of the embeddings; `None` in models without it.
    pub embedding_norm: Option<Affine>,
    /// Learned positions, added to the embeddings; `None` in models without them.
    pub positions: Option<PositionTable>,
    /// `[1, n_embd]`: the vector of the first token type, added to all embeddings; `None` in models
    /// without token types. Texts with several types are not supported, as in llama.cpp.
    pub token_type: Option<HostRows>,
    /// Per-layer embeddings; `None` in models without them.
    pub per_layer: Option<PerLayerEmbedding>,
    /// The table of n-grams; `None` in models without one.
    pub ngrams: Option<Ngrams>,
    /// `[1, n_embd]`: the norm before the output matrix, with weight and bias multiplied by the logits'
    /// factor; `None` in models whose last layer mixes residual streams instead
    /// ([`super::LowRankHyper`]).
    pub output_norm: Option<Affine>,
    /// `[n_vocab, n_embd]`; the embedding table if the two are tied; `None` in encoders, which
    /// compute no logits.
    pub output: Option<HostRows>,
    /// `[1, n_vocab]`, F32: bias of the logits; `None` without one.
    pub output_bias: Option<HostRows>,
    /// The head of a ranking model; `None` in models without one.
    pub rank: Option<RankHead>,
    /// Projections of the pooled embedding, in order; empty in most models.
    pub projections: Vec<Linear>,
    /// Layers in order.
    pub layers: Vec<LayerWeights>,
    /// Number of layers with a predictor in the file, of any format.
    pub n_predictors: usize,
    /// Minimum score of an active neuron with the file's predictors (`powerinfer.sparse_threshold`,
    /// else 0).
    pub predictor_threshold: f32,
}

impl Model {
    /// Reads the model in `file`.
    ///
    /// # Errors
    /// [`Error`]: unknown architecture, missing or wrong keys and tensors.
    pub fn from_file(file: File, options: &ModelOptions) -> Result<Model, Error> {
        let name = file.name().to_owned();
        let spec = family(&file)?;
        let keys = Keys { metadata: file.metadata(), arch: spec.name, file: &name };
        let mut hyper = Hyper::read(&keys, spec)?;
        // Layers with a sliding window keep the file's frequencies where global layers exist, as in
        // llama.cpp.
        let keeps_local = spec.global_layers.is_some() || spec.local_rope != LocalRope::Scaled;
        let (n_ctx, log) = (hyper.n_ctx_train, spec.yarn_log);
        let scaling = Scaling::read(&keys, n_ctx, keeps_local, log, &options.rope)?;
        hyper.n_ctx_train = scaling.n_ctx_train;
        let (ffn_kind, activation) = activation(&keys, spec, file.container(), options)?;
        let reader = Reader::new(&file, spec);
        let predictor_threshold = threshold(&keys)?;
        let n_vocab = reader.n_rows("token_embd.weight", hyper.n_embd, "the number of tokens")?;
        let token_embd = reader.matrix("token_embd.weight", n_vocab, hyper.n_embd)?;
        let embedding_norm = match spec.embedding_norm {
            EmbeddingNorm::None => None,
            EmbeddingNorm::Weights => Some(reader.norm("token_embd_norm", hyper.n_embd)?),
            EmbeddingNorm::Plain => {
                Some(Affine { w: f32_matrix(1, &vec![1.0; hyper.n_embd]), bias: None })
            }
        };
        let output = match (hyper.causal, reader.has("output.weight")) {
            (false, _) => {
                reader.skip("output.weight");
                None
            }
            (true, true) => Some(reader.matrix("output.weight", n_vocab, hyper.n_embd)?),
            (true, false) => Some(token_embd.clone()),
        };
        let output_bias = reader.optional_vector("output.bias", n_vocab)?;
        let last_norm = format!("blk.{}.layer_output_norm", hyper.n_layer - 1);
        let output_norm = match spec.block {
            BlockKind::SumNorm => last_norm.as_str(),
            BlockKind::Sequential
            | BlockKind::Sandwich
            | BlockKind::PostNorm
            | BlockKind::Parallel
            | BlockKind::ParallelByKey
            | BlockKind::ParallelWithoutNorm => spec.output_norm,
        };
        let scaled = || reader.scaled_norm(output_norm, hyper.n_embd, hyper.scales.logits);
        let output_norm = (!spec.low_rank_hyper).then(scaled).transpose()?;
        let positions = positions(&reader, spec, &hyper)?;
        let token_type = token_type(&reader, &hyper)?;
        let per_layer = PerLayerEmbedding::read(&reader, &keys, &hyper, n_vocab)?;
        let ngrams = Ngrams::read(&reader, &keys, spec, &hyper)?;
        let projections = Linear::projections(&reader, hyper.n_embd)?;
        let rank = RankHead::read(&reader, &keys, spec, &hyper)?;
        let layers =
            Layers::new(&reader, &keys, spec, &hyper, (ffn_kind, activation), &scaling)?.read()?;
        let n_predictors = reader.finish(&hyper)?;
        Ok(Model {
            spec,
            ffn_kind,
            activation,
            token_embd,
            embedding_norm,
            positions,
            token_type,
            per_layer,
            ngrams,
            output_norm,
            output,
            output_bias,
            rank,
            projections,
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

    /// Number of values of an embedding.
    #[must_use]
    pub fn n_embedding(&self) -> usize {
        self.projections.last().map_or(self.hyper.n_embd, Linear::n_out)
    }

    /// The embedding of a text whose pooled hidden state is `state`.
    #[must_use]
    pub fn project(&self, state: Vec<f32>) -> Vec<f32> {
        self.projections.iter().fold(state, |x, by| by.apply(&x))
    }

    /// Number of values of the output matrix's result: one for each token id, or 0 in encoders.
    #[must_use]
    pub fn n_logits(&self) -> usize {
        self.output.as_ref().map_or(0, |output| output.desc().n_rows)
    }

    /// Whether the embedding is also the output matrix.
    #[must_use]
    pub fn is_tied(&self) -> bool {
        self.output.is_some() && self.file.tensor("output.weight").is_none()
    }

    /// The feed-forward blocks, each with the index of its layer. Layers without a block are
    /// skipped.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, &Ffn)> {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(index, layer)| Some((index, layer.ffn.as_ref()?)))
    }

    /// Number of neurons of each layer.
    #[must_use]
    pub fn neurons(&self) -> Vec<usize> {
        self.layers.iter().map(LayerWeights::n_ff).collect()
    }

    /// Number of neurons of the largest feed-forward block.
    #[must_use]
    pub fn max_n_ff(&self) -> usize {
        self.layers.iter().map(LayerWeights::n_ff).max().unwrap_or(0)
    }

    /// Experts of the first layer with experts; `None` in a dense model.
    #[must_use]
    pub fn experts(&self) -> Option<&Experts> {
        self.layers.iter().find_map(LayerWeights::experts)
    }

    /// Maximum number of experts of a layer; 0 in a dense model.
    #[must_use]
    pub fn max_experts(&self) -> usize {
        let experts = self.layers.iter().filter_map(LayerWeights::experts);
        experts.map(|experts| experts.n).max().unwrap_or(0)
    }

    /// Kind and activation of the feed-forward blocks, as text. The text is equal for models whose
    /// neurons compute the same function.
    #[must_use]
    pub fn ffn_function(&self) -> String {
        format!("{:?} {:?}", self.ffn_kind, self.activation)
    }

    /// Whether any layer has RoPE.
    #[must_use]
    pub fn has_rope(&self) -> bool {
        self.layers.iter().filter_map(LayerWeights::attention).any(|by| by.rope.is_some())
    }

    /// Whether neurons can be skipped without any loss.
    #[must_use]
    pub fn is_exactly_sparse(&self) -> bool {
        self.activation.is_exactly_sparse()
    }
}

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

/// One line about the contents of a file of an unknown family.
fn readable(file: &File) -> String {
    let metadata = file.metadata();
    let tokens = metadata.str_array("tokenizer.ggml.tokens").ok().flatten().map_or(0, |t| t.len());
    format!(
        "{} keys, {} tensors, a vocabulary of {tokens} tokens",
        metadata.len(),
        file.tensors().len()
    )
}

/// The activation: the user's choice, else the file's, else the family's for this container.
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
            Container::Gguf => situ::read(keys, spec.activation)?,
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
        other => Err(keys.wrong_key("hidden_activation", KNOWN, format!("`{other}`"))),
    }
}

/// Minimum score of an active neuron: the value in the file, else 0 as in PowerInfer.
fn threshold(keys: &Keys<'_>) -> Result<f32, Error> {
    const KEY: &str = "powerinfer.sparse_threshold";
    let value = keys.metadata.f32(KEY)?.unwrap_or(0.0);
    let error = || Error::Key {
        file: keys.file.to_owned(),
        key: KEY.to_owned(),
        expected: "a number other than NaN".to_owned(),
        found: value.to_string(),
    };
    if value.is_nan() { Err(error()) } else { Ok(value) }
}

/// Row 0 of the token types; `None` in files without them.
fn token_type(reader: &Reader<'_>, hyper: &Hyper) -> Result<Option<HostRows>, Error> {
    const TABLE: &str = "token_types.weight";
    if !reader.has(TABLE) {
        return Ok(None);
    }
    let n_rows = if reader.is_vector(TABLE) {
        1
    } else {
        reader.n_rows(TABLE, hyper.n_embd, "the number of token types")?
    };
    reader.f32_rows(TABLE, n_rows, hyper.n_embd, 0..1).map(Some)
}

fn positions(
    reader: &Reader<'_>,
    spec: &ArchSpec,
    hyper: &Hyper,
) -> Result<Option<PositionTable>, Error> {
    const TABLE: &str = "position_embd.weight";
    let offset = match spec.positions {
        Positions::Learned { offset } => offset,
        // Files of MPT can have a table too.
        Positions::None if reader.has(TABLE) => 0,
        Positions::None | Positions::Rotary(_) => return Ok(None),
    };
    let n_rows = reader.n_rows(TABLE, hyper.n_embd, "the number of positions")?;
    Ok(Some(PositionTable { rows: reader.matrix(TABLE, n_rows, hyper.n_embd)?, offset }))
}

//! Converts a Hugging Face checkpoint to a GGUF or PowerInfer file.

use std::fs;
use std::path::{Path, PathBuf};

use super::config::Json;
use super::family;
use super::output::{Content, Output};
use super::plan::Plan;
use super::source::Checkpoint;
use super::write::{self, Progress};
use super::{Error, OutType, computed, dense, predictor, vocab, xielu};
use gguf::{Container, TensorType, Writer};
use hal::format::Format;

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The folder with `config.json`.
    pub folder: PathBuf,
    /// The folder with PowerInfer's predictors, `model_0.pt` and so on; `None` for a model without
    /// predictors.
    pub predictor: Option<PathBuf>,
    /// The output file.
    pub output: PathBuf,
    /// The type of most weights.
    pub out_type: OutType,
    /// The container; by default PowerInfer's if there is a predictor.
    pub container: Option<Container>,
    /// The name of the pre-tokenizer; `None` identifies it by the steps in `tokenizer.json`.
    pub pre: Option<String>,
    /// The model's name; by default the last component of `_name_or_path` in `config.json`,
    /// otherwise the folder's name.
    pub name: Option<String>,
    /// Overwrite an existing file.
    pub force: bool,
}

/// Result of a conversion.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Architecture and type of most weights, such as `llama, F16`; empty for copied tensors.
    pub what: String,
    /// Tensors in the file.
    pub n_tensors: usize,
    /// Bytes of the file.
    pub size: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Conversion {
    /// Converts the model. `output` appears only when the file is complete.
    ///
    /// # Errors
    /// Errors in the folder's files, an unsupported family, an I/O error,
    /// [`Error::Interrupted`].
    pub fn run(&self, progress: Progress<'_>) -> Result<Summary, Error> {
        let inputs = self.inputs();
        let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
        write::check_target(&self.output, &inputs, self.force)?;
        let config = Json::open(&self.folder.join("config.json"))?.flatten("text_config");
        let family = family::find(&config)?;
        let config = config.with_defaults(family.defaults);
        let mut build = family.build(&config)?;
        let extra = std::mem::take(&mut build.extra);
        let container = match (self.container, &self.predictor) {
            (Some(container), _) => container,
            (None, Some(_)) => Container::PowerInfer,
            (None, None) => Container::Gguf,
        };
        if container == Container::PowerInfer {
            self.check_power_infer(family, &extra)?;
        }
        let mut checkpoint = Checkpoint::open(&self.folder)?;
        checkpoint.join_scales(&config)?;
        let plan = Plan {
            family,
            build: &build,
            out_type: self.out_type_in(container),
            transpose_down: self.predictor.is_some(),
        };
        let (more, more_keys) = self.more(&checkpoint, &build)?;
        let mut outputs = extra;
        outputs.extend(more);
        let (planned, lost) = plan.outputs(&checkpoint)?;
        outputs.extend(planned);
        let mut notes = std::mem::take(&mut build.notes);
        notes.extend(lost);
        let threshold = match &self.predictor {
            Some(folder) => {
                let (out_type, n_layer) = (self.out_type_in(container), build.n_layer()?);
                predictor::add(folder, n_layer, &mut outputs, out_type, &mut notes)?
            }
            None => None,
        };
        notes.extend(self.out_type.misfit_notes(&outputs));
        if container == Container::PowerInfer {
            untie(&mut outputs, family.arch)?;
        }
        let n_vocab = outputs
            .iter()
            .find(|output| output.name == "token_embd.weight")
            .map_or(0, Output::n_rows);
        let vocab_inputs = vocab::VocabInputs {
            folder: &self.folder,
            config: &config,
            n_vocab,
            pre: self.pre.as_deref(),
            space_prefix: family.space_prefix,
            model: family.vocab,
            encodes: build.has("attention.causal"),
            embeds: build.has("pooling_type") && !build.has("attention.causal"),
        };
        let (vocab_keys, vocab_notes) = vocab::keys(&vocab_inputs)?;
        notes.extend(vocab_notes);
        let mut writer = Writer::new(container);
        self.set_general(&config, family.arch, &outputs, &mut writer)?;
        for (key, value) in build.keys.drain(..).chain(more_keys).chain(vocab_keys) {
            writer.set(&key, value)?;
        }
        notes.extend(activation(&config, family, container, &mut writer)?);
        if let Some(threshold) = threshold {
            writer.set("powerinfer.sparse_threshold", threshold)?;
        }
        let size = write::write(writer, &outputs, &self.output, progress)?;
        let what = format!("{}, {}", family.arch, type_of_largest(&outputs));
        Ok(Summary { what, n_tensors: outputs.len(), size, notes })
    }

    /// Tensors and keys that the rules of a family do not describe.
    fn more(
        &self,
        checkpoint: &Checkpoint,
        build: &family::Build<'_>,
    ) -> Result<dense::Additions, Error> {
        let n_layer = build.n_layer()?;
        match build.arch {
            "deepseek4" => computed::expert_tables(checkpoint, build),
            "kimi-k3" => computed::kimi_scores(checkpoint, n_layer),
            "talkie" => computed::talkie_gain(checkpoint),
            "qwen4exp" => computed::qwen_hash(checkpoint),
            "jais" => computed::jais_bias(checkpoint),
            "apertus" => Ok((Vec::new(), xielu::keys(checkpoint, n_layer)?)),
            "gemma-embedding" => dense::read(&self.folder, build.arch, self.out_type),
            _ => Ok((Vec::new(), Vec::new())),
        }
    }

    /// All files of the folders that a conversion may read.
    fn inputs(&self) -> Vec<PathBuf> {
        const ENDS: [&str; 7] = ["json", "txt", "model", "jinja", "safetensors", "bin", "pt"];
        let folders = [Some(&self.folder), self.predictor.as_ref()];
        // A folder that cannot be listed is skipped; reading its files reports the error later.
        let entries = folders.into_iter().flatten().filter_map(|folder| fs::read_dir(folder).ok());
        let paths = entries.flatten().flatten().map(|entry| entry.path());
        let ends = |path: &PathBuf| {
            path.extension().is_some_and(|end| ENDS.iter().any(|known| end == *known))
        };
        paths.filter(ends).collect()
    }

    /// The type of most weights. `Auto` means F16 for PowerInfer, whose type table lacks BF16 and
    /// whose sparse kernels read F16.
    fn out_type_in(&self, container: Container) -> OutType {
        match (container, self.out_type) {
            (Container::PowerInfer, OutType::Auto) => OutType::F16,
            (_, out_type) => out_type,
        }
    }

    fn check_power_infer(&self, family: &family::Family, extra: &[Output]) -> Result<(), Error> {
        let unsupported = |what: &str| Err(Error::PowerInfer { what: what.to_owned() });
        if self.predictor.is_none() {
            return unsupported("a model without a predictor for each layer");
        }
        if !family.power_infer {
            return unsupported(&format!("models of the architecture `{}`", family.arch));
        }
        if !extra.is_empty() {
            return unsupported("RoPE scaling by a table of factors");
        }
        if matches!(self.out_type, OutType::Bf16 | OutType::Q8_0) {
            return unsupported(
                "sparse weights of this type; use f16 or f32, which `quantize` converts to Q4_0",
            );
        }
        Ok(())
    }

    fn set_general(
        &self,
        config: &Json,
        arch: &str,
        outputs: &[Output],
        writer: &mut Writer,
    ) -> Result<(), Error> {
        writer.set("general.architecture", arch)?;
        writer.set("general.type", "model")?;
        let path = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
        let own = config.text(&["_name_or_path"])?.filter(|name| !name.is_empty());
        let own =
            own.and_then(|name| Some(Path::new(&name).file_name()?.to_string_lossy().into_owned()));
        let folder = || path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = self.name.clone().or(own).or_else(folder);
        writer.set("general.name", name.unwrap_or_else(|| arch.to_owned()))?;
        let ty = type_of_largest(outputs);
        writer.set("general.file_type", file_type(ty))?;
        if ty.format().is_some_and(|format| format.quants().is_some()) {
            writer.set("general.quantization_version", 2_u32)?;
        }
        Ok(())
    }
}

/// The type of the largest tensor.
fn type_of_largest(outputs: &[Output]) -> TensorType {
    let largest = outputs.iter().max_by_key(|output| output.n_rows() * output.row_bytes());
    largest.map_or(TensorType::F32, |output| output.ty)
}

/// llama.cpp's number for "mostly this type", for the types that conversion supports.
fn file_type(ty: TensorType) -> u32 {
    [(Format::F16, 1), (Format::Q8_0, 7), (Format::BF16, 32), (Format::MXFP4, 38)]
        .iter()
        .find(|(known, _)| ty == *known)
        .map_or(0, |(_, number)| *number)
}

/// Sets the activation if it is not the architecture's default. Returns a note for the user if
/// `config.json` names FATReLU or a shifted ReLU.
fn activation(
    config: &Json,
    family: &family::Family,
    container: Container,
    writer: &mut Writer,
) -> Result<Option<String>, Error> {
    const KEYS: &[&str] =
        &["hidden_activation", "hidden_act", "activation_function", "activation", "mlp_hidden_act"];
    if family.activation.is_empty() || container == Container::PowerInfer {
        return Ok(None);
    }
    let Some(named) = config.text(KEYS)? else { return Ok(None) };
    let known = match named.as_str() {
        "relu" | "fatrelu" | "shifted_relu" => "relu",
        "relu2" | "relu_squared" | "squared_relu" => "relu2",
        "silu" | "swish" | "swiglu" => "silu",
        // In Gemma's settings `gelu` means the tanh approximation.
        "gelu" if family.arch.starts_with("gemma") => "gelu",
        "gelu" | "gelu_python" => "gelu_erf",
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_accurate" => {
            "gelu"
        }
        _ => {
            let expected = "relu, relu2, silu, gelu, gelu_new or gelu_pytorch_tanh";
            return Err(config.wrong_value("hidden_act", expected, named));
        }
    };
    if known != family.activation {
        writer.set(&format!("{}.hidden_activation", family.arch), known)?;
    }
    let is_shifted = !matches!(named.as_str(), "relu") && known == "relu";
    Ok(is_shifted.then(|| format!("`{named}` is run as an ordinary ReLU, as in PowerInfer: a threshold above zero is ignored")))
}

/// Adds a copy of a tied embedding as the output matrix, which PowerInfer's loader of 2023 requires
/// (except for `opt`).
fn untie(outputs: &mut Vec<Output>, arch: &str) -> Result<(), Error> {
    let is_untied = outputs.iter().any(|output| output.name == "output.weight");
    if arch == "opt" && is_untied {
        let what = "a separate output matrix in the architecture `opt`".to_owned();
        return Err(Error::PowerInfer { what });
    }
    if arch == "opt" || is_untied {
        return Ok(());
    }
    let embedding = outputs.iter().find(|output| output.name == "token_embd.weight");
    let missing = || Error::MissingTensor { tensor: "token_embd.weight".to_owned() };
    let embedding = embedding.ok_or_else(missing)?;
    let Content::Rows(pieces) = &embedding.content else { return Err(missing()) };
    let output = Output {
        name: "output.weight".to_owned(),
        shape: embedding.shape.clone(),
        ty: embedding.ty,
        content: Content::Rows(pieces.clone()),
    };
    outputs.push(output);
    Ok(())
}

//! `thermocline info`: whether a model runs on this machine, and the contents of its file. The model
//! is not run, so this works for any GGUF file, including vocabularies and unsupported
//! architectures.

mod json;
mod text;
mod verdict;

use crate::cli::args::InfoArgs;
use crate::cli::failure::Failure;
use crate::cli::folders::cache_folder;
use crate::cli::output::Output;
use crate::gguf::{File, TensorInfo, Value};
use crate::learned::{Section, SideFile};
use crate::model::{Model, ModelOptions};
use crate::profile::{Counts, Profile};
use crate::tokenizer::{Tokenizer, Vocab};
use std::collections::BTreeMap;
use std::path::Path;
use verdict::Verdict;

/// Prints the report.
///
/// # Errors
/// The file is not a model, or standard output cannot be written.
pub(crate) fn run(args: &InfoArgs) -> Result<(), Failure> {
    let path = args.model.as_deref();
    let file = runtime::file(path)?;
    let facts = Facts { profile: profile(path), ..Facts::new(&file, path.is_none()) };
    let verdict = Verdict::new(path, &facts);
    let mut out = Output::stdout();
    if args.json {
        out.line(&format!("{:#}", json::report(&facts, &verdict)))?;
    } else {
        out.write(text::report(&facts, &verdict, args.tensors))?;
    }
    out.flush()
}

/// The facts that the report prints, as text or as JSON.
struct Facts<'a> {
    file: &'a File,
    /// Whether the model is built in: the report then ends with the model's notices.
    is_built_in: bool,
    architecture: Option<String>,
    n_params: u128,
    /// For each tensor type, the number of tensors and their total bytes.
    types: BTreeMap<&'static str, (usize, u128)>,
    /// Metadata values under `<architecture>.`, in the order of [`FACTS`].
    hyper: Vec<(&'static str, &'a Value)>,
    /// `None` without a vocabulary; `Err` says why it cannot be used.
    tokenizer: Option<Result<Tokenizer, String>>,
    /// Tensors of PowerInfer's predictor of active neurons.
    predictor: Vec<&'a TensorInfo>,
    /// The activation profile; `Err` says why it cannot be used.
    profile: Option<Result<StoredProfile, String>>,
}

struct StoredProfile {
    profile: Profile,
    counts: Counts,
    file: String,
}

/// The profile of the model at `path`; `None` if the model is unsupported or has no profile.
fn profile(path: Option<&Path>) -> Option<Result<StoredProfile, String>> {
    let folder = cache_folder(None).map(|folder| folder.path);
    let file = runtime::file(path).ok()?;
    let learned = match SideFile::find(&file, folder.as_deref(), Section::Profile) {
        Ok(found) => found?,
        Err(refused) => return Some(Err(refused.to_string())),
    };
    let model = Model::from_file(file, &ModelOptions::default()).ok()?;
    let read = Profile::read(&learned, &model).map_err(|refused| refused.to_string());
    let (counts, file) = (Counts::of(&model), learned.name().to_owned());
    let known = |profile| StoredProfile { profile, counts, file };
    read.transpose().map(|read| read.map(known))
}

/// Labels in the report, and the metadata keys after the architecture's name.
const FACTS: [(&str, &str); 8] = [
    ("context", "context_length"),
    ("layers", "block_count"),
    ("width", "embedding_length"),
    ("neurons per layer", "feed_forward_length"),
    ("attention heads", "attention.head_count"),
    ("key-value heads", "attention.head_count_kv"),
    ("experts", "expert_count"),
    ("activation", "hidden_activation"),
];

impl<'a> Facts<'a> {
    fn new(file: &'a File, is_built_in: bool) -> Self {
        let metadata = file.metadata();
        let architecture = metadata.get("general.architecture").and_then(Value::as_str);
        let architecture = architecture.map(|a| a.into_owned());
        let prefix = architecture.clone().unwrap_or_default();
        let hyper = FACTS.iter().filter_map(|(name, key)| {
            let value = metadata.get(&format!("{prefix}.{key}"))?;
            Some((*name, value))
        });
        let mut types = BTreeMap::new();
        for tensor in file.tensors() {
            let (count, bytes) = types.entry(tensor.ty.name()).or_insert((0, 0));
            *count += 1;
            *bytes += u128::from(tensor.n_bytes());
        }
        let has_vocab = metadata.get("tokenizer.ggml.model").is_some();
        let tokenizer = || Vocab::from_metadata(metadata).and_then(Tokenizer::new);
        Self {
            file,
            is_built_in,
            architecture,
            n_params: file.tensors().iter().map(|t| u128::from(t.n_elements())).sum(),
            types,
            hyper: hyper.collect(),
            tokenizer: has_vocab.then(|| tokenizer().map_err(|e| e.to_string())),
            predictor: file.tensors().iter().filter(|t| is_predictor(t)).collect(),
            profile: None,
        }
    }

    /// Minimum score of an active neuron, as in the loader.
    fn predictor_threshold(&self) -> f32 {
        let value = self.file.metadata().f32("powerinfer.sparse_threshold");
        value.ok().flatten().unwrap_or(0.0)
    }

    /// Special tokens, each with its role, id and text.
    fn special_tokens(tokenizer: &Tokenizer) -> Vec<(&'static str, u32, String)> {
        let ids = tokenizer.special();
        let roles = [
            ("bos", ids.bos),
            ("eos", ids.eos),
            ("eot", ids.eot),
            ("eom", ids.eom),
            ("unk", ids.unk),
            ("sep", ids.sep),
            ("pad", ids.pad),
        ];
        let known = roles.into_iter().filter_map(|(role, id)| {
            let id = id?;
            let text = String::from_utf8_lossy(tokenizer.piece(id, true).ok()?).into_owned();
            Some((role, id, text))
        });
        known.collect()
    }
}

fn is_predictor(tensor: &TensorInfo) -> bool {
    let name = tensor.name.as_str();
    name.starts_with("blk.") && [".fc1.weight", ".fc2.weight"].iter().any(|e| name.ends_with(e))
}

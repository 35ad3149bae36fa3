//! Maps errors of the lower layers to failures with an exit code and a hint.

use crate::cli::failure::{Exit, Failure};
use crate::gguf::{self, Problem};
use crate::{engine, evaluate, generate, learned, model, predictor, profile};
use runtime::{DeviceError, MemoryLimit};
use std::io::ErrorKind;

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        use model::Error as E;
        let failure = Failure::new(Exit::BadModel, "cannot run the model").caused_by(&error);
        match &error {
            E::Container(_) | E::Shape { .. } | E::Values { .. } => failure,
            E::Architecture { known, readable, .. } => failure.help(format!(
                "supported architectures: {}; found in this file: {readable}",
                known.join(", ")
            )),
            E::Key { key, .. } if key.ends_with("hidden_activation") => {
                failure.help("--ffn-activation NAME overrides the file")
            }
            E::Key { .. } | E::MissingKey { .. } => {
                failure.help("`thermocline info` lists the contents of the file")
            }
            E::Rope { setting, .. } => Failure::usage(error.to_string())
                .help(format!("--{} sets it", setting.replace('_', "-"))),
            E::MissingTensor { .. } => failure.help(
                "the file is damaged, not a language model, or only a vocabulary; `thermocline info` lists its contents",
            ),
            E::Format { .. } => failure.help("llama.cpp's llama-quantize converts between formats"),
            E::UnknownTensor { .. } => {
                failure.help("this version does not support this variant of the architecture")
            }
        }
    }
}

impl From<model::AdapterError> for Failure {
    fn from(error: model::AdapterError) -> Self {
        use model::AdapterError as E;
        let without_memory = matches!(&error, E::Container(file) if is_out_of_memory(file));
        let exit = if without_memory { Exit::Memory } else { Exit::BadModel };
        let failure = Failure::new(exit, "cannot use the LoRA adapter").caused_by(&error);
        match error {
            E::NotAnAdapter { .. } | E::Kind { .. } => failure.help(
                "--lora takes a GGUF file that llama.cpp's convert_lora_to_gguf.py wrote; -m takes models",
            ),
            E::Architecture { .. } | E::NoSuchTensor { .. } | E::Shape { .. } => {
                failure.help("the adapter must be made for the model of -m; `thermocline info` lists the tensors of both files")
            }
            E::Values { .. } => failure.help("a smaller scale (--lora-scaled FILE:SCALE) may fit"),
            E::Container(_)
            | E::Activated { .. }
            | E::Scale { .. }
            | E::UnknownTensor { .. }
            | E::MissingTensor { .. }
            | E::Empty { .. }
            | E::NotAMatrix { .. }
            | E::Format { .. } => failure,
        }
    }
}

impl From<serve::Error> for Failure {
    fn from(error: serve::Error) -> Self {
        let failure = Failure::chain(Exit::Failed, &error);
        let serve::Error::Listen { reason, .. } = &error else { return failure };
        failure.help(if reason.kind() == ErrorKind::AddrInUse {
            "another program uses the port: --port N selects another one"
        } else if reason.kind() == ErrorKind::PermissionDenied {
            "ports below 1024 need permission: --port N selects another one"
        } else {
            "--host takes an address of this machine, such as 127.0.0.1 or 0.0.0.0"
        })
    }
}

/// The failure for an error of a backend or its device.
fn device(error: &hal::Error) -> Failure {
    use hal::Error as E;
    match error {
        E::OutOfMemory { requested, free, .. } => {
            let help = if requested > free {
                "use a smaller context (-c) or a model with fewer bits per weight"
            } else {
                "a limit of this process is too low, such as the address space (`ulimit -v`)"
            };
            Failure::new(Exit::Memory, "not enough memory").caused_by(error).help(help)
        }
        E::MissingLibrary { hint, .. } => {
            let message = "a backend's library is missing";
            Failure::new(Exit::BackendMissing, message).caused_by(error).help(hint.clone())
        }
        E::Cancelled => Failure::interrupted(),
        E::DeviceLost { .. } | E::TimedOut { .. } | E::Driver { .. } => {
            let help = "if it is a GPU, update its driver, turn off features of it (--device-options graphs=off,flags=off,mma=off,prefetch=off,subgroups=off), or use only the CPU (--device none); `thermocline doctor` tests devices";
            Failure::new(Exit::Failed, "a device failed").caused_by(error).help(help)
        }
        E::Unsupported { .. } => {
            let message = "no device of this machine can run this model";
            Failure::new(Exit::BadModel, message).caused_by(error)
        }
        E::Shape { .. } | E::Aliasing { .. } | E::ForeignBuffer { .. } => {
            let message = "this is an internal error; please report it";
            Failure::new(Exit::Failed, message).caused_by(error)
        }
    }
}

/// Whether the system has no memory, or no addresses, for a file.
pub(crate) fn is_out_of_memory(error: &gguf::Error) -> bool {
    let Problem::Io { reason, .. } = error.problem() else { return false };
    reason.kind() == ErrorKind::OutOfMemory
}

/// What to do about a model file that is missing or too short.
fn file_help(error: &gguf::Error) -> Option<&'static str> {
    if let Problem::Truncated { .. } | Problem::Count { .. } | Problem::BeyondEnd { .. } =
        error.problem()
    {
        return Some("the file is probably incomplete: copy or download it again");
    }
    if let Problem::SourceChanged | Problem::SourceLost = error.problem() {
        return Some("start again once the file is complete");
    }
    let Problem::Io { reason, .. } = error.problem() else { return None };
    let missing = reason.kind() == ErrorKind::NotFound;
    missing.then_some("check the path; `thermocline list` shows the downloaded models")
}

impl From<runtime::Error> for Failure {
    fn from(error: runtime::Error) -> Self {
        use runtime::Error as E;
        let failed = |exit| Failure::chain(exit, &error);
        match error {
            E::Model(error) => error.into(),
            E::Engine(error) => error.into(),
            E::Predictor(error) => error.into(),
            E::Device(error) => error.into(),
            E::File(ref file) if is_out_of_memory(file) => failed(Exit::Memory)
                .help("raise the limit of this process (`ulimit -v`)"),
            E::File(ref file) => {
                Failure { help: file_help(file).map(str::to_owned), ..failed(Exit::BadModel) }
            }
            E::Read { ref reason, .. } if reason.kind() == ErrorKind::OutOfMemory => {
                failed(Exit::Memory)
            }
            E::Read { .. } | E::Vocabulary { .. } | E::VocabularySize { .. } => {
                failed(Exit::BadModel)
            }
            E::Adapter(error) => error.into(),
            E::AdaptersTooLarge { .. } => failed(Exit::Memory)
                .help("merge the adapters into a file of the model and quantise that file"),
            E::TooLargeToRead { .. } => {
                failed(Exit::Memory).help("remove --no-mmap, so that the file is memory-mapped")
            }
            E::Memory { ref items, n_ctx, n_ctx_in_memory, limit, .. } => {
                let mut failure = failed(Exit::Memory);
                failure.causes.extend(Some(items.clone()).filter(|items| !items.is_empty()));
                let raised = match limit {
                    MemoryLimit::Budget => "raise --ram-budget, or ",
                    MemoryLimit::Machine | MemoryLimit::Free => "",
                };
                failure.help(match (n_ctx, n_ctx_in_memory) {
                    (Some(n), Some(most)) if most < n => format!(
                        "{raised}use a context of at most {n} tokens: -c {n}; with at most -c {most} no weights stay on disk, which is faster"
                    ),
                    (Some(n), _) => format!("{raised}use a context of at most {n} tokens: -c {n}"),
                    (None, _) if items.is_empty() => {
                        "use a smaller shape or fewer bits per weight, or --write FILE to write it to disk"
                            .to_owned()
                    }
                    (None, _) => {
                        format!("{raised}use a file of the same model with fewer bits per weight")
                    }
                })
            }
            E::NoPredictor => failed(Exit::Failed).help(
                "`thermocline predictor -m MODEL -f TEXT` trains one; --sparsity exact needs none",
            ),
            E::NoLevels => failed(Exit::Failed).help(
                "--sparsity predicted uses this predictor; `thermocline predictor` without --import trains one with quality levels",
            ),
            E::LevelNotReached { .. } => failed(Exit::Failed).help(
                "use --sparsity exact, which keeps the full quality, or set the error directly, such as --sparsity 0.05",
            ),
            E::EmptyPrompt => Failure::usage(error.to_string()).help("pass a prompt with -p"),
            E::Text(_) | E::Template(_) | E::Sample(_) | E::Constraint(_) => failed(Exit::Failed),
            _ => failed(Exit::Failed),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let missing = match &error {
            DeviceError::Unknown { missing, .. }
            | DeviceError::OfBackend { missing, .. }
            | DeviceError::Number { missing, .. } => missing.clone(),
            DeviceError::CannotOpen { .. } => None,
            DeviceError::Twice { .. }
            | DeviceError::SameCard { .. }
            | DeviceError::Budgets { .. } => {
                return Failure::usage(error.to_string());
            }
            DeviceError::ShareOfUnknown { .. } => {
                return Failure::usage(format!("--vram-budget: {error}"))
                    .help("set the budget in bytes, such as 6GiB");
            }
            DeviceError::Override { help, .. } => {
                return Failure::usage(format!("--override-tensor: {error}")).help(help.clone());
            }
            DeviceError::Assumed { help, .. } => {
                let failure = Failure::usage(format!("--assume: {error}"));
                return match help {
                    Some(help) => failure.help(*help),
                    None => failure,
                };
            }
        };
        let mut failure = Failure::chain(Exit::BackendMissing, &error);
        if let Some(missing) = missing {
            failure.causes = vec![format!("{}: {}", missing.backend, missing.reason)];
            failure = failure.help(missing.hint);
        }
        failure
    }
}

impl From<predictor::Error> for Failure {
    fn from(error: predictor::Error) -> Self {
        use predictor::Error as E;
        let failure = Failure::new(Exit::Failed, error.to_string());
        match error {
            E::Unfinished { .. } => {
                failure.help("`thermocline predictor` resumes where it stopped")
            }
            E::Refused(_) | E::Damaged { .. } => {
                failure.help("remove the file and run `thermocline predictor` again")
            }
            E::TooShort { .. } => failure.help("pass a longer text with -f"),
            E::TooLarge { least, .. } => failure.help(format!(
                "use --max-size {:.1}% or more, a smaller --rank, or --kind sign",
                (1000.0 * least).ceil() / 10.0
            )),
            E::OtherRecipe { .. } => failure.help(
                "the same text and settings resume that run, --restart replaces its file, --out writes another file",
            ),
            E::NewerResult { .. } => failure.help("run the command again after the other process has ended"),
            E::Singular { .. } => failure.help("pass a longer, more varied text with -f"),
            E::Save(error) => match without_room(&error) {
                Some(more) => Failure::from(error).help(format!(
                    "free {more} on that disk, choose another one with --out FILE, or make the predictor smaller: --max-size 4%, --rank 64 or --kind sign"
                )),
                None => error.into(),
            },
            E::Read { .. } => failure,
        }
    }
}

/// What to free if the disk is too full for a side file, in words.
fn without_room(error: &learned::SaveError) -> Option<String> {
    let learned::SaveError::File(error) = error else { return None };
    if let Problem::Disk { wanted, free } = error.problem() {
        return Some(format!("another {}", *wanted - *free));
    }
    let Problem::Io { reason, .. } = error.problem() else { return None };
    (reason.kind() == ErrorKind::StorageFull).then(|| "some space".to_owned())
}

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        use engine::Error as E;
        match &error {
            E::Device(error) => device(error),
            E::Interrupted => Failure::interrupted(),
            E::ContextFull { .. } => {
                Failure::new(Exit::Failed, error.to_string()).help("-c N makes the context larger")
            }
            E::Positions { .. } => {
                Failure::usage(error.to_string()).help("-c N makes the context smaller")
            }
            E::CacheFormat { .. } => Failure::usage(error.to_string())
                .help("-ctk and -ctv f16, f32 and bf16 work with any model"),
            E::WideExperts { .. } => Failure::usage(error.to_string()),
            E::Placement(_) => {
                Failure::new(Exit::Failed, "cannot place the model").caused_by(&error)
            }
            E::TooManySequences { .. } => Failure::new(Exit::Failed, error.to_string())
                .help("-np N allows more sequences at once"),
            E::Encoder => Failure::new(Exit::BadModel, error.to_string())
                .help("`thermocline embed -m MODEL TEXT` prints the embedding of a text"),
            E::TextInParts { .. } => Failure::new(Exit::Failed, error.to_string()),
            E::NotRestored(_) => Failure::new(Exit::Failed, error.to_string()),
            E::Store(store::Error::Capacity { .. }) => {
                Failure::new(Exit::Memory, error.to_string())
                    .help("raise --ram-budget, or make the context smaller with -c")
            }
            E::Store(store::Error::Shortened { .. } | store::Error::Changed { .. }) => {
                Failure::new(Exit::BadModel, error.to_string())
                    .help("start again once the file is complete")
            }
            E::Store(_) => Failure::new(Exit::Failed, error.to_string()),
            E::NotANumber { .. } => Failure::new(Exit::BadModel, error.to_string())
                .help("the weights in the file are damaged, or too large for their formats"),
        }
    }
}

impl From<generate::Error> for Failure {
    fn from(error: generate::Error) -> Self {
        use generate::Error as E;
        match error {
            E::Engine(error) => error.into(),
            E::Sample(error) => {
                Failure::new(Exit::Failed, "cannot sample a token").caused_by(&error)
            }
            E::Tokenizer(error) => {
                Failure::new(Exit::Failed, "cannot convert a token to text").caused_by(&error)
            }
            E::Constraint(error) => {
                Failure::new(Exit::Failed, "cannot continue within the grammar").caused_by(&error)
            }
            E::EmptyPrompt => Failure::usage(E::EmptyPrompt.to_string()).help("pass it with -p"),
        }
    }
}

impl From<evaluate::Error> for Failure {
    fn from(error: evaluate::Error) -> Self {
        use evaluate::Error as E;
        match error {
            E::Engine(error) => error.into(),
            E::TooShort { .. } => Failure::new(Exit::Failed, error.to_string())
                .help("use a longer text, or a smaller context with -c"),
            E::Context { .. } => Failure::usage(error.to_string()),
            E::NoChoices => Failure::usage(error.to_string())
                .help("--trace-experts needs a model with experts, or one that skips neurons"),
            E::NotLogits { .. } | E::Damaged { .. } | E::Open { .. } => {
                Failure::new(Exit::Failed, "cannot use the probabilities")
                    .caused_by(&error)
                    .help("--kl-divergence-base FILE without --kl-divergence writes such a file")
            }
            E::Vocabulary { .. } => Failure::new(Exit::Failed, "cannot use the probabilities")
                .caused_by(&error)
                .help("compare runs of models with the same vocabulary"),
            E::Write { .. } => {
                Failure::new(Exit::Failed, "cannot write the probabilities").caused_by(&error)
            }
            E::NotFinite { .. } => {
                Failure::new(Exit::BadModel, "cannot collect an importance matrix")
                    .caused_by(&error)
                    .help("the model is damaged, or the text drives it out of range")
            }
            E::ForeignSums { .. } => {
                Failure::new(Exit::Failed, "cannot add to the importance matrix")
                    .caused_by(&error)
                    .help("--in-file takes importance matrices of the same model")
            }
        }
    }
}

impl From<learned::SideFileError> for Failure {
    fn from(error: learned::SideFileError) -> Self {
        let help = match &error {
            learned::SideFileError::Foreign { .. } => "--out FILE selects another file",
            learned::SideFileError::File(_) => {
                "delete the file if it is damaged; --out FILE selects another file"
            }
            learned::SideFileError::Owner { .. } => {
                "delete the file if you do not trust it, else make it yours (chown)"
            }
            learned::SideFileError::Version { .. }
            | learned::SideFileError::Model { .. }
            | learned::SideFileError::Sum { .. }
            | learned::SideFileError::Missing { .. }
            | learned::SideFileError::Wrong { .. } => {
                "`thermocline profile --restart` replaces it; --out FILE selects another file"
            }
        };
        Failure::new(Exit::Failed, "cannot use the model's side file").caused_by(&error).help(help)
    }
}

impl From<learned::SaveError> for Failure {
    fn from(error: learned::SaveError) -> Self {
        match error {
            learned::SaveError::OtherFile(refused) => refused.into(),
            learned::SaveError::Busy { .. } => {
                Failure::new(Exit::Failed, "cannot write the model's side file")
                    .caused_by(&error)
                    .help("end that process (on Linux, `lslocks` lists it), or write to another folder with --out FILE")
            }
            learned::SaveError::NoFolder
            | learned::SaveError::Folder { .. }
            | learned::SaveError::Lock { .. }
            | learned::SaveError::File(_) => {
                Failure::new(Exit::Failed, "cannot write the model's side file")
                    .caused_by(&error)
                    .help("--out FILE selects another path")
            }
        }
    }
}

impl From<profile::ImportError> for Failure {
    fn from(error: profile::ImportError) -> Self {
        Failure::new(Exit::Failed, "cannot use PowerInfer's file").caused_by(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal::Bytes;

    #[test]
    fn a_predictor_without_room_names_what_to_free_and_flags_that_exist() {
        let disk = Problem::Disk { wanted: Bytes(5 << 20), free: Bytes(2 << 20) };
        let full = Problem::Io { action: "write", reason: ErrorKind::StorageFull.into() };
        for (problem, says) in [(disk, "free another 3.00 MiB on"), (full, "free some space on")] {
            let error = learned::SaveError::File(gguf::Error::new("x", problem));
            let failure = Failure::from(predictor::Error::Save(error));
            let help = failure.help.unwrap();
            assert!(help.contains(says) && help.contains("--max-size 4%"), "{help}");
        }
        let large = predictor::Error::TooLarge { most: 0.01, least: 0.0234 };
        let help = Failure::from(large).help.unwrap();
        assert!(help.contains("--max-size 2.4% or more"), "{help}");
    }

    #[test]
    fn errors_have_exit_codes() {
        let memory = hal::Error::OutOfMemory {
            device: "CPU".into(),
            label: "KV cache".into(),
            requested: Bytes(10),
            free: Bytes(5),
        };
        let failure = Failure::from(engine::Error::Device(memory));
        assert_eq!(failure.exit.code(), 4);
        assert!(failure.causes[0].contains("needs 10 B, but only 5 B are free"), "{failure:?}");
        assert_eq!(Failure::from(engine::Error::Interrupted).exit.code(), 130);
        let reason = || std::io::Error::from(ErrorKind::OutOfMemory);
        let map = gguf::Error::new("lora", Problem::Io { action: "map", reason: reason() });
        let adapter = Failure::from(model::AdapterError::Container(map));
        let read = runtime::Error::Read { file: "x".into(), reason: reason() };
        assert_eq!((adapter.exit, Failure::from(read).exit), (Exit::Memory, Exit::Memory));
        let unknown = model::Error::Architecture {
            file: "x".into(),
            arch: "mamba".into(),
            known: vec!["llama", "bamboo"],
            readable: "3 keys".into(),
        };
        let failure = Failure::from(unknown);
        assert_eq!(failure.exit.code(), 3);
        assert!(failure.help.unwrap().contains("llama, bamboo"));
    }
}

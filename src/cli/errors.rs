//! Maps errors of the lower layers to failures with an exit code and a hint.

use crate::cli::failure::{Exit, Failure};
use crate::{engine, evaluate, generate, learned, model, predictor, profile};
use runtime::DeviceError;

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
            E::MissingTensor { .. } => failure.help(
                "the file is damaged, of another type or a vocabulary only; `thermocline info` lists its contents",
            ),
            E::Format { .. } => failure.help("llama.cpp's llama-quantize converts between formats"),
            E::UnknownTensor { .. } => {
                failure.help("running without it would give wrong text")
            }
        }
    }
}

/// An error of a device.
fn device(error: &hal::Error) -> Failure {
    use hal::Error as E;
    match error {
        E::OutOfMemory { .. } => Failure::new(Exit::Memory, "not enough memory")
            .caused_by(error)
            .help("a smaller context (-c) or fewer bits per weight need less"),
        E::MissingLibrary { hint, .. } => {
            let message = "a backend's library is missing";
            Failure::new(Exit::BackendMissing, message).caused_by(error).help(hint.clone())
        }
        E::Cancelled => Failure::interrupted(),
        E::DeviceLost { .. } | E::Driver { .. } => {
            Failure::new(Exit::Failed, "a device failed").caused_by(error)
        }
        E::Unsupported { .. } => {
            Failure::new(Exit::BadModel, "no device here can run this model").caused_by(error)
        }
        E::Shape { .. } | E::Aliasing { .. } | E::ForeignBuffer { .. } => {
            let message = "this is an internal error; please report it";
            Failure::new(Exit::Failed, message).caused_by(error)
        }
    }
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
            E::File(_) | E::Read { .. } | E::Vocabulary { .. } | E::VocabularySize { .. } => {
                failed(Exit::BadModel)
            }
            E::TooLargeToRead { .. } => {
                failed(Exit::Memory).help("without --no-mmap the file is memory-mapped")
            }
            E::Memory { ref items, n_ctx, .. } => {
                let mut failure = failed(Exit::Memory);
                failure.causes.extend(Some(items.clone()).filter(|items| !items.is_empty()));
                failure.help(match n_ctx {
                    Some(n) => format!("a context of at most {n} tokens fits: -c {n}"),
                    None if items.is_empty() => {
                        "use a smaller shape or fewer bits per weight, or --write FILE to write it to disk"
                            .to_owned()
                    }
                    None => "a file of the same model with fewer bits per weight needs less".to_owned(),
                })
            }
            E::NoPredictor => failed(Exit::Failed).help(
                "`thermocline predictor -m MODEL -f TEXT` trains one; --sparsity exact needs none",
            ),
            E::NoLevels => failed(Exit::Failed).help(
                "--sparsity predicted uses it; `thermocline predictor` without --import trains one with quality levels",
            ),
            E::LevelNotReached { .. } => failed(Exit::Failed).help(
                "--sparsity exact changes nothing; a number sets the error directly, whatever the quality",
            ),
            E::EmptyPrompt => Failure::usage(error.to_string()).help("pass a prompt with -p"),
            E::Text(_) | E::Template(_) | E::Sample(_) => failed(Exit::Failed),
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
            DeviceError::Twice { .. } | DeviceError::Budgets { .. } => {
                return Failure::usage(error.to_string());
            }
            DeviceError::ShareOfUnknown { .. } => {
                return Failure::usage(format!("--vram-budget: {error}"))
                    .help("set the budget in bytes, such as 6GiB");
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
            E::TooLarge { .. } => {
                failure.help("use a smaller --rank, a larger --max-size, or --kind sign")
            }
            E::OtherRecipe { .. } => failure.help(
                "the same text and settings resume or keep it, --restart replaces it, --out writes another file",
            ),
            E::Overtaken { .. } => failure.help("run it again after the other program has ended"),
            E::Read { .. } | E::Singular { .. } | E::Save(_) => failure,
        }
    }
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
            E::Placement(_) => {
                Failure::new(Exit::Failed, "cannot place the model").caused_by(&error)
            }
            E::TooManySequences { .. } => Failure::new(Exit::Failed, error.to_string())
                .help("-np N allows more sequences at once"),
            E::NotRestored(_) => Failure::new(Exit::Failed, error.to_string()),
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
            E::NotLogits { .. } | E::Damaged { .. } | E::Open { .. } => {
                Failure::new(Exit::Failed, "cannot use the probabilities")
                    .caused_by(&error)
                    .help("--kl-divergence-base FILE without --kl-divergence writes one")
            }
            E::Vocabulary { .. } => Failure::new(Exit::Failed, "cannot use the probabilities")
                .caused_by(&error)
                .help("runs can be compared if their models have the same vocabulary"),
            E::Write { .. } => {
                Failure::new(Exit::Failed, "cannot write the probabilities").caused_by(&error)
            }
        }
    }
}

impl From<learned::Refused> for Failure {
    fn from(error: learned::Refused) -> Self {
        let help = match &error {
            learned::Refused::Foreign { .. } => "--out FILE selects another file",
            learned::Refused::File(_)
            | learned::Refused::Version { .. }
            | learned::Refused::Model { .. }
            | learned::Refused::Sum { .. }
            | learned::Refused::Missing { .. }
            | learned::Refused::Wrong { .. } => {
                "`thermocline profile --restart` replaces it; --out FILE selects another file"
            }
        };
        Failure::new(Exit::Failed, "cannot use the model's side file").caused_by(&error).help(help)
    }
}

impl From<learned::SaveError> for Failure {
    fn from(error: learned::SaveError) -> Self {
        match error {
            learned::SaveError::Taken(refused) => refused.into(),
            learned::SaveError::Nowhere
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
    fn codes() {
        let memory = hal::Error::OutOfMemory {
            device: "CPU".into(),
            label: "KV cache".into(),
            wanted: Bytes(10),
            free: Bytes(5),
        };
        let failure = Failure::from(engine::Error::Device(memory));
        assert_eq!(failure.exit.code(), 4);
        assert!(failure.causes[0].contains("needs 10 B, 5 B free"), "{failure:?}");
        assert_eq!(Failure::from(engine::Error::Interrupted).exit.code(), 130);
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

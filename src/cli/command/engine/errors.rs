//! What goes wrong below the command, as failures with their exit code and what may help. The one place.

use crate::cli::failure::{Exit, Failure};
use crate::{engine, evaluate, generate, learned, model, predictor, profile};

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        use model::Error as E;
        let failure = Failure::new(Exit::BadModel, "cannot run the model").caused_by(&error);
        match &error {
            E::Container(_) | E::Shape { .. } | E::Values { .. } => failure,
            E::Architecture { known, readable, .. } => failure.help(format!(
                "architectures that run: {}; of this file could be read: {readable}",
                known.join(", ")
            )),
            E::Key { key, .. } if key.ends_with("hidden_activation") => {
                failure.help("--ffn-activation NAME overrides what the file says")
            }
            E::Key { .. } | E::MissingKey { .. } => {
                failure.help("`thermocline info` lists what the file holds")
            }
            E::MissingTensor { .. } => failure.help(
                "the file is damaged, of another kind or a vocabulary only; `thermocline info` lists what it holds",
            ),
            E::Format { .. } => failure.help("llama.cpp's llama-quantize converts between formats"),
            E::UnknownTensor { .. } => {
                failure.help("running without it would give wrong text, so it is refused")
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
            let message = "a library of a backend is not there";
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
            let message = "the engine contradicts itself; please report this";
            Failure::new(Exit::Failed, message).caused_by(error)
        }
    }
}

impl From<predictor::Error> for Failure {
    fn from(error: predictor::Error) -> Self {
        use predictor::Error as E;
        let failure = Failure::new(Exit::Failed, error.to_string());
        match error {
            E::Unfinished { .. } => {
                failure.help("`thermocline predictor` goes on where it stopped")
            }
            E::Refused(_) | E::Damaged { .. } => {
                failure.help("remove the file, and `thermocline predictor` makes it anew")
            }
            E::TooShort { .. } => failure.help("give a longer text with -f"),
            E::TooLarge { .. } => {
                failure.help("a smaller --rank, a larger --max-size, or --kind sign")
            }
            E::OtherRecipe { .. } => failure.help(
                "the same text and settings go on with it or keep it, --restart replaces it, --out keeps both",
            ),
            E::Overtaken { .. } => failure.help("run it again when the other one has ended"),
            E::Read { .. } | E::Singular { .. } | E::Training { .. } | E::Save(_) => failure,
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
                .help("-ctk and -ctv f16, f32 and bf16 take any model"),
            E::Placement(_) => {
                Failure::new(Exit::Failed, "cannot place the model").caused_by(&error)
            }
            E::NotANumber { .. } => Failure::new(Exit::BadModel, error.to_string())
                .help("the weights in the file are damaged, or too large for its formats"),
        }
    }
}

impl From<generate::Error> for Failure {
    fn from(error: generate::Error) -> Self {
        use generate::Error as E;
        match error {
            E::Engine(error) => error.into(),
            E::Sample(error) => {
                Failure::new(Exit::Failed, "cannot choose a token").caused_by(&error)
            }
            E::Tokenizer(error) => {
                Failure::new(Exit::Failed, "cannot make text of a token").caused_by(&error)
            }
            E::EmptyPrompt => Failure::usage(E::EmptyPrompt.to_string()).help("give it with -p"),
        }
    }
}

impl From<evaluate::Error> for Failure {
    fn from(error: evaluate::Error) -> Self {
        use evaluate::Error as E;
        match error {
            E::Engine(error) => error.into(),
            E::TooShort { .. } => Failure::new(Exit::Failed, error.to_string())
                .help("a longer text, or a smaller context with -c"),
            E::Context { .. } => Failure::usage(error.to_string()),
            E::NotLogits { .. } | E::Damaged { .. } | E::Open { .. } => {
                Failure::new(Exit::Failed, "cannot use the probabilities")
                    .caused_by(&error)
                    .help("--kl-divergence-base FILE without --kl-divergence writes such a file")
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
            learned::Refused::Foreign { .. } => "--out FILE names another file",
            learned::Refused::File(_)
            | learned::Refused::Version { .. }
            | learned::Refused::Model { .. }
            | learned::Refused::Sum { .. }
            | learned::Refused::Missing { .. }
            | learned::Refused::Wrong { .. } => {
                "`thermocline profile --restart` makes it anew; --out FILE names another file"
            }
        };
        Failure::new(Exit::Failed, "cannot use what was learned about the model")
            .caused_by(&error)
            .help(help)
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
                Failure::new(Exit::Failed, "cannot keep what was learned about the model")
                    .caused_by(&error)
                    .help("--out FILE names another place")
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
        assert!(failure.causes[0].contains("10 B wanted, 5 B free"), "{failure:?}");
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

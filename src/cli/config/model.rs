//! Which model, and how it is held and computed.

use super::device::DeviceOptions;
use super::processor::Processor;
use crate::cli::args::{CacheTypeName, FfnActivation, ModelArgs, PlacementArgs};
use crate::cli::failure::Failure;
pub(crate) use crate::cli::parse::Sparsity;
use hal::Bytes;
use hal::format::Format;
use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

/// A model to run, and with which sizes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelOptions {
    /// The file; `None` is the built-in model.
    pub(crate) path: Option<PathBuf>,
    /// Context in tokens; `None` where the user said nothing.
    pub(crate) n_ctx: Option<ContextSize>,
    /// Tokens of a prompt handled together.
    pub(crate) n_batch: NonZeroU32,
    /// Tokens of a prompt computed together; at most `n_batch`.
    pub(crate) n_ubatch: NonZeroU32,
    /// Threads while generating; `None` chooses.
    pub(crate) threads: Option<NonZeroUsize>,
    /// Threads while reading the prompt; `None` chooses.
    pub(crate) threads_batch: Option<NonZeroUsize>,
    /// Format of the cached keys.
    pub(crate) type_k: CacheType,
    /// Format of the cached values.
    pub(crate) type_v: CacheType,
    /// How the rest is done.
    pub(crate) computation: Computation,
}

/// `-c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextSize {
    /// What the model was trained with.
    OfModel,
    /// So many tokens.
    Tokens(NonZeroU32),
}

/// A format of the KV cache that is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheType {
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
    /// The upper half of 32-bit floats.
    Bf16,
    /// 8 bits and a scale for 32 values.
    Q8_0,
}

/// What is computed of the model, and how its file is held.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Computation {
    /// Lock the weights in memory.
    pub(crate) mlock: bool,
    /// Map the file; else read it.
    pub(crate) mmap: bool,
    /// Lay weights out anew where that is faster.
    pub(crate) repack: bool,
    /// Where such weights are kept; `None` is nowhere.
    pub(crate) folder: Option<Folder>,
    /// The activation where the file names none.
    pub(crate) activation: Option<FfnActivation>,
    /// What is skipped.
    pub(crate) sparsity: Sparsity,
    /// Least score of a predictor; `None` for the file's.
    pub(crate) sparse_threshold: Option<f32>,
    /// Which devices, and what goes there.
    pub(crate) devices: DeviceOptions,
    /// How the CPU is used.
    pub(crate) processor: Processor,
}

/// A folder that keeps weights laid out anew.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Folder {
    /// Its path; it may not be there yet.
    pub(crate) path: PathBuf,
    /// What a model must have of them to be worth a file.
    pub(crate) least: Bytes,
}

/// Less is made faster than a file is worth; whoever names a folder gets all.
const LEAST: Bytes = Bytes(64 << 20);

impl Folder {
    /// The folder the user names, none for `off`, else one in the user's cache if the system tells where that is.
    pub(crate) fn resolve(named: Option<&Path>) -> Option<Folder> {
        match named {
            Some(word) if word == "off" => None,
            Some(path) => Some(Folder { path: path.to_owned(), least: Bytes(0) }),
            None => {
                #[allow(clippy::disallowed_methods)] // the environment is read on this floor
                let path = user_cache(|name| std::env::var_os(name))?.join("thermocline");
                Some(Folder { path, least: LEAST })
            }
        }
    }
}

/// The user's cache folder, by each system's rule.
fn user_cache(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    user_folder(env, "XDG_CACHE_HOME", ".cache", "Library/Caches")
}

/// A folder of the user's: the one that the variable `xdg` names, else the one below the home folder. A relative path
/// in the environment counts as none.
pub(super) fn user_folder(
    env: impl Fn(&str) -> Option<OsString>,
    xdg: &str,
    in_home: &str,
    on_macos: &str,
) -> Option<PathBuf> {
    let folder = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let below = |path: &str| folder("HOME").map(|home| home.join(path));
    match std::env::consts::OS {
        "windows" => folder("LOCALAPPDATA"),
        "macos" => below(on_macos),
        _ => folder(xdg).or_else(|| below(in_home)),
    }
}

impl CacheType {
    /// # Errors
    /// A format of llama.cpp's that is not built here.
    pub(super) fn resolve(name: CacheTypeName) -> Result<Self, Failure> {
        let other = match name {
            CacheTypeName::F16 => return Ok(Self::F16),
            CacheTypeName::F32 => return Ok(Self::F32),
            CacheTypeName::Bf16 => return Ok(Self::Bf16),
            CacheTypeName::Q8_0 => return Ok(Self::Q8_0),
            CacheTypeName::Q4_0 => "q4_0",
            CacheTypeName::Q4_1 => "q4_1",
            CacheTypeName::Iq4Nl => "iq4_nl",
            CacheTypeName::Q5_0 => "q5_0",
            CacheTypeName::Q5_1 => "q5_1",
        };
        let message = format!("a KV cache in {other} is not built yet");
        Err(Failure::usage(message).help("-ctk and -ctv take f16, f32, bf16 and q8_0"))
    }

    /// llama.cpp's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// The format itself.
    pub(crate) fn format(self) -> Format {
        match self {
            Self::F16 => Format::F16,
            Self::F32 => Format::F32,
            Self::Bf16 => Format::BF16,
            Self::Q8_0 => Format::Q8_0,
        }
    }
}

impl ModelOptions {
    /// # Errors
    /// What is known and not built.
    pub(super) fn resolve(args: &ModelArgs) -> Result<Self, Failure> {
        let at_least_1 = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        let n_batch = at_least_1(args.batch_size);
        let threads_batch = args.threads_batch.unwrap_or(args.threads);
        Ok(Self {
            path: args.model.clone(),
            n_ctx: args
                .ctx_size
                .map(|n| NonZeroU32::new(n).map_or(ContextSize::OfModel, ContextSize::Tokens)),
            n_batch,
            n_ubatch: at_least_1(args.ubatch_size).min(n_batch),
            threads: threads(args.threads),
            threads_batch: threads(threads_batch),
            type_k: CacheType::resolve(args.cache_type_k)?,
            type_v: CacheType::resolve(args.cache_type_v)?,
            computation: Computation::resolve(&args.placement),
        })
    }
}

impl Computation {
    pub(super) fn resolve(args: &PlacementArgs) -> Self {
        Self {
            mlock: args.mlock,
            mmap: args.mmap,
            repack: args.repack,
            folder: Folder::resolve(args.repack_cache.as_deref()),
            activation: args.ffn_activation,
            sparse_threshold: args.sparse_threshold,
            sparsity: args.sparsity,
            devices: DeviceOptions::resolve(&args.devices),
            processor: Processor::resolve(&args.processor),
        }
    }
}

/// llama.cpp's thread counts: what is not positive chooses.
pub(super) fn threads(n: i32) -> Option<NonZeroUsize> {
    usize::try_from(n).ok().and_then(NonZeroUsize::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(unix, not(target_os = "macos")))]
    fn the_cache_folder_is_xdgs() {
        let folder = |vars: &[(&str, &str)]| {
            let env = |name: &str| {
                vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            };
            user_cache(env)
        };
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[("HOME", "/home/me")]), Some("/home/me/.cache".into()));
        let both = [("HOME", "/home/me"), ("XDG_CACHE_HOME", "/c")];
        assert_eq!(folder(&both), Some("/c".into()));
        let relative = [("HOME", "/home/me"), ("XDG_CACHE_HOME", "c")];
        assert_eq!(folder(&relative), Some("/home/me/.cache".into()));
    }

    #[test]
    fn off_is_nowhere_and_a_named_folder_takes_all() {
        assert_eq!(Folder::resolve(Some(Path::new("off"))), None);
        let named = Folder::resolve(Some(Path::new("x"))).unwrap();
        assert_eq!((named.path, named.least), (PathBuf::from("x"), Bytes(0)));
    }
}

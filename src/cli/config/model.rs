//! Which model to run, and how it is stored and computed.

use super::device::devices;
use super::processor::processor;
use crate::cli::args::{CacheTypeName, FfnActivation, ModelArgs, PlacementArgs};
use crate::cli::failure::Failure;
use hal::format::Format;
use hal::{Bytes, KvCache};
use runtime::{CacheFolder, Computation, ContextSize, Options};
use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

/// A model and how to run it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelOptions {
    /// The file; `None` is the built-in model.
    pub(crate) path: Option<PathBuf>,
    /// Sizes, devices, sparsity.
    pub(crate) run: Options,
}

/// A supported format of the KV cache.
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

/// Minimum size of the cached repacked weights: smaller ones are repacked quickly. A folder named
/// by the user gets all.
const LEAST: Bytes = Bytes(64 << 20);

/// The folder that the user names, `None` for `off`, or a folder in the user's cache if the system
/// has one.
pub(crate) fn cache_folder(named: Option<&Path>) -> Option<CacheFolder> {
    match named {
        Some(word) if word == "off" => None,
        Some(path) => Some(CacheFolder { path: path.to_owned(), least: Bytes(0) }),
        None => {
            #[allow(clippy::disallowed_methods)] // the environment is read on this floor
            let path = user_cache(|name| std::env::var_os(name))?.join("thermocline");
            Some(CacheFolder { path, least: LEAST })
        }
    }
}

/// The user's cache folder, by each system's convention.
fn user_cache(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    user_folder(env, "XDG_CACHE_HOME", ".cache", "Library/Caches")
}

/// A folder of the user: the value of the variable `xdg`, else a folder below the home folder.
/// Relative paths in the environment are ignored.
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
    /// A format of llama.cpp that is not supported here.
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
        let message = format!("a KV cache in {other} is not supported yet");
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
    /// An unsupported cache type.
    pub(super) fn resolve(args: &ModelArgs) -> Result<Self, Failure> {
        let at_least_1 = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        let threads_batch = args.threads_batch.unwrap_or(args.threads);
        let cache = |name| CacheType::resolve(name).map(CacheType::format);
        let run = Options {
            n_ctx: args
                .ctx_size
                .map(|n| NonZeroU32::new(n).map_or(ContextSize::OfModel, ContextSize::Tokens)),
            n_ubatch: at_least_1(args.ubatch_size).min(at_least_1(args.batch_size)),
            threads: threads(args.threads),
            threads_batch: threads(threads_batch),
            kv_formats: KvCache { k: cache(args.cache_type_k)?, v: cache(args.cache_type_v)? },
            computation: computation(&args.placement),
        };
        Ok(Self { path: args.model.clone(), run })
    }
}

/// Converts the flags.
pub(super) fn computation(args: &PlacementArgs) -> Computation {
    Computation {
        mlock: args.mlock,
        mmap: args.mmap,
        repack: args.repack,
        cache: cache_folder(args.repack_cache.as_deref()),
        activation: args.ffn_activation.map(|name| activation(name).to_owned()),
        sparsity: args.sparsity,
        sparse_threshold: args.sparse_threshold,
        devices: devices(&args.devices),
        processor: processor(&args.processor),
    }
}

/// The name of an activation in model files.
fn activation(name: FfnActivation) -> &'static str {
    match name {
        FfnActivation::Relu => "relu",
        FfnActivation::Silu => "silu",
        FfnActivation::Gelu => "gelu",
        FfnActivation::GeluErf => "gelu_erf",
        FfnActivation::Relu2 => "relu2",
        FfnActivation::Drelu => "drelu",
    }
}

/// llama.cpp's thread counts: 0 and negative numbers are the default.
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
        assert_eq!(cache_folder(Some(Path::new("off"))), None);
        let named = cache_folder(Some(Path::new("x"))).unwrap();
        assert_eq!((named.path, named.least), (PathBuf::from("x"), Bytes(0)));
    }
}

//! The user's folders, by each system's convention.

use super::failure::Failure;
use crate::gguf;
use hal::Bytes;
use runtime::CacheFolder;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Minimum bytes of repacked weights to cache, because smaller weights are repacked quickly. A
/// folder named by the user has no minimum.
const MIN_CACHED: Bytes = Bytes(64 << 20);

/// The folder that the user names, or `None` for `off`. By default and for `on`, a folder in the user's cache,
/// which is created and accessible only to the user, or `None` if the system has none.
pub(crate) fn cache_folder(named: Option<&Path>) -> Option<CacheFolder> {
    match named {
        Some(word) if word == "off" => None,
        Some(path) if path != "on" => Some(CacheFolder { path: path.to_owned(), least: Bytes(0) }),
        Some(_) | None => {
            let path = usual_cache()?;
            make_private(&path);
            gguf::folder_of_others(&path)
                .is_none()
                .then_some(CacheFolder { path, least: MIN_CACHED })
        }
    }
}

/// Creates a folder and its parents, accessible only to this user: profiles and saved conversations
/// say what was written. An existing folder stays as it is. If it cannot be created, its user
/// reports that when it writes.
fn make_private(folder: &Path) {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let _ = builder.create(folder);
}

/// This program's file, which compiles kernels in processes of its own.
pub(crate) fn this_program() -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "only the CLI reads the environment")]
    std::env::current_exe().ok()
}

/// The folder in the user's cache.
fn usual_cache() -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
    let folder = user_cache(|name| std::env::var_os(name))?;
    Some(folder.join("thermocline"))
}

/// The note that [`cache_folder`] does not use the usual folder, since other users may have put
/// profiles, predictors or compiled kernels there.
pub(crate) fn refused_cache(named: Option<&Path>) -> Option<String> {
    let path = usual_cache().filter(|_| named.is_none_or(|word| word == "on"))?;
    let reason = gguf::folder_of_others(&path)?;
    Some(format!(
        "the cache {} is not used: {reason}; --repack-cache DIR names another folder",
        path.display()
    ))
}

/// The file with the input history of conversations; `None` if no state folder is known.
pub(crate) fn chat_history() -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
    let folder = user_state(|name| std::env::var_os(name))?;
    Some(folder.join("thermocline").join("chat_history"))
}

/// The folder of Hugging Face's tools: `HF_HOME`, or a folder in the user's cache, which is
/// `~/.cache` on every system. `None` if no folder is known.
pub(crate) fn hub_home(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || folder("HOME").or_else(|| folder("USERPROFILE"));
    let cache = || folder("XDG_CACHE_HOME").or_else(|| home().map(|home| home.join(".cache")));
    env("HF_HOME").map(PathBuf::from).or_else(|| cache().map(|cache| cache.join("huggingface")))
}

/// The folder for models that were downloaded from other addresses.
///
/// # Errors
/// The system has no folder for caches.
pub(crate) fn downloads() -> Result<PathBuf, Failure> {
    #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
    let folder = user_cache(|name| std::env::var_os(name));
    let folder = folder.ok_or_else(|| {
        Failure::usage("the folder for downloaded models is unknown").help("set HOME")
    })?;
    Ok(folder.join("thermocline").join("downloads"))
}

fn user_cache(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    user_folder(env, "XDG_CACHE_HOME", ".cache", "Library/Caches")
}

fn user_state(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    user_folder(env, "XDG_STATE_HOME", ".local/state", "Library/Application Support")
}

/// On Windows, `LOCALAPPDATA`; on macOS, `on_macos` below the home folder; elsewhere, the folder in
/// the variable `xdg`, or else `in_home` below the home folder. Relative paths in the environment
/// are ignored.
fn user_folder(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(unix, not(target_os = "macos")))]
    fn the_cache_folder_follows_xdg() {
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
    #[cfg(all(unix, not(target_os = "macos")))]
    fn the_history_is_in_the_state_folder() {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
        assert_eq!(user_state(home), Some("/home/me/.local/state".into()));
        assert_eq!(user_state(|_| None), None);
    }

    #[test]
    fn off_disables_the_cache_and_a_named_folder_has_no_minimum() {
        assert_eq!(cache_folder(Some(Path::new("off"))), None);
        let named = cache_folder(Some(Path::new("x"))).unwrap();
        assert_eq!((named.path, named.least), (PathBuf::from("x"), Bytes(0)));
    }
}

//! Which existing files an output may replace.

use std::fs;
use std::path::Path;

pub(super) use own_file::foreign;
use own_file::{identity_at, owner};

use super::{Problem, fault};

/// Why other users may have put files into `folder`; `None` if they may not, or if it does not exist.
pub fn folder_of_others(folder: &Path) -> Option<String> {
    let (found, named) = (fs::metadata(folder).ok()?, fs::symlink_metadata(folder).ok()?);
    if let Some(owner) = foreign(owner(&named), None).filter(|_| named.is_symlink()) {
        return Some(format!("it is a symbolic link of user {owner}"));
    }
    if let Some(owner) = foreign(owner(&found), None) {
        return Some(format!("it belongs to user {owner}"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        const ANYONE_WRITES: u32 = 0o002;
        if found.mode() & ANYONE_WRITES != 0 {
            return Some("every user may write to it".to_owned());
        }
    }
    None
}

/// Whether both paths lead to one file, through symbolic or hard links.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    match (identity_at(a), identity_at(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b)),
    }
}

/// Checks what a rename to `target` would replace: only a regular file may be replaced, or one that
/// a symbolic link leads to; and if `reads_matter`, none that this process has mapped.
pub(super) fn check_replaced(target: &Path, reads_matter: bool) -> Result<(), Problem> {
    let Ok(found) = fs::metadata(target) else { return Ok(()) };
    let kind = found.file_type();
    if !kind.is_file() {
        return Err(Problem::NotReplaceable { kind: name_of(kind) });
    }
    if reads_matter && identity_at(target).is_some_and(fault::is_mapped) {
        return Err(Problem::ReadByThisRun);
    }
    Ok(())
}

fn name_of(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        return "a folder";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a named pipe";
        } else if kind.is_socket() {
            return "a socket";
        } else if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    "not a regular file"
}

//! Slots: saving, restoring and erasing their sequences on request.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use hal::KV_BLOCK;
use own_file::open_regular;

use crate::files;
use crate::queue::SlotAction;
use crate::worker::Worker;

/// Result of an action on a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFile {
    /// Tokens saved, restored or erased.
    pub n_tokens: usize,
    /// Size of the file; 0 for an erased slot.
    pub n_bytes: u64,
    /// Duration of the action.
    pub time: Duration,
}

/// Why an action on a slot failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The slot does not exist.
    #[error("slot {slot} does not exist; the number of slots is {n_slots}")]
    NoSuchSlot {
        /// The requested slot, from 0.
        slot: usize,
        /// Number of slots.
        n_slots: usize,
    },
    /// A generation is running in the slot.
    #[error("slot {slot} is in use")]
    Busy {
        /// The slot.
        slot: usize,
    },
    /// The slot has no sequence.
    #[error("slot {slot} has no cached tokens")]
    Empty {
        /// The slot.
        slot: usize,
    },
    /// No folder for slot files is set ([`crate::SchedulerOptions::slot_folder`]).
    #[error("no folder for slot files is set")]
    NoFolder,
    /// A name that is not a plain file name.
    #[error("'{name}' is not a plain file name")]
    BadName {
        /// The name.
        name: String,
    },
    /// The file cannot be read or written.
    #[error("cannot access '{name}': {reason}")]
    File {
        /// The name.
        name: String,
        /// The system's error.
        reason: io::Error,
    },
    /// The running generations leave too little room in the KV cache.
    #[error("{n_tokens} tokens do not fit in the KV cache next to the running generations")]
    NoRoom {
        /// Tokens of the sequence.
        n_tokens: usize,
    },
    /// An error of the engine, or a file that is not a saved sequence of this model.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The scheduler is shutting down or has failed.
    #[error("the scheduler has stopped")]
    Stopped,
}

/// The path of a slot file. `name` must be a plain file name.
fn path_of(folder: Option<&Path>, name: &str) -> Result<PathBuf, SlotError> {
    let folder = folder.ok_or(SlotError::NoFolder)?;
    let mut components = Path::new(name).components();
    let is_name = matches!(components.next(), Some(Component::Normal(only)) if only == name);
    let is_plain = components.next().is_none()
        && !name.starts_with('.')
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control);
    if is_name && is_plain {
        Ok(folder.join(name))
    } else {
        Err(SlotError::BadName { name: name.to_owned() })
    }
}

impl Worker<'_> {
    /// Performs an action on a slot, which must be idle.
    pub(crate) fn run_slot_action(
        &mut self,
        slot: usize,
        action: SlotAction,
    ) -> Result<SlotFile, SlotError> {
        let since = Instant::now();
        if self.running.iter().any(|running| running.slot == slot) {
            return Err(SlotError::Busy { slot });
        }
        let folder = self.options.slot_folder.as_deref();
        let (n_tokens, n_bytes) = match action {
            SlotAction::Save(name) => self.save_slot(slot, &name, &path_of(folder, &name)?)?,
            SlotAction::Restore(name) => {
                let path = path_of(folder, &name)?;
                self.restore_slot(slot, &name, &path)?
            }
            SlotAction::Erase => {
                let sequence = self.idle.take_of_slot(slot).ok_or(SlotError::Empty { slot })?;
                (sequence.tokens().len(), 0)
            }
        };
        Ok(SlotFile { n_tokens, n_bytes, time: since.elapsed() })
    }

    fn save_slot(
        &mut self,
        slot: usize,
        name: &str,
        path: &Path,
    ) -> Result<(usize, u64), SlotError> {
        let sequence = self.idle.of_slot(slot).ok_or(SlotError::Empty { slot })?;
        let bytes = self.engine.save(sequence)?;
        let refused = |reason| SlotError::File { name: name.to_owned(), reason };
        if !files::may_replace(path) {
            let what = "a file of this name exists and is not a saved slot";
            return Err(refused(io::Error::new(io::ErrorKind::AlreadyExists, what)));
        }
        files::write_private(path, &bytes).map_err(refused)?;
        Ok((sequence.tokens().len(), bytes.len() as u64))
    }

    fn restore_slot(
        &mut self,
        slot: usize,
        name: &str,
        path: &Path,
    ) -> Result<(usize, u64), SlotError> {
        let refused = |reason| SlotError::File { name: name.to_owned(), reason };
        let mut bytes = Vec::new();
        let mut read = || open_regular(path)?.read_to_end(&mut bytes);
        read().map_err(refused)?;
        let head = bytes.first_chunk().ok_or(engine::Error::from(engine::NotRestored::Magic))?;
        let n_tokens = self.engine.saved_head(head)?.n_tokens;
        if n_tokens <= self.engine.max_tokens() && !self.free_blocks(n_tokens.div_ceil(KV_BLOCK)) {
            return Err(SlotError::NoRoom { n_tokens });
        }
        let sequence = self.engine.restore(&bytes)?;
        let n_cached = self.engine.n_cached(&sequence);
        if n_cached == 0 && n_tokens > 0 {
            // Running generations use all state rows.
            return Err(SlotError::NoRoom { n_tokens });
        }
        self.keep(sequence, Some(slot));
        Ok((n_tokens, bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_the_folder() {
        let folder = Path::new("folder");
        let path = |name: &str| path_of(Some(folder), name);
        assert_eq!(path("a b.bin").unwrap(), folder.join("a b.bin"));
        for name in ["", ".", "..", "../a", "a/b", "/a", "a/", "a\\b", "C:a", ".hidden", "a\0b"] {
            assert!(matches!(path(name), Err(SlotError::BadName { .. })), "{name:?}");
        }
        assert!(matches!(path_of(None, "a"), Err(SlotError::NoFolder)));
    }
}

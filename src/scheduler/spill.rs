//! The disk cache: sequences that no longer fit into the KV cache, one file each, in the format of
//! [`Engine::save`].
//!
//! There is no index file. The name of a file shows that it belongs to the cache, and its contents
//! begin with the model's fingerprint and the tokens.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use engine::{Engine, SAVED_HEAD};
use gguf::Hash;
use hal::Bytes;
use own_file::open_own;

use crate::files;
use crate::options::{Notice, Observer};
use crate::prefix::common_prefix_len;
use crate::writer::{FileWriter, Written};

const PREFIX: &str = "sequence-";
const EXTENSION: &str = ".kv";

#[derive(Debug)]
struct SpilledFile {
    path: PathBuf,
    /// The cached tokens.
    tokens: Vec<u32>,
    size: u64,
    used: SystemTime,
    /// Whether the file is completely written.
    written: bool,
}

/// The files of one model in the folder of the disk cache.
#[derive(Debug)]
pub(crate) struct DiskCache {
    folder: PathBuf,
    max_bytes: u64,
    files: Vec<SpilledFile>,
    writer: FileWriter,
    /// Errors of writing files, not yet reported.
    write_errors: Vec<String>,
}

impl DiskCache {
    /// Opens the folder, and creates it if necessary. Files of other models are ignored. Files that
    /// do not belong to the cache are ignored with a notice.
    pub(crate) fn open(
        folder: &Path,
        limit: Bytes,
        engine: &Engine,
        observer: &Observer,
    ) -> io::Result<DiskCache> {
        files::make_folder(folder)?;
        gguf::drop_leftovers(folder, is_name);
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match parse(&path, engine) {
                Ok(Some(spilled)) => found.push(spilled),
                Ok(None) => {}
                Err(reason) => observer(&Notice::FileSkipped { file: path, reason }),
            }
        }
        let mut cache = DiskCache {
            folder: folder.to_owned(),
            max_bytes: limit.0,
            files: found,
            writer: FileWriter::start()?,
            write_errors: Vec::new(),
        };
        cache.shrink(0);
        Ok(cache)
    }

    pub(crate) fn n_files(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn total(&self) -> Bytes {
        Bytes(self.files.iter().map(|file| file.size).sum())
    }

    /// Number of cached tokens in a file.
    pub(crate) fn n_tokens(&self, file: usize) -> usize {
        self.files[file].tokens.len()
    }

    /// The file with the longest common prefix with `tokens`, and the length of that prefix. A
    /// recurrent model can use only whole files, because a file has the state after its last token.
    pub(crate) fn best(&self, tokens: &[u32], recurrent: bool) -> Option<(usize, usize)> {
        let files = self.files.iter().enumerate();
        let usable = files.map(|(index, file)| {
            let n = common_prefix_len(&file.tokens, tokens);
            (index, if recurrent && n < file.tokens.len() { 0 } else { n })
        });
        usable.filter(|(_, n)| *n > 0).max_by_key(|(_, n)| *n)
    }

    /// Whether a file already has the reusable tokens of a sequence with these tokens.
    pub(crate) fn has(&self, tokens: &[u32], recurrent: bool) -> bool {
        self.files.iter().any(|file| {
            let same = !recurrent || file.tokens.len() == tokens.len();
            same && file.tokens.starts_with(tokens)
        })
    }

    /// The bytes of a file. Marks the file as used now.
    pub(crate) fn read(&mut self, file: usize) -> io::Result<Vec<u8>> {
        self.wait_for(&self.files[file].path.clone())?;
        let spilled = &mut self.files[file];
        spilled.used = SystemTime::now();
        let mut file = open_own(&spilled.path)?;
        let mut bytes = Vec::with_capacity(usize::try_from(spilled.size).unwrap_or(0));
        file.by_ref().take(spilled.size).read_to_end(&mut bytes)?;
        // A later run evicts files by this time. A failure is ignored, so that a read-only folder
        // can be used.
        drop(file.set_modified(spilled.used));
        Ok(bytes)
    }

    /// Queues a sequence with these cached tokens for writing. Deletes files that the new one
    /// replaces, and the least recently used files if the cache is full.
    pub(crate) fn store(
        &mut self,
        tokens: &[u32],
        bytes: Vec<u8>,
        recurrent: bool,
    ) -> io::Result<()> {
        let size = bytes.len() as u64;
        if size > self.max_bytes {
            let (size, limit) = (Bytes(size), Bytes(self.max_bytes));
            let text = format!("the sequence has {size}, but the disk cache holds only {limit}");
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        let mut index = 0;
        while index < self.files.len() {
            if !recurrent && tokens.starts_with(&self.files[index].tokens) {
                self.remove(index);
            } else {
                index += 1;
            }
        }
        self.shrink(size);
        let path = self.folder.join(name_of(&bytes));
        self.writer.write(&path, bytes)?;
        let (used, written) = (SystemTime::now(), false);
        self.files.retain(|file| file.path != path);
        self.files.push(SpilledFile { path, tokens: tokens.to_vec(), size, used, written });
        Ok(())
    }

    /// Errors of writing files since the last call.
    pub(crate) fn take_write_errors(&mut self) -> Vec<String> {
        while let Some(written) = self.writer.try_next() {
            self.record_written(written);
        }
        std::mem::take(&mut self.write_errors)
    }

    fn record_written(&mut self, (path, result): Written) {
        match result {
            Ok(()) => {
                let file = self.files.iter_mut().find(|file| file.path == path);
                file.into_iter().for_each(|file| file.written = true);
            }
            Err(reason) => {
                self.files.retain(|file| file.path != path);
                self.write_errors.push(reason.to_string());
            }
        }
    }

    /// Waits until a file is on the disk.
    fn wait_for(&mut self, path: &Path) -> io::Result<()> {
        loop {
            match self.files.iter().find(|file| file.path == path) {
                Some(file) if file.written => return Ok(()),
                Some(_) => {
                    let written = self.writer.next()?;
                    self.record_written(written);
                }
                None => return Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    /// Deletes the least recently used files until `more` bytes fit.
    fn shrink(&mut self, more: u64) {
        while self.total().0 + more > self.max_bytes {
            let files = self.files.iter().enumerate();
            let Some((oldest, _)) = files.min_by_key(|(_, file)| file.used) else { return };
            self.remove(oldest);
        }
    }

    /// Deletes a file, and returns its path.
    pub(crate) fn remove(&mut self, file: usize) -> PathBuf {
        let path = self.files[file].path.clone();
        // An error means that the file was not written.
        drop(self.wait_for(&path));
        self.delete(&path);
        path
    }

    /// Removes a file from the list, and deletes it.
    pub(crate) fn delete(&mut self, path: &Path) {
        self.files.retain(|file| file.path != path);
        // Another process may have deleted it.
        drop(fs::remove_file(path));
    }

    pub(crate) fn path(&self, file: usize) -> &Path {
        &self.files[file].path
    }
}

/// The file name: a hash of the header, which has the model's fingerprint, and of the tokens.
fn name_of(bytes: &[u8]) -> String {
    let n_tokens = bytes.get(16..20).and_then(|word| word.first_chunk().copied());
    let n_tokens = n_tokens.map_or(0, |word| u32::from_le_bytes(word) as usize);
    let mut hash = Hash::default();
    hash.add(&bytes[..bytes.len().min(SAVED_HEAD + 4 * n_tokens)]);
    format!("{PREFIX}{:016x}{EXTENSION}", hash.finish())
}

/// Whether the cache names its files so.
fn is_name(name: &str) -> bool {
    let hash = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(EXTENSION));
    hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Reads the header and the tokens of a file. `None` for a file of another model and for a file
/// that is still being written.
fn parse(path: &Path, engine: &Engine) -> Result<Option<SpilledFile>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if gguf::writer_of(&name).is_some_and(|(_, target)| is_name(target)) {
        return Ok(None);
    }
    if !is_name(&name) {
        return Err("not a file of the disk cache".to_owned());
    }
    let describe = |error: io::Error| error.to_string();
    let mut file = open_own(path).map_err(describe)?;
    let metadata = file.metadata().map_err(describe)?;
    let mut head = [0; SAVED_HEAD];
    file.read_exact(&mut head).map_err(describe)?;
    let head = match engine.saved_head(&head) {
        Ok(head) => head,
        Err(engine::Error::NotRestored(engine::NotRestored::Fingerprint)) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if head.n_cached > head.n_tokens || head.n_tokens > engine.max_tokens() {
        return Err(format!("invalid token count {}", head.n_tokens));
    }
    let mut bytes = vec![0; 4 * head.n_cached];
    file.read_exact(&mut bytes).map_err(describe)?;
    let (words, _) = bytes.as_chunks::<4>();
    let tokens = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let (path, size) = (path.to_owned(), metadata.len());
    Ok(Some(SpilledFile { path, tokens, size, used, written: true }))
}

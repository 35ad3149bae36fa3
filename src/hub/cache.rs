//! The cache folder, with the layout that Hugging Face's own tools use:
//!
//! ```text
//! models--USER--REPOSITORY/blobs/CHECKSUM               the data
//! models--USER--REPOSITORY/blobs/CHECKSUM.incomplete    a partial download
//! models--USER--REPOSITORY/refs/main                    the branch's commit at the last pull
//! models--USER--REPOSITORY/snapshots/COMMIT/FILE        links to the data
//! .locks/models--USER--REPOSITORY/CHECKSUM.lock         locked while a file is fetched
//! ```

use crate::choose::{self, Group};
use crate::error::{Error, io_error};
use crate::name::is_component;
use crate::{Found, ModelName, Wanted};
use own_file::identity_at;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Prefix of a repository's folder.
const MODELS: &str = "models--";
/// Extension of a partial download.
const INCOMPLETE: &str = "incomplete";
/// Folder with PowerInfer's activation counts.
const ACTIVATION: &str = "activation";

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Repository and quantisation; partial downloads have no quantisation.
    pub name: ModelName,
    /// The model file, the first one of a split model; `None` for partial downloads.
    pub path: Option<PathBuf>,
    /// Bytes on disk.
    pub size: u64,
    /// When the newest of its files was written; `None` for partial downloads.
    pub modified: Option<SystemTime>,
}

/// What was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Number of model files.
    pub files: usize,
    /// Bytes that the deletion freed.
    pub bytes: u64,
}

/// The cache folder.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn repository(&self, name: &ModelName) -> PathBuf {
        self.root.join(format!("{MODELS}{}--{}", name.user, name.repository))
    }

    /// The file with the data that has this checksum.
    pub(crate) fn blob(&self, name: &ModelName, checksum: &str) -> PathBuf {
        self.repository(name).join("blobs").join(checksum)
    }

    /// The file of a partial download.
    pub(crate) fn partial(&self, name: &ModelName, checksum: &str) -> PathBuf {
        self.blob(name, &format!("{checksum}.{INCOMPLETE}"))
    }

    /// The path of a file of the repository at a commit.
    pub(crate) fn snapshot(&self, name: &ModelName, commit: &str, file: &str) -> PathBuf {
        self.repository(name).join("snapshots").join(commit).join(file)
    }

    /// Locks a checksum against other processes, until the returned file is dropped. `waits` is
    /// called if another process has the lock.
    pub(crate) fn lock(
        &self,
        name: &ModelName,
        checksum: &str,
        waits: impl FnOnce(),
    ) -> Result<File, Error> {
        let folder = format!("{MODELS}{}--{}", name.user, name.repository);
        let path = self.root.join(".locks").join(folder).join(format!("{checksum}.lock"));
        lock_file(&path, waits)
    }

    /// Adds a file to a commit's folder: a symbolic link to its data, or a hard link or copy where
    /// the system refuses symbolic links. Returns its path.
    pub(crate) fn link(
        &self,
        name: &ModelName,
        commit: &str,
        file: &str,
        checksum: &str,
    ) -> Result<PathBuf, Error> {
        let (blob, path) = (self.blob(name, checksum), self.snapshot(name, commit, file));
        create_parent(&path)?;
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{checksum}"));
        if fs::read_link(&path).is_ok_and(|known| known == target) {
            return Ok(path);
        }
        // Another process may create the same link now: a rename replaces it. Writing to `path`
        // itself would follow the link and destroy the data.
        let new_path = temporary(&path);
        remove_if_there(&new_path)?;
        // Wine says that it made a symbolic link when it did not.
        let is_there = |()| fs::symlink_metadata(&new_path).map(drop);
        let linked = symlink(&target, &new_path).and_then(is_there);
        let linked = linked.or_else(|_| fs::hard_link(&blob, &new_path));
        let linked = linked.or_else(|_| copy_new(&blob, &new_path));
        let linked = linked.and_then(|()| fs::rename(&new_path, &path));
        // A rename does nothing if both names are hard links to the same data.
        remove_if_there(&new_path)?;
        linked.map_err(io_error("create", &path))?;
        Ok(path)
    }

    /// Records the commit of a branch.
    pub(crate) fn set_revision(&self, wanted: &Wanted, commit: &str) -> Result<(), Error> {
        let path = self.repository(&wanted.name).join("refs").join(&wanted.revision);
        create_parent(&path)?;
        let new_path = temporary(&path);
        fs::write(&new_path, commit).map_err(io_error("write", &new_path))?;
        fs::rename(&new_path, &path).map_err(io_error("write", &path))
    }

    /// The commits in the cache: first the revision's own commit, then, for `main`, the others,
    /// newest first.
    fn commits(&self, wanted: &Wanted) -> Result<Vec<String>, Error> {
        let folder = self.repository(&wanted.name);
        let current = fs::read_to_string(folder.join("refs").join(&wanted.revision));
        let current = current.ok().map(|text| text.trim().to_owned());
        let mut commits: Vec<(SystemTime, String)> = Vec::new();
        for entry in entries(&folder.join("snapshots"))? {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let commit = entry.file_name().into_string().ok().filter(|name| is_component(name));
            if let Some(commit) = commit {
                commits.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), commit));
            }
        }
        commits.sort_by(|(a, _), (b, _)| b.cmp(a));
        let is_current = |commit: &String| Some(commit) == current.as_ref();
        let mut commits: Vec<String> = commits.into_iter().map(|(_, commit)| commit).collect();
        commits.sort_by_key(|commit| !is_current(commit));
        if wanted.revision != "main" {
            // Another branch may have the same file names with other contents.
            commits.retain(|commit| is_current(commit) || *commit == wanted.revision);
        }
        Ok(commits)
    }

    /// The files of a commit whose data is in the cache, as sorted paths.
    fn files(&self, name: &ModelName, commit: &str) -> Result<Vec<String>, Error> {
        let root = self.repository(name).join("snapshots").join(commit);
        let (mut files, mut folders) = (Vec::new(), vec![String::new()]);
        while let Some(folder) = folders.pop() {
            for entry in entries(&root.join(&folder))? {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(path);
                } else if root.join(&path).is_file() {
                    files.push(path);
                }
            }
        }
        files.sort();
        Ok(files)
    }

    fn groups(&self, name: &ModelName, commit: &str) -> Result<Vec<Group>, Error> {
        let files = self.files(name, commit)?;
        let groups = choose::groups(files.iter().map(String::as_str));
        Ok(groups.into_iter().filter(Group::is_complete).collect())
    }

    /// The model in the first of the revision's commits that has all its files.
    pub(crate) fn find(&self, wanted: &Wanted) -> Result<Option<Found>, Error> {
        for commit in self.commits(wanted)? {
            let groups = self.groups(&wanted.name, &commit)?;
            let group = match &wanted.file {
                Some(file) => choose::with_file(&groups, file),
                None => choose::choose(&groups, wanted.name.quantisation.as_deref()),
            };
            if let Some(group) = group {
                return Ok(Some(self.found(&wanted.name, &commit, group, 0)));
            }
        }
        Ok(None)
    }

    pub(crate) fn found(
        &self,
        name: &ModelName,
        commit: &str,
        group: &Group,
        downloaded: u64,
    ) -> Found {
        let path = self.snapshot(name, commit, group.first());
        let activation = self.snapshot(name, commit, ACTIVATION);
        Found { path, activation: activation.is_dir().then_some(activation), downloaded }
    }

    /// The repositories in the cache.
    fn repositories(&self) -> Result<Vec<ModelName>, Error> {
        let mut names = Vec::new();
        for entry in entries(&self.root)? {
            let folder = entry.file_name().into_string().unwrap_or_default();
            let path = folder.strip_prefix(MODELS).and_then(|path| path.split_once("--"));
            let name = path.map(|(user, repository)| format!("{user}/{repository}"));
            names.extend(name.and_then(|name| ModelName::parse(&name)));
        }
        names.sort();
        Ok(names)
    }

    pub(crate) fn list(&self) -> Result<Vec<CachedModel>, Error> {
        let mut models: Vec<CachedModel> = Vec::new();
        for name in self.repositories()? {
            let wanted = Wanted::new(name.clone());
            for commit in self.commits(&wanted)? {
                for group in self.groups(&name, &commit)? {
                    let quantisation = Some(group.label());
                    let name = ModelName { quantisation, ..name.clone() };
                    if models.iter().any(|known| known.name == name) {
                        continue;
                    }
                    let paths = group.files.iter().map(|file| self.snapshot(&name, &commit, file));
                    let metadata: Vec<_> = paths.flat_map(fs::metadata).collect();
                    models.push(CachedModel {
                        path: Some(self.snapshot(&name, &commit, group.first())),
                        size: metadata.iter().map(fs::Metadata::len).sum(),
                        modified: metadata.iter().flat_map(fs::Metadata::modified).max(),
                        name,
                    });
                }
            }
            let size: u64 = self.partials(&name)?.iter().map(|(_, size)| size).sum();
            if size > 0 {
                models.push(CachedModel { name, path: None, size, modified: None });
            }
        }
        Ok(models)
    }

    /// Partial downloads, with their sizes in bytes.
    fn partials(&self, name: &ModelName) -> Result<Vec<(PathBuf, u64)>, Error> {
        let blobs = entries(&self.repository(name).join("blobs"))?;
        let paths = blobs.into_iter().map(|entry| entry.path());
        let partials = paths.filter(|path| path.extension().is_some_and(|end| end == INCOMPLETE));
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
        Ok(partials.map(|path| (path.clone(), size(&path))).collect())
    }

    /// The data that links point to, other than the links in `except`.
    fn used(
        &self,
        name: &ModelName,
        except: &BTreeSet<PathBuf>,
    ) -> Result<BTreeSet<PathBuf>, Error> {
        let mut links = BTreeSet::new();
        for commit in self.commits(&Wanted::new(name.clone()))? {
            for file in self.files(name, &commit)? {
                let path = self.snapshot(name, &commit, &file);
                if !except.contains(&path) {
                    links.insert(path);
                }
            }
        }
        self.data_of(name, &links)
    }

    /// The data that `links` lead to: the targets of symbolic links; of hard links, all names that the data has here.
    fn data_of(
        &self,
        name: &ModelName,
        links: &BTreeSet<PathBuf>,
    ) -> Result<BTreeSet<PathBuf>, Error> {
        let mut data: BTreeSet<PathBuf> = links.iter().flat_map(fs::canonicalize).collect();
        let hard_links = links.iter().filter(|path| !path.is_symlink());
        let known: BTreeSet<_> = hard_links.filter_map(|path| identity_at(path)).collect();
        if !known.is_empty() {
            let blobs = entries(&self.repository(name).join("blobs"))?;
            let blobs = blobs.into_iter().map(|entry| entry.path());
            let linked =
                blobs.filter(|path| identity_at(path).is_some_and(|id| known.contains(&id)));
            data.extend(linked.flat_map(fs::canonicalize));
        }
        Ok(data)
    }

    pub(crate) fn remove(&self, name: &ModelName) -> Result<Option<Removed>, Error> {
        let (mut links, mut side_files) = (BTreeSet::new(), Vec::new());
        for commit in self.commits(&Wanted::new(name.clone()))? {
            let files = self.files(name, &commit)?;
            let groups = choose::groups(files.iter().map(String::as_str));
            let chosen: Vec<&Group> = match &name.quantisation {
                Some(tag) => {
                    let label = groups.iter().find(|g| g.label().eq_ignore_ascii_case(tag));
                    label.or_else(|| choose::choose(&groups, Some(tag))).into_iter().collect()
                }
                None => groups.iter().collect(),
            };
            for group in &chosen {
                let side_file = self.snapshot(name, &commit, &choose::side_file(group.first()));
                side_files.extend(Some(side_file).filter(|path| path.is_file()));
            }
            let files = chosen.into_iter().flat_map(|group| &group.files);
            links.extend(files.map(|file| self.snapshot(name, &commit, file)));
        }
        let used = self.used(name, &links)?;
        let mut removed = Removed { files: links.len(), bytes: 0 };
        let mut data = self.data_of(name, &links)?;
        let used_data: BTreeSet<_> = used.iter().filter_map(|path| identity_at(path)).collect();
        let is_used = |path: &Path| identity_at(path).is_some_and(|id| used_data.contains(&id));
        data.retain(|path| !used.contains(path) && !is_used(path));
        if name.quantisation.is_none() {
            data.extend(self.partials(name)?.into_iter().map(|(path, _)| path));
        }
        data.extend(side_files);
        if links.is_empty() && data.is_empty() {
            return Ok(None);
        }
        // Hard links are several names of the same bytes.
        let mut counted = BTreeSet::new();
        for path in links.iter().chain(&data) {
            let size = fs::symlink_metadata(path).map_or(0, |metadata| metadata.len());
            let counts =
                data.contains(path) && identity_at(path).is_none_or(|id| counted.insert(id));
            remove_if_there(path)?;
            removed.bytes += if counts { size } else { 0 };
        }
        if name.quantisation.is_none() {
            self.remove_empty(name)?;
        }
        Ok(Some(removed))
    }

    /// Deletes the repository's folder if its commits have only PowerInfer's counts left.
    fn remove_empty(&self, name: &ModelName) -> Result<(), Error> {
        for commit in self.commits(&Wanted::new(name.clone()))? {
            let left = self.files(name, &commit)?;
            if left.iter().any(|file| !file.starts_with(&format!("{ACTIVATION}/"))) {
                return Ok(());
            }
        }
        let folder = self.repository(name);
        fs::remove_dir_all(&folder).map_err(io_error("delete", folder))
    }
}

/// Creates the file at `path` and locks it; `waits` is called if another process has the lock.
pub(crate) fn lock_file(path: &Path, waits: impl FnOnce()) -> Result<File, Error> {
    create_parent(path)?;
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(io_error("create", path))?;
    if file.try_lock().is_err() {
        waits();
        file.lock().map_err(io_error("lock", path))?;
    }
    Ok(file)
}

pub(crate) fn create_parent(path: &Path) -> Result<(), Error> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(io_error("create", folder))
}

/// The entries of a folder; none if it does not exist.
fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>, Error> {
    let read = match fs::read_dir(folder) {
        Ok(read) => read.collect(),
        Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&e.kind()) => {
            Ok(Vec::new())
        }
        Err(e) => Err(e),
    };
    read.map_err(io_error("read", folder))
}

/// A random name beside `path`, which no other thread or process uses.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}", RandomState::new().hash_one(0)))
}

/// Copies a file to a name that does not exist yet.
fn copy_new(from: &Path, to: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(to)?;
    io::copy(&mut File::open(from)?, &mut file).map(drop)
}

fn remove_if_there(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error("delete", path)(e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_made_at_once_keep_the_data() {
        let root = std::env::temp_dir().join(format!("thermocline-links-{}", std::process::id()));
        let cache = Cache::new(root.clone());
        let name = ModelName::parse("someone/tiny").unwrap();
        let blob = cache.blob(&name, "abc");
        create_parent(&blob).unwrap();
        fs::write(&blob, b"data").unwrap();
        for i in 0..50 {
            let file = format!("m{i}.gguf");
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| cache.link(&name, "1", &file, "abc").unwrap());
                }
            });
        }
        assert_eq!(fs::read(&blob).unwrap(), b"data");
        let links = fs::read_dir(cache.snapshot(&name, "1", "m").parent().unwrap()).unwrap();
        assert_eq!(links.count(), 50);
        fs::remove_dir_all(root).unwrap();
    }

    /// As on Windows, where a user may need a right to make symbolic links.
    #[test]
    fn hard_links_are_removed_with_their_data() {
        let root = std::env::temp_dir().join(format!("thermocline-names-{}", std::process::id()));
        let cache = Cache::new(root.clone());
        let name = ModelName::parse("someone/tiny").unwrap();
        for (data, files) in
            [("abc", ["m.Q4_0.gguf", "m.Q4_1.gguf"]), ("def", ["m.Q8_0.gguf", "m.F16.gguf"])]
        {
            let blob = cache.blob(&name, data);
            create_parent(&blob).unwrap();
            fs::write(&blob, b"data").unwrap();
            for file in files {
                let link = cache.snapshot(&name, "1", file);
                create_parent(&link).unwrap();
                fs::hard_link(&blob, &link).unwrap();
            }
        }
        let of = |tag: &str| ModelName { quantisation: Some(tag.to_owned()), ..name.clone() };
        let removed = cache.remove(&of("Q8_0")).unwrap().unwrap();
        assert_eq!(removed, Removed { files: 1, bytes: 0 }, "another file has the data");
        let removed = cache.remove(&of("F16")).unwrap().unwrap();
        assert_eq!(removed, Removed { files: 1, bytes: 4 });
        assert!(!cache.blob(&name, "def").exists() && cache.blob(&name, "abc").exists());
        assert_eq!(cache.remove(&name).unwrap().unwrap(), Removed { files: 2, bytes: 4 });
        assert!(!cache.repository(&name).exists());
        fs::remove_dir_all(root).unwrap();
    }
}

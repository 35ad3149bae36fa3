//! Downloads of whole models: chooses the files, checks the free space, fetches one by one.

use crate::cache::{create_parent, lock_file};
use crate::choose::{self, Group};
use crate::client::{Failed, header};
use crate::error::{Error, io_error};
use crate::fetch::Fetch;
use crate::listing::{self, Listing, RemoteFile, total_size};
use crate::verify::{Checksum, sha256};
use crate::{Found, Hub, ModelName, Progress, Wanted};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

impl Hub {
    /// Downloads the files of a model that are missing or have changed on the hub: all parts of a
    /// split model, its side file, and PowerInfer's `activation` folder. Projectors for images are
    /// left out. Offline, the model must be in the cache.
    ///
    /// # Errors
    /// See [`Error`]. A file gets its final name only when it is complete.
    pub fn pull(&self, wanted: &Wanted, progress: &mut dyn Progress) -> Result<Found, Error> {
        let name = &wanted.name;
        if self.is_offline() {
            return self.find(wanted)?.ok_or_else(|| Error::Offline(name.to_string()));
        }
        let listing = listing::fetch(&self.client, wanted)?;
        let groups = choose::groups(listing.files.iter().map(|file| file.path.as_str()));
        let group = chosen(&groups, wanted, &listing)?;
        let mut files = files(group, &listing);
        for file in &mut files {
            let url = listing::address(&self.client, name, &listing.commit, &file.path);
            listing::complete(&self.client, name, &url, file)?;
        }
        let missing = files.iter().filter(|file| !self.has(name, file));
        let (mut total, mut present, mut n_missing) = (0, 0, 0);
        for file in missing {
            n_missing += 1;
            total += file.size.unwrap_or_default();
            let partial = self.cache.partial(name, &key(file));
            present += fs::metadata(partial).map_or(0, |metadata| metadata.len());
        }
        if n_missing > 0 {
            check_room(self.cache.root(), total.saturating_sub(present))?;
            progress.begin(n_missing, total, present);
        }
        let mut downloaded = 0;
        for file in &files {
            downloaded += self.fetch(name, &listing.commit, file, progress)?;
        }
        self.cache.set_revision(wanted, &listing.commit)?;
        Ok(self.cache.found(name, &listing.commit, group, downloaded))
    }

    /// Whether the data of a file is in the cache, with the announced size.
    fn has(&self, name: &ModelName, file: &RemoteFile) -> bool {
        let metadata = fs::metadata(self.cache.blob(name, &key(file)));
        metadata.is_ok_and(|found| file.size.is_none_or(|size| found.len() == size))
    }

    /// Fetches one file if it is missing, and adds it to the commit's folder. Returns the number of
    /// bytes fetched.
    fn fetch(
        &self,
        name: &ModelName,
        commit: &str,
        file: &RemoteFile,
        progress: &mut dyn Progress,
    ) -> Result<u64, Error> {
        let key = key(file);
        let mut fetched = 0;
        if !self.has(name, file) {
            let lock = self.cache.lock(name, &key, || progress.wait(&file.path))?;
            if !self.has(name, file) {
                let (blob, partial) = (self.cache.blob(name, &key), self.cache.partial(name, &key));
                create_parent(&blob)?;
                let url = listing::address(&self.client, name, commit, &file.path);
                let fetch = Fetch {
                    name: Some(name),
                    file: &file.path,
                    url: &url,
                    size: file.size,
                    checksum: file.checksum.as_ref(),
                    partial: &partial,
                };
                fetched = fetch.run(&self.client, progress)?;
                fs::rename(&partial, &blob).map_err(io_error("create", &blob))?;
                progress.complete(&file.path, file.checksum.is_some());
            }
            drop(lock);
        }
        self.cache.link(name, commit, &file.path, &key)?;
        Ok(fetched)
    }

    /// Downloads a model from any URL into `folder`, with all its parts. Only the sizes can be
    /// verified, because the checksums are unknown.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn download(
        &self,
        url: &str,
        folder: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Found, Error> {
        let (path, query) = match url.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (url, String::new()),
        };
        let parts = choose::parts(path);
        let paths: Vec<PathBuf> = parts.iter().map(|part| place(part, folder)).collect();
        let first = paths.first().cloned().unwrap_or_default();
        let mut downloaded = 0;
        for (part, path) in parts.iter().zip(&paths) {
            if path.is_file() {
                continue;
            }
            if self.is_offline() {
                return Err(Error::Offline(part.clone()));
            }
            downloaded += self.download_part(&format!("{part}{query}"), path, progress)?;
        }
        Ok(Found { path: first, activation: None, downloaded })
    }

    fn download_part(
        &self,
        url: &str,
        path: &Path,
        progress: &mut dyn Progress,
    ) -> Result<u64, Error> {
        let shown = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let shown = shown.unwrap_or_default();
        let lock = lock_file(&path.with_extension("lock"), || progress.wait(&shown))?;
        if path.is_file() {
            return Ok(0);
        }
        let answer = self.client.get(url, Some(0), None);
        let answer = answer.map_err(|failed: Failed| failed.into_error(url))?;
        let size = total_size(&answer);
        // A partial download continues only while the server has the same version of the file.
        let version = header(&answer.headers, "etag").unwrap_or_default();
        let partial = format!("{}.incomplete", &sha256(&format!("{version} {size:?}"))[..16]);
        let partial = path.with_extension(partial);
        drop(answer);
        let present = fs::metadata(&partial).map_or(0, |metadata| metadata.len());
        check_room(path, size.unwrap_or_default().saturating_sub(present))?;
        progress.begin(1, size.unwrap_or_default(), present);
        let fetch =
            Fetch { name: None, file: &shown, url, size, checksum: None, partial: &partial };
        let fetched = fetch.run(&self.client, progress)?;
        fs::rename(&partial, path).map_err(io_error("create", path))?;
        progress.complete(&shown, false);
        drop(lock);
        Ok(fetched)
    }
}

/// Where the file of a URL is kept: in a folder named after the hash of the URL's folder.
fn place(url: &str, folder: &Path) -> PathBuf {
    let (parent, file) = url.rsplit_once('/').unwrap_or(("", url));
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let file: String = file.chars().map(plain).collect();
    let file = file.trim_start_matches('.');
    let file = if file.is_empty() { "model.gguf" } else { file };
    folder.join(&sha256(parent)[..16]).join(file)
}

/// The name of a file's data in the cache. Without a checksum, a name made of its path and size.
fn key(file: &RemoteFile) -> String {
    match &file.checksum {
        Some(checksum) => Checksum::hex(checksum).to_owned(),
        None => format!("{}-unverified", sha256(&format!("{} {:?}", file.path, file.size))),
    }
}

/// The model among those of the repository that the user wants.
fn chosen<'a>(groups: &'a [Group], wanted: &Wanted, listing: &Listing) -> Result<&'a Group, Error> {
    let name = wanted.name.clone();
    let ends = |end: &str| listing.files.iter().any(|file| file.path.ends_with(end));
    if groups.is_empty() {
        return Err(Error::NoModel { name, has_weights: ends(".safetensors") });
    }
    let found = match &wanted.file {
        Some(file) => choose::with_file(groups, file),
        None => choose::choose(groups, wanted.name.quantisation.as_deref()),
    };
    let group = found.ok_or_else(|| match &wanted.file {
        Some(file) => {
            let known = groups.iter().map(|group| group.first().to_owned()).collect();
            Error::NoFile { name: name.clone(), file: file.clone(), known }
        }
        None => {
            let known: BTreeSet<String> = groups.iter().map(Group::label).collect();
            Error::NoQuantisation { name: name.clone(), known: known.into_iter().collect() }
        }
    })?;
    if group.is_complete() {
        return Ok(group);
    }
    let (file, count, found) = (group.first().to_owned(), group.count, group.files.len());
    Err(Error::MissingParts { file, count, found })
}

/// The files of a model, its side file, and PowerInfer's activation counts.
fn files(group: &Group, listing: &Listing) -> Vec<RemoteFile> {
    let is_count = |path: &str| path.starts_with("activation/") && path.ends_with(".pt");
    let side_file = choose::side_file(group.first());
    let wanted = |file: &&RemoteFile| {
        group.files.contains(&file.path) || file.path == side_file || is_count(&file.path)
    };
    listing.files.iter().filter(wanted).cloned().collect()
}

/// Checks that `needed` bytes fit on the disk of `path`, if the system reports its free space.
fn check_room(path: &Path, needed: u64) -> Result<(), Error> {
    match own_file::free_bytes(path) {
        Some(free) if free < needed => Err(Error::Full { folder: path.to_owned(), needed, free }),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_in_different_folders_have_different_files() {
        let folder = Path::new("c");
        let at = |url| place(url, folder);
        assert_ne!(at("https://a.org/x/m.gguf"), at("https://a.org/y/m.gguf"));
        assert!(at("https://a.org/../..").ends_with("model.gguf"));
        assert!(at("https://a.org/a%20b.gguf").ends_with("a_20b.gguf"));
    }

    #[test]
    fn a_full_disk_is_noticed_before_the_download() {
        let folder = std::env::temp_dir().join("not").join("there");
        assert!(check_room(&folder, 0).is_ok());
        let error = check_room(&folder, u64::MAX).unwrap_err();
        assert!(matches!(error, Error::Full { needed: u64::MAX, free: 1.., .. }), "{error}");
    }
}

//! An open container: one file, several parts of one model, or bytes in memory.

use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Bytes, Container, Error, FileFacts, Metadata, Problem, TensorInfo,
    bytes::{Backing, Mapping},
    header::Header,
    map::map,
    metadata::sort_by_name,
    output,
    split::{self, Split},
};

/// An open container. Its header is checked; its tensor data is mapped, but not yet read.
#[derive(Debug)]
pub struct File {
    name: Arc<str>,
    paths: Vec<PathBuf>,
    container: Container,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices of the tensors, sorted by name.
    sorted: Vec<usize>,
    /// The bytes of each part: first the files, then the overlays.
    parts: Vec<Bytes>,
    /// Number of parts that are files.
    n_files: usize,
    /// Bytes of the tensors that overlays replace.
    replaced: u64,
}

/// One file, not yet joined with the other parts.
struct FilePart {
    name: Arc<str>,
    bytes: Bytes,
    header: Header,
}

impl FilePart {
    fn new(name: &str, backing: Backing) -> Result<FilePart, Error> {
        let name: Arc<str> = name.into();
        let bytes = Bytes::all(backing);
        let header = Header::parse(&name, &bytes).map_err(|problem| Error::new(&name, problem))?;
        Ok(FilePart { name, bytes, header })
    }

    fn open(path: &Path) -> Result<FilePart, Error> {
        let name = path.display().to_string();
        let backing = open_backing(path).map_err(|problem| Error::new(&name, problem))?;
        FilePart::new(&name, backing)
    }
}

impl File {
    /// Opens the file at `path` and, if it is a part of a split model, all other parts.
    ///
    /// Tensor data is mapped, not read. The files must not be shortened while they are open.
    ///
    /// # Errors
    /// Any [`Problem`] that does not concern writing.
    pub fn open(path: &Path) -> Result<File, Error> {
        let given = FilePart::open(path)?;
        let Some(split) = Split::read(&given.header.metadata)? else {
            return File::join(vec![given], vec![path.to_owned()], None);
        };
        let paths: Vec<PathBuf> =
            split::paths(path, split.count).map_err(|p| Error::new(&given.name, p))?.collect();
        let mut parts = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            if fs::metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                let missing =
                    Problem::MissingPart { number: number as u64 + 1, count: split.count };
                return Err(Error::new(&path.display().to_string(), missing));
            }
            let part = FilePart::open(path)?;
            check_part(&part, number, split, given.header.container)?;
            parts.push(part);
        }
        File::join(parts, paths, split.n_tensors)
    }

    /// Opens static bytes of the program. They may have any alignment.
    ///
    /// # Errors
    /// As [`File::open`]; the bytes must be a whole model.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<File, Error> {
        File::from_backing(Backing::Static(bytes), name)
    }

    /// Opens bytes in memory. They may have any alignment.
    ///
    /// # Errors
    /// As [`File::open`]; the bytes must be a whole model.
    pub fn from_vec(bytes: Vec<u8>, name: &str) -> Result<File, Error> {
        File::from_backing(Backing::Owned(bytes), name)
    }

    /// Opens the bytes of the file at `path`, which were read into memory.
    ///
    /// # Errors
    /// As [`File::from_vec`].
    pub fn from_bytes_of(path: &Path, bytes: Vec<u8>) -> Result<File, Error> {
        let file = File::from_vec(bytes, &path.display().to_string())?;
        Ok(File { paths: vec![path.to_owned()], ..file })
    }

    /// A file of `len` bytes that begins with `header` and has no data: its tensors read as zeros.
    pub(super) fn of_shapes(name: &str, header: &[u8], len: u64) -> Result<File, Error> {
        let reserved = usize::try_from(len).map_err(io::Error::other);
        let map = reserved.and_then(|len| super::map::zeros(header, len));
        let map = map.map_err(|reason| {
            Error::new(name, Problem::Io { action: "reserve addresses for", reason })
        })?;
        let file = File::from_backing(Backing::Shapes(map), name)?;
        Ok(File { paths: vec![PathBuf::from(name)], ..file })
    }

    fn from_backing(backing: Backing, name: &str) -> Result<File, Error> {
        let part = FilePart::new(name, backing)?;
        if let Some(split) = Split::read(&part.header.metadata)? {
            let problem = Problem::Split {
                what: "key `split.count`",
                expected: "1 for a model in memory".to_owned(),
                found: split.count.to_string(),
            };
            return Err(Error::new(name, problem));
        }
        File::join(vec![part], Vec::new(), None)
    }

    /// Joins the parts of a model, in order. The caller has checked that they match.
    fn join(
        parts: Vec<FilePart>,
        paths: Vec<PathBuf>,
        n_tensors: Option<u64>,
    ) -> Result<File, Error> {
        let mut all_bytes = Vec::new();
        let mut tensors = Vec::new();
        let mut first = None;
        for (number, part) in parts.into_iter().enumerate() {
            let Header { container, version, metadata, tensors: part_tensors } = part.header;
            tensors.extend(part_tensors.into_iter().map(|mut tensor| {
                tensor.part = number;
                tensor
            }));
            all_bytes.push(part.bytes);
            first.get_or_insert((part.name, container, version, metadata));
        }
        let (name, container, version, metadata) = first.expect("a file has at least one part");
        if let Some(expected) = n_tensors.filter(|&n| n != tensors.len() as u64) {
            let problem = Problem::Split {
                what: "key `split.tensors.count` (compared with the tensors of all parts)",
                expected: expected.to_string(),
                found: tensors.len().to_string(),
            };
            return Err(Error::new(&name, problem));
        }
        let sorted = sort_by_name(&tensors, |tensor| &tensor.name).map_err(|tensor| {
            Error::new(&name, Problem::DuplicateTensor { tensor: tensor.to_owned() })
        })?;
        let n_files = all_bytes.len();
        Ok(File {
            name,
            paths,
            container,
            version,
            metadata,
            tensors,
            sorted,
            parts: all_bytes,
            n_files,
            replaced: 0,
        })
    }

    /// Adds the tensors of `overlay`; they replace tensors of the same name. Name, metadata and
    /// paths stay. The header of `overlay` counts among [`File::headers`], so it belongs to what
    /// identifies the model.
    #[must_use]
    pub fn with_overlay(mut self, overlay: File) -> File {
        let n_parts = self.parts.len();
        for mut tensor in overlay.tensors {
            tensor.part += n_parts;
            let name = tensor.name.as_str();
            match self.sorted.binary_search_by(|&n| self.tensors[n].name.as_str().cmp(name)) {
                Ok(at) => {
                    let old = std::mem::replace(&mut self.tensors[self.sorted[at]], tensor);
                    self.replaced += old.n_bytes();
                }
                Err(at) => {
                    self.sorted.insert(at, self.tensors.len());
                    self.tensors.push(tensor);
                }
            }
        }
        self.parts.extend(overlay.parts);
        self
    }

    /// The given path of the (first) file, or the name given to bytes in memory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files of the model, in order; none for bytes in memory.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The owner of the (first) file, if that is neither this user, nor root, nor the owner of
    /// `model`: then anyone who may write to the folder may have put the file there. `None` for
    /// bytes in memory.
    pub fn foreign_owner(&self, model: &File) -> Option<u32> {
        let of_path = || own_file::owner(&fs::metadata(model.paths.first()?).ok()?);
        let trusted = model.parts[0].owner().or_else(of_path);
        output::foreign(self.parts[0].owner(), trusted)
    }

    /// The container format.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The container's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes of all files and overlays together, without the tensors that overlays replace.
    pub fn size_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum::<u64>() - self.replaced
    }

    /// Bytes of all overlays.
    pub fn overlay_bytes(&self) -> u64 {
        self.parts[self.n_files..].iter().map(|part| part.len() as u64).sum()
    }

    /// The bytes before the first tensor, for each overlay.
    pub fn overlay_headers(&self) -> impl Iterator<Item = &[u8]> {
        self.headers().skip(self.n_files)
    }

    /// Whether `rows` are read from an overlay.
    pub fn is_overlay(&self, rows: &hal::HostRows) -> bool {
        match rows.source() {
            hal::Source::Mapped(bytes) | hal::Source::Owned(bytes) => {
                let wanted = (**bytes).as_ref().as_ptr_range();
                self.parts[self.n_files..].iter().any(|part| {
                    let part = part.as_ptr_range();
                    part.start <= wanted.start && wanted.end <= part.end
                })
            }
            hal::Source::Paged(store) => store.parts().iter().any(|part| self.is_overlay(part)),
        }
    }

    /// Metadata; for a split model, the metadata of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`; `None` if the file has no such tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.sorted.binary_search_by(|&n| self.tensors[n].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.sorted[at]])
    }

    /// The bytes of a tensor of this file.
    ///
    /// # Errors
    /// [`Problem::UnknownType`] if the size of the tensor's type is unknown.
    ///
    /// # Panics
    /// If `tensor` comes from another file and is out of bounds of this one.
    pub fn bytes(&self, tensor: &TensorInfo) -> Result<&[u8], Error> {
        self.check_type(tensor)?;
        Ok(&self.parts[tensor.part][tensor.range()])
    }

    /// The bytes of a tensor of this file, with a reference to the mapping.
    ///
    /// # Errors
    /// [`Problem::UnknownType`] if the size of the tensor's type is unknown.
    ///
    /// # Panics
    /// If `tensor` comes from another file and is out of bounds of this one.
    pub fn slice(&self, tensor: &TensorInfo) -> Result<Bytes, Error> {
        self.check_type(tensor)?;
        Ok(self.parts[tensor.part].slice(tensor.range()))
    }

    /// For bytes that are mapped from a file of the model or planned for one: the number of the file among
    /// [`File::paths`], and the range in it.
    pub fn locate(&self, bytes: &[u8]) -> Option<(usize, Range<u64>)> {
        let wanted = bytes.as_ptr_range();
        let parts = self.parts[..self.n_files.min(self.paths.len())].iter().enumerate();
        let (number, part) = parts.into_iter().find(|(_, part)| {
            let own = part.as_ptr_range();
            own.start <= wanted.start && wanted.end <= own.end
        })?;
        if !part.is_of_file() {
            return None;
        }
        let start = (wanted.start.addr() - part.as_ptr().addr()) as u64;
        Some((number, start..start + bytes.len() as u64))
    }

    /// The facts of file `number` of [`File::paths`], when it was opened; `None` if it is not
    /// mapped.
    pub fn opened(&self, number: usize) -> Option<&FileFacts> {
        self.parts.get(number)?.opened()
    }

    /// Checks that no mapped file was written to since it was opened: for a reader of many bytes,
    /// when it has read them.
    ///
    /// # Errors
    /// As [`Bytes::check_unchanged`].
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(Bytes::check_unchanged)
    }

    /// Drops the mapped pages of `bytes`, a slice of this file, from this process's memory; they
    /// are reloaded when read. Does nothing for bytes that are not mapped.
    pub fn release(&self, bytes: &[u8]) {
        let _ = self.parts.iter().any(|part| part.release(bytes));
    }

    /// Calls [`File::release`] for all sources of `rows`.
    pub fn release_rows(&self, rows: &hal::HostRows) {
        match rows.source() {
            hal::Source::Mapped(bytes) => self.release((**bytes).as_ref()),
            hal::Source::Paged(store) => {
                store.parts().iter().for_each(|part| self.release_rows(part));
            }
            hal::Source::Owned(_) => {}
        }
    }

    /// Drops all mapped pages, and expects reads of single pages from now on: for a model whose
    /// weights are read in another way.
    pub fn expect_few_reads(&self) {
        self.parts.iter().for_each(Bytes::expect_few_reads);
    }

    /// Starts to read the whole file into memory, for a caller that will read it sequentially.
    pub fn fetch(&self) {
        self.parts.iter().for_each(Bytes::fetch);
    }

    /// The bytes before the first tensor, for each part.
    pub fn headers(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().enumerate().map(|(number, bytes)| {
            let part_tensors = self.tensors.iter().filter(|tensor| tensor.part == number);
            let end = part_tensors.map(|tensor| tensor.range().start).min();
            &bytes[..end.unwrap_or(bytes.len())]
        })
    }

    fn check_type(&self, tensor: &TensorInfo) -> Result<(), Error> {
        if let super::TensorType::Unknown(id) = tensor.ty {
            let file = match self.paths.get(tensor.part) {
                Some(path) => &path.display().to_string(),
                None => self.name(),
            };
            return Err(Error::new(file, Problem::UnknownType { tensor: tensor.name.clone(), id }));
        }
        Ok(())
    }
}

impl Bytes {
    /// Maps any regular file for reading, whatever its content. It must not be truncated while it
    /// is mapped.
    ///
    /// # Errors
    /// [`Problem::Io`], or the problem of a file that is empty or not a regular file.
    pub fn open(path: &Path) -> Result<Bytes, Error> {
        let backing = open_backing(path);
        backing.map(Bytes::all).map_err(|problem| Error::new(&path.display().to_string(), problem))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::all(Backing::Owned(bytes))
    }
}

/// Returns an error if `part` has another container, number or number of parts than expected.
fn check_part(
    part: &FilePart,
    number: usize,
    whole: Split,
    container: Container,
) -> Result<(), Error> {
    let wrong = |what, expected: String, found: String| {
        Err(Error::new(&part.name, Problem::Split { what, expected, found }))
    };
    if part.header.container != container {
        return wrong("container", container.to_string(), part.header.container.to_string());
    }
    let split = Split::read(&part.header.metadata)?;
    let (found, count) = split.map_or((0, 1), |split| (split.number, split.count));
    if count != whole.count {
        return wrong("key `split.count`", whole.count.to_string(), count.to_string());
    }
    if found != number as u64 {
        return wrong("key `split.no`", number.to_string(), found.to_string());
    }
    Ok(())
}

/// Maps a regular file, and returns a specific error for anything else. A pipe is not opened,
/// because opening it would block.
fn open_backing(path: &Path) -> Result<Backing, Problem> {
    let io_error = |action| move |reason| Problem::Io { action, reason };
    let kind = fs::metadata(path).map_err(io_error("open"))?;
    if kind.is_dir() {
        return Err(Problem::Directory { hint: hint_for_directory(path) });
    }
    if !kind.is_file() {
        return Err(Problem::NotAFile);
    }
    if kind.len() == 0 {
        return Err(Problem::Empty);
    }
    let file = fs::File::open(path).map_err(io_error("open"))?;
    let opened = FileFacts::of(&file).map_err(io_error("open"))?;
    let owner = own_file::owner(&file.metadata().map_err(io_error("open"))?);
    let map = map(&file).map_err(io_error("map"))?;
    Ok(Backing::Mapped(Mapping::new(map, file, path, opened, owner)))
}

/// The part of an error message that suggests a file in the directory at `path`.
fn hint_for_directory(path: &Path) -> String {
    let Ok(entries) = fs::read_dir(path) else {
        return String::new();
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let models: Vec<&str> =
        names.iter().filter(|name| name.ends_with(".gguf")).map(String::as_str).collect();
    match models.as_slice() {
        [] if names.iter().any(|name| name == "config.json") => {
            "; it looks like a Hugging Face model folder, which `thermocline convert` converts to a GGUF file"
                .to_owned()
        }
        [] => "; it contains no GGUF file".to_owned(),
        [model] => format!("; it contains {model}"),
        [first, .., last] => format!("; it contains {} files, {first} to {last}: name one of them", models.len()),
    }
}

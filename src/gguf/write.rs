//! Writes a container: first the header, then the tensors' bytes in the same order.
//!
//! A file is written under a temporary name and renamed when it is complete, so that no reader
//! sees an incomplete file.

use std::{
    collections::HashSet,
    io::{self, Read, Write},
    path::Path,
};

use own_file::free_bytes;

use super::{
    CompleteFile, Container, Error, File, PartFile, Problem, TensorInfo, TensorType, Value,
    header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_DEPTH, MAX_HEADER, MAX_NAME, check_alignment},
    value::encode_string,
};

/// The version of written files.
const VERSION: u32 = 3;
/// `EFAULT` of every Unix, `ERROR_NOACCESS` of Windows: a mapped file that is copied has become shorter, or its disk
/// fails.
const EFAULT: i32 = if cfg!(windows) { 998 } else { 14 };
/// Used instead of a file name in errors of a container in memory.
const UNNAMED: &str = "new container";

/// The contents of a container to be written: metadata and the list of tensors.
#[derive(Clone, Debug)]
pub struct Writer {
    container: Container,
    alignment: u64,
    entries: Vec<(String, Value)>,
    keys: HashSet<String>,
    tensors: Vec<TensorInfo>,
    names: HashSet<String>,
}

impl Writer {
    /// An empty container. Tensor data will be aligned to 32 bytes unless `general.alignment` is
    /// set.
    pub fn new(container: Container) -> Writer {
        Writer {
            container,
            alignment: DEFAULT_ALIGNMENT,
            entries: Vec::new(),
            keys: HashSet::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Appends a key and its value.
    ///
    /// # Errors
    /// A key that exists already or is too long, arrays nested too deep, an invalid
    /// `general.alignment`.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), Error> {
        self.try_set(key, value.into()).map_err(|problem| Error::new(UNNAMED, problem))
    }

    fn try_set(&mut self, key: &str, value: Value) -> Result<(), Problem> {
        check_name(key, "key")?;
        if value.as_array().is_some_and(|array| array.depth() > MAX_DEPTH) {
            return Err(Problem::Depth { place: format!("key `{key}`"), limit: MAX_DEPTH });
        }
        if key == ALIGNMENT_KEY {
            self.alignment = check_alignment(&value)?;
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(Problem::DuplicateKey { key: key.to_owned() });
        }
        self.entries.push((key.to_owned(), value));
        Ok(())
    }

    /// Appends a tensor of `shape` in ggml order (row length first). Its bytes are written after
    /// all tensors are declared.
    ///
    /// # Errors
    /// A name that exists already or is too long, a shape that does not fit the type, a type
    /// without an id in the container.
    pub fn declare(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: impl Into<TensorType>,
    ) -> Result<(), Error> {
        self.try_declare(name, shape, ty.into()).map_err(|problem| Error::new(UNNAMED, problem))
    }

    fn try_declare(&mut self, name: &str, shape: &[u64], ty: TensorType) -> Result<(), Problem> {
        check_name(name, "tensor")?;
        if ty.id(self.container).is_none() {
            let (tensor, container) = (name.to_owned(), self.container);
            return Err(Problem::NoTypeId { tensor, ty, container });
        }
        let tensor = TensorInfo::new(name.to_owned(), shape.to_vec(), ty, 0)?;
        if !self.names.insert(name.to_owned()) {
            return Err(Problem::DuplicateTensor { tensor: name.to_owned() });
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Starts the file at `path`, under a temporary name in the same folder.
    ///
    /// # Errors
    /// A file at `path` that must not be replaced, an I/O error, a full disk, a header or a data section that is too large.
    pub fn create(self, path: &Path) -> Result<DataWriter<PartFile>, Error> {
        self.create_with(path, PartFile::create)
    }

    /// As [`Writer::create`] for a file that only this program writes, so this run may have mapped
    /// the file that it replaces.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn create_own(self, path: &Path) -> Result<DataWriter<PartFile>, Error> {
        self.create_with(path, PartFile::create_own)
    }

    fn create_with(
        self,
        path: &Path,
        create: impl FnOnce(&Path) -> Result<PartFile, Problem>,
    ) -> Result<DataWriter<PartFile>, Error> {
        let name = path.display().to_string();
        let wanted = self.tensors.iter().fold(0, |sum: u64, t| sum.saturating_add(t.n_bytes()));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let free = free_bytes(folder.unwrap_or(Path::new(".")));
        if let Some(free) = free.filter(|&free| wanted > free) {
            return Err(Error::new(
                &name,
                Problem::Disk { wanted: hal::Bytes(wanted), free: hal::Bytes(free) },
            ));
        }
        let part = create(path).map_err(|problem| Error::new(&name, problem))?;
        self.start(name, part)
    }

    /// Starts a container in memory.
    ///
    /// # Errors
    /// A header or a data section that is too large.
    pub fn in_memory(self) -> Result<DataWriter<Vec<u8>>, Error> {
        self.start(UNNAMED.to_owned(), Vec::new())
    }

    /// The container without the tensors' data, which read as zeros and take no memory: for plans
    /// from shapes alone.
    ///
    /// # Errors
    /// A header or a data section that is too large.
    pub fn shapes(mut self, name: &str) -> Result<File, Error> {
        let header = self.header().map_err(|problem| Error::new(name, problem))?;
        let ends = self.tensors.iter().map(|tensor| tensor.offset.saturating_add(tensor.n_bytes()));
        let data = (header.len() as u64).next_multiple_of(self.alignment);
        let end = data.saturating_add(ends.max().unwrap_or(0));
        File::of_shapes(name, &header, end.checked_next_multiple_of(self.alignment).unwrap_or(end))
    }

    fn start<S: Write>(mut self, file: String, sink: S) -> Result<DataWriter<S>, Error> {
        let header = self.header().map_err(|problem| Error::new(&file, problem))?;
        let Writer { alignment, tensors, .. } = self;
        let mut data = DataWriter { file, sink, alignment, tensors, due: 0, written: 0 };
        data.put(&header)?;
        data.pad(header.len() as u64)?;
        data.skip_complete()?;
        Ok(data)
    }

    /// Sets the tensors' offsets and encodes the file up to their data.
    fn header(&mut self) -> Result<Vec<u8>, Problem> {
        let mut header = Vec::new();
        header.extend(self.container.magic());
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            encode_string(key.as_bytes(), &mut header);
            header.extend(value.type_id().to_le_bytes());
            value.encode(&mut header);
        }
        let mut end = Some(0_u64);
        for tensor in &mut self.tensors {
            let Some(offset) = end.and_then(|n| n.checked_next_multiple_of(self.alignment)) else {
                let (tensor, shape) = (tensor.name.clone(), tensor.shape.clone());
                return Err(Problem::Elements { tensor, shape });
            };
            tensor.offset = offset;
            end = offset.checked_add(tensor.n_bytes());
            encode_string(tensor.name.as_bytes(), &mut header);
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|n| header.extend(n.to_le_bytes()));
            let id = tensor.ty.id(self.container).expect("`declare` checked the type");
            header.extend(id.to_le_bytes());
            header.extend(offset.to_le_bytes());
        }
        if header.len() > MAX_HEADER {
            let place = "the end of the header".to_owned();
            return Err(Problem::HeaderTooLong { place, limit: MAX_HEADER as u64 });
        }
        Ok(header)
    }
}

fn check_name(name: &str, what: &str) -> Result<(), Problem> {
    let found = name.len() as u64;
    if found > MAX_NAME {
        let start: String = name.chars().take(40).collect();
        return Err(Problem::NameLength {
            place: format!("{what} `{start}...`"),
            found,
            limit: MAX_NAME,
        });
    }
    Ok(())
}

/// A container whose header is written and whose tensor data is being written.
///
/// After an error the container cannot be completed; drop it.
#[derive(Debug)]
pub struct DataWriter<S> {
    file: String,
    sink: S,
    alignment: u64,
    tensors: Vec<TensorInfo>,
    /// Index of the tensor whose bytes come next.
    due: usize,
    /// Bytes of that tensor that are already written.
    written: u64,
}

impl<S: Write> DataWriter<S> {
    /// Appends bytes of `tensor`, in any number of calls; tensors come in the order of their
    /// declaration.
    ///
    /// # Errors
    /// [`Problem::WriteOrder`] if another tensor comes next, [`Problem::WriteLength`] if
    /// the tensor has fewer bytes, or an I/O error.
    pub fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let due = self.tensors.get(self.due);
        let Some(due) = due.filter(|due| due.name == tensor) else {
            let expected = due.map_or("the end".to_owned(), |due| format!("`{}`", due.name));
            return Err(self.error(Problem::WriteOrder { expected, found: tensor.to_owned() }));
        };
        let found = self.written + bytes.len() as u64;
        if found > due.n_bytes() {
            let (tensor, expected) = (tensor.to_owned(), due.n_bytes());
            return Err(self.error(Problem::WriteLength { tensor, expected, found }));
        }
        self.put(bytes)?;
        self.written = found;
        self.skip_complete()
    }

    /// The tensors, as declared.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Advances to the next tensor with missing bytes.
    fn skip_complete(&mut self) -> Result<(), Error> {
        while self.tensors.get(self.due).is_some_and(|due| due.n_bytes() == self.written) {
            self.pad(self.written)?;
            self.due += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Appends zeros, from `len` bytes to the next multiple of the alignment.
    fn pad(&mut self, len: u64) -> Result<(), Error> {
        let zeros = len.next_multiple_of(self.alignment) - len;
        match io::copy(&mut io::repeat(0).take(zeros), &mut self.sink) {
            Ok(_) => Ok(()),
            Err(reason) => Err(self.error(Problem::Io { action: "write", reason })),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.sink.write_all(bytes).map_err(|reason| {
            // The system read the bytes for the call, so there was no SIGBUS.
            if reason.raw_os_error() == Some(EFAULT) {
                return self.error(Problem::SourceLost);
            }
            self.error(Problem::Io { action: "write", reason })
        })
    }

    fn check_complete(&self) -> Result<(), Error> {
        match self.tensors.get(self.due) {
            None => Ok(()),
            Some(due) => Err(self.error(Problem::WriteLength {
                tensor: due.name.clone(),
                expected: due.n_bytes(),
                found: self.written,
            })),
        }
    }

    fn error(&self, problem: Problem) -> Error {
        Error::new(&self.file, problem)
    }
}

impl DataWriter<PartFile> {
    /// Completes the file and renames it, replacing an existing file.
    ///
    /// # Errors
    /// A tensor lacks bytes, or an I/O error. The file is then removed.
    pub fn finish(self) -> Result<(), Error> {
        self.complete()?.publish()
    }

    /// Completes the file without renaming it.
    ///
    /// # Errors
    /// A tensor lacks bytes, or an I/O error. The file is then removed.
    pub fn complete(self) -> Result<CompleteFile, Error> {
        self.check_complete()?;
        let DataWriter { file, sink, .. } = self;
        sink.complete().map_err(|problem| Error::new(&file, problem))
    }
}

impl DataWriter<Vec<u8>> {
    /// The complete container.
    ///
    /// # Errors
    /// A tensor lacks bytes.
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        self.check_complete()?;
        Ok(self.sink)
    }
}

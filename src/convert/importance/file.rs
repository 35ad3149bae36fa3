//! The GGUF form: `NAME.in_sum2` with the sums of squares and `NAME.counts` with the tokens, both
//! F32.

use std::path::Path;

use gguf::{Array, Bytes, Container, File, Metadata, Strings, TensorInfo, Value, Writer};
use hal::format::Format;

use super::{ImportanceMatrix, InputSums, dat};
use crate::Error;

const TYPE: &str = "imatrix";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

impl ImportanceMatrix {
    /// Reads a file of either form. Files of the older form do not state the tokens of a chunk;
    /// `chunk_size` is then assumed.
    ///
    /// # Errors
    /// A file that cannot be read, or is not an importance matrix.
    pub fn open(path: &Path, chunk_size: u32) -> Result<ImportanceMatrix, Error> {
        let name = path.display().to_string();
        let bytes = Bytes::open(path).map_err(|error| Error::Importance {
            file: name.clone(),
            what: error.problem().to_string(),
        })?;
        let matrix = if bytes.starts_with(&Container::Gguf.magic()) {
            read(&File::open(path)?)
        } else {
            dat::read(&bytes, chunk_size)
        };
        let matrix = matrix.and_then(|matrix| {
            let is_usable =
                |sums: &InputSums| sums.squares.iter().all(|v| v.is_finite() && *v >= 0.0);
            match matrix.entries.iter().find(|(_, sums)| !is_usable(sums)) {
                Some((entry, _)) => Err(format!("`{entry}` has negative or infinite sums")),
                None => Ok(matrix),
            }
        });
        matrix.map_err(|what| Error::Importance { file: name, what })
    }

    /// Writes the GGUF form. The file appears only when it is complete.
    ///
    /// # Errors
    /// An I/O error.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.type", TYPE)?;
        let mut datasets = Strings::default();
        self.datasets.iter().for_each(|name| datasets.push(name.as_bytes()));
        writer.set(DATASETS, Value::Array(Array::String(datasets)))?;
        writer.set(CHUNK_COUNT, u32::try_from(self.n_chunks()).unwrap_or(u32::MAX))?;
        writer.set(CHUNK_SIZE, self.chunk_size)?;
        for (name, sums) in &self.entries {
            let n = sums.counts.len() as u64;
            let n_cols = sums.squares.len() as u64 / n.max(1);
            let shape = |width: u64| if n > 1 { vec![width, n] } else { vec![width] };
            writer.declare(&format!("{name}{SUMS}"), &shape(n_cols), Format::F32)?;
            writer.declare(&format!("{name}{COUNTS}"), &shape(1), Format::F32)?;
        }
        let mut data = writer.create(path)?;
        for (name, sums) in &self.entries {
            let squares = sums.squares.iter().flat_map(|v| v.to_le_bytes());
            data.write(&format!("{name}{SUMS}"), &squares.collect::<Vec<u8>>())?;
            let counts = sums.counts.iter().flat_map(|&n| (n as f32).to_le_bytes());
            data.write(&format!("{name}{COUNTS}"), &counts.collect::<Vec<u8>>())?;
        }
        Ok(data.finish()?)
    }
}

fn read(file: &File) -> Result<ImportanceMatrix, String> {
    let metadata = file.metadata();
    if metadata.str("general.type").ok().flatten().is_some_and(|found| found != TYPE) {
        return Err("it holds a model or an adapter".to_owned());
    }
    let mut matrix = ImportanceMatrix {
        datasets: datasets(metadata),
        chunk_size: metadata.u32(CHUNK_SIZE).ok().flatten().unwrap_or(0),
        ..ImportanceMatrix::default()
    };
    for tensor in file.tensors() {
        let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
        let squares = floats(file, tensor)?;
        let counts = file.tensor(&format!("{name}{COUNTS}"));
        let counts = counts.ok_or_else(|| format!("`{name}{COUNTS}` is missing"))?;
        let counts = floats(file, counts)?;
        if counts.is_empty() || !squares.len().is_multiple_of(counts.len()) || squares.is_empty() {
            let (sums, counts) = (squares.len(), counts.len());
            return Err(format!("`{name}` has {sums} sums for {counts} matrices"));
        }
        // The cast saturates, and NaN becomes 0.
        let counts = counts.iter().map(|count| count.round() as u64).collect();
        matrix.entries.insert(name.to_owned(), InputSums { squares, counts });
    }
    if matrix.entries.is_empty() {
        return Err(format!("no tensor ends with `{SUMS}`"));
    }
    Ok(matrix)
}

fn datasets(metadata: &Metadata) -> Vec<String> {
    let names = metadata.str_array(DATASETS).ok().flatten();
    let names = names.into_iter().flat_map(Strings::iter);
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn floats(file: &File, tensor: &TensorInfo) -> Result<Vec<f32>, String> {
    if tensor.ty != Format::F32 {
        return Err(format!("`{}` has type {}, expected F32", tensor.name, tensor.ty));
    }
    let bytes = file.bytes(tensor).map_err(|error| error.to_string())?;
    Ok(bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect())
}

//! The older form: little-endian numbers without a magic. For each tensor its name, a number of
//! chunks, and the mean squares of its columns times this number; then, if they are known, the
//! number of chunks and the name of the text.

use std::io::Write;
use std::path::Path;

use gguf::PartFile;

use super::{ImportanceMatrix, InputSums};
use crate::Error;

/// Takes numbers from the start of a file.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn int(&mut self) -> Option<i32> {
        self.bytes(4)?.first_chunk().map(|&word| i32::from_le_bytes(word))
    }

    /// A length, which is not negative.
    fn len(&mut self) -> Option<usize> {
        self.int().and_then(|n| usize::try_from(n).ok())
    }

    fn text(&mut self) -> Option<String> {
        let n = self.len()?;
        Some(String::from_utf8_lossy(self.bytes(n)?).into_owned())
    }

    fn entry(&mut self, chunk_size: u32) -> Option<(String, InputSums)> {
        let name = self.text()?;
        let n_chunks = u64::try_from(self.int()?).ok()?;
        let n = self.len()?.checked_mul(4)?;
        let values = self.bytes(n)?.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word));
        // The values of a file without chunks are means already.
        let factor = if n_chunks == 0 { 1 } else { chunk_size.max(1) };
        let squares: Vec<f32> = values.map(|value| value * factor as f32).collect();
        let counts = vec![n_chunks.max(1) * u64::from(factor)];
        (n > 0).then_some((name, InputSums { squares, counts }))
    }
}

pub(super) fn read(bytes: &[u8], chunk_size: u32) -> Result<ImportanceMatrix, String> {
    let mut rest = Cursor(bytes);
    let n = rest.len().filter(|&n| n > 0);
    let n = n.ok_or("it has neither GGUF's magic nor a number of entries".to_owned())?;
    let mut matrix = ImportanceMatrix { chunk_size, ..ImportanceMatrix::default() };
    for index in 0..n {
        let cut = || format!("entry {} of {n} is cut off", index + 1);
        let (name, sums) = rest.entry(chunk_size).ok_or_else(cut)?;
        matrix.entries.insert(name, sums);
    }
    // The number of chunks follows from the counts.
    let dataset = rest.int().and_then(|_| rest.text());
    matrix.datasets.extend(dataset.filter(|name| !name.is_empty()));
    Ok(matrix)
}

impl ImportanceMatrix {
    /// Writes the older form. Entries without any token are left out; in others, a matrix without a
    /// token gets ones. The file appears only when it is complete.
    ///
    /// # Errors
    /// An I/O error.
    pub fn save_dat(&self, path: &Path) -> Result<(), Error> {
        let name = path.display().to_string();
        let failed = |problem: gguf::Problem| Error::Importance {
            file: name.clone(),
            what: problem.to_string(),
        };
        let mut file = PartFile::create(path).map_err(failed)?;
        let written = file.write_all(&self.dat_bytes());
        written.map_err(|reason| Error::Io { file: name.clone(), action: "write", reason })?;
        file.commit().map_err(failed)
    }

    fn dat_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // The form's numbers have 32 bits.
        let int = |n: u64| i32::try_from(n).unwrap_or(i32::MAX).to_le_bytes();
        let text = |text: &str, out: &mut Vec<u8>| {
            out.extend(int(text.len() as u64));
            out.extend(text.as_bytes());
        };
        let used: Vec<_> = self.entries.iter().filter(|(_, sums)| sums.most_tokens() > 0).collect();
        out.extend(int(used.len() as u64));
        for (name, sums) in used {
            let n_chunks = sums.most_tokens().div_ceil(u64::from(self.chunk_size.max(1)));
            text(name, &mut out);
            out.extend(int(n_chunks));
            out.extend(int(sums.squares.len() as u64));
            out.extend(sums.means().iter().flat_map(|v| (v * n_chunks as f32).to_le_bytes()));
        }
        out.extend(int(self.n_chunks()));
        text(self.datasets.last().map_or("", String::as_str), &mut out);
        out
    }
}

//! Importance matrices: for each weight matrix, how large the inputs of its columns are on a text.
//!
//! Source: the files of llama.cpp's llama-imatrix, in both forms. [`ImportanceMatrix::open`] reads
//! them, [`ImportanceMatrix::save`] writes GGUF, [`ImportanceMatrix::save_dat`] the older form.

mod dat;
mod file;

use std::collections::BTreeMap;

use super::Error;

/// Sums of squared inputs of weight matrices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// The sums of each matrix, by the name of its tensor.
    pub entries: BTreeMap<String, InputSums>,
    /// Names of the text files.
    pub datasets: Vec<String>,
    /// Tokens of a chunk; 0 if a file does not state it.
    pub chunk_size: u32,
}

/// Sums of squared inputs of one tensor, which has one or several matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSums {
    /// `[n_matrices, n_cols]`: the sum over the tokens of each column's squared input.
    pub squares: Vec<f32>,
    /// `[n_matrices]`, or one number for all matrices: the tokens that used the matrix.
    pub counts: Vec<u64>,
}

impl InputSums {
    /// Zeros for `n_matrices` matrices.
    #[must_use]
    pub fn new(n_cols: usize, n_matrices: usize) -> InputSums {
        InputSums { squares: vec![0.0; n_cols * n_matrices], counts: vec![0; n_matrices] }
    }

    /// The largest number of tokens of a matrix.
    fn most_tokens(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// Number of matrices without a token.
    #[must_use]
    pub fn n_unused(&self) -> usize {
        self.counts.iter().filter(|&&count| count == 0).count()
    }

    /// The mean squares, `[n_matrices, n_cols]`; 1 for a matrix without a token.
    fn means(&self) -> Vec<f32> {
        let n_cols = self.squares.len() / self.counts.len().max(1);
        let mut means = Vec::with_capacity(self.squares.len());
        for (squares, &count) in self.squares.chunks_exact(n_cols.max(1)).zip(&self.counts) {
            if count == 0 {
                means.extend(squares.iter().map(|_| 1.0));
            } else {
                means.extend(squares.iter().map(|square| square / count as f32));
            }
        }
        means
    }

    /// Adds the sums of `other`.
    fn merge(&mut self, other: &InputSums) -> Result<(), String> {
        if self.counts.len() == 1 && other.counts.len() > 1 {
            self.counts = vec![self.counts[0]; other.counts.len()];
        }
        let is_like = self.squares.len() == other.squares.len()
            && (self.counts.len() == other.counts.len() || other.counts.len() == 1);
        if !is_like {
            return Err(format!(
                "{} sums and {} counts, expected {} and {}",
                other.squares.len(),
                other.counts.len(),
                self.squares.len(),
                self.counts.len()
            ));
        }
        self.squares.iter_mut().zip(&other.squares).for_each(|(sum, more)| *sum += more);
        for (i, count) in self.counts.iter_mut().enumerate() {
            let more = other.counts.get(i).or(other.counts.first()).copied().unwrap_or(0);
            // Files may state any number.
            *count = count.saturating_add(more);
        }
        Ok(())
    }
}

impl ImportanceMatrix {
    /// Number of chunks, from the largest number of tokens of a matrix.
    #[must_use]
    pub fn n_chunks(&self) -> u64 {
        let most = self.entries.values().map(InputSums::most_tokens).max().unwrap_or(0);
        most / u64::from(self.chunk_size.max(1))
    }

    /// Adds the sums of another matrix of the same model. `file` is its name for errors.
    ///
    /// # Errors
    /// [`Error::Importance`] if the sizes of an entry differ.
    pub fn merge(&mut self, other: ImportanceMatrix, file: &str) -> Result<(), Error> {
        for (name, sums) in other.entries {
            match self.entries.get_mut(&name) {
                None => {
                    self.entries.insert(name, sums);
                }
                Some(known) => known.merge(&sums).map_err(|why| Error::Importance {
                    file: file.to_owned(),
                    what: format!("`{name}` has {why}"),
                })?,
            }
        }
        self.datasets.extend(other.datasets);
        if self.chunk_size == 0 {
            self.chunk_size = other.chunk_size;
        }
        Ok(())
    }

    /// Keeps the entries whose names contain one of `names`; all of them if `names` is empty.
    pub fn include(&mut self, names: &[String]) {
        self.entries.retain(|entry, _| names.is_empty() || contains(entry, names));
    }

    /// Removes the entries whose names contain one of `names`.
    pub fn exclude(&mut self, names: &[String]) {
        self.entries.retain(|entry, _| !contains(entry, names));
    }

    /// The mean squares of the inputs of a tensor's columns, `[n_matrices, n_cols]`; `None` if the
    /// matrix has no entry for the tensor.
    ///
    /// # Errors
    /// [`Error::ImportanceSize`] if the entry has another size.
    pub(super) fn columns(
        &self,
        tensor: &str,
        n_cols: usize,
        n_matrices: usize,
    ) -> Result<Option<Vec<f32>>, Error> {
        let Some(sums) = self.entries.get(tensor) else { return Ok(None) };
        let (found, expected) = (sums.squares.len(), n_cols.saturating_mul(n_matrices));
        if found == expected {
            return Ok(Some(sums.means()));
        }
        // Files made by other programs can have the input of a tied output matrix under this name.
        if tensor == "token_embd.weight" {
            return Ok(None);
        }
        Err(Error::ImportanceSize { tensor: tensor.to_owned(), expected, found })
    }
}

fn contains(entry: &str, names: &[String]) -> bool {
    names.iter().any(|name| entry.contains(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn example() -> ImportanceMatrix {
        let dense = InputSums { squares: vec![8.0, 2.0, 0.0], counts: vec![4] };
        let experts = InputSums { squares: vec![3.0, 6.0, 0.0, 0.0], counts: vec![3, 0] };
        ImportanceMatrix {
            entries: [("a.weight".to_owned(), dense), ("b.weight".to_owned(), experts)].into(),
            datasets: vec!["text.txt".to_owned()],
            chunk_size: 2,
        }
    }

    #[test]
    fn both_forms_keep_the_means() {
        let folder = tempfile::tempdir().unwrap();
        let (gguf, dat) = (folder.path().join("m.gguf"), folder.path().join("m.dat"));
        let matrix = example();
        matrix.save(&gguf).unwrap();
        assert_eq!(ImportanceMatrix::open(&gguf, 512).unwrap(), matrix);
        matrix.save_dat(&dat).unwrap();
        let old = ImportanceMatrix::open(&dat, 2).unwrap();
        assert_eq!((old.n_chunks(), &old.datasets), (2, &matrix.datasets));
        for (name, n) in [("a.weight", 1), ("b.weight", 2)] {
            let means =
                |m: &ImportanceMatrix| m.columns(name, m.entries[name].squares.len() / n, n);
            assert_eq!(means(&old).unwrap(), means(&matrix).unwrap(), "{name}");
        }
        assert_eq!(matrix.columns("b.weight", 2, 2).unwrap().unwrap(), [1.0, 2.0, 1.0, 1.0]);
        assert_eq!(matrix.columns("c.weight", 2, 2).unwrap(), None);
        assert!(matches!(matrix.columns("a.weight", 2, 1), Err(Error::ImportanceSize { .. })));
    }

    #[test]
    fn merging_adds_sums_and_counts() {
        let mut matrix = example();
        matrix.merge(example(), "x").unwrap();
        assert_eq!(matrix.entries["a.weight"].squares, [16.0, 4.0, 0.0]);
        assert_eq!(matrix.entries["b.weight"].counts, [6, 0]);
        assert_eq!((matrix.n_chunks(), matrix.datasets.len()), (4, 2));
        let mut other = example();
        other.entries.get_mut("a.weight").unwrap().squares.push(1.0);
        let error = matrix.merge(other, "x.gguf").unwrap_err().to_string();
        assert!(error.contains("x.gguf") && error.contains("4 sums"), "{error}");
        // Counts of a hostile file.
        matrix.entries.get_mut("a.weight").unwrap().counts[0] = u64::MAX;
        matrix.merge(example(), "x.gguf").unwrap();
        assert_eq!(matrix.entries["a.weight"].counts[0], u64::MAX);
    }

    #[test]
    fn names_select_entries() {
        let mut matrix = example();
        matrix.include(&[]);
        matrix.exclude(&["a.w".to_owned()]);
        assert_eq!(matrix.entries.keys().collect::<Vec<_>>(), ["b.weight"]);
        matrix.include(&["x".to_owned()]);
        assert!(matrix.entries.is_empty());
    }

    /// Every truncation of a file is an error or a smaller matrix, never a panic.
    #[test]
    fn damaged_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let mut files = Vec::new();
        example().save(&path).unwrap();
        files.push(std::fs::read(&path).unwrap());
        example().save_dat(&path).unwrap();
        files.push(std::fs::read(&path).unwrap());
        for bytes in &files {
            for end in 1..bytes.len() {
                std::fs::write(&path, &bytes[..end]).unwrap();
                let _ = ImportanceMatrix::open(&path, 512);
            }
        }
        std::fs::write(&path, [7, 0, 0, 0, 255, 255, 255, 127, 0]).unwrap();
        assert!(matches!(ImportanceMatrix::open(&path, 512), Err(Error::Importance { .. })));
        assert!(ImportanceMatrix::open(Path::new("/nonexistent"), 512).is_err());
    }
}

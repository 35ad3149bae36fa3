//! Collects an importance matrix: the sums of squared inputs of all weight matrices on a text.
//!
//! Source: llama.cpp's llama-imatrix, so that the numbers are comparable.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use convert::{ImportanceMatrix, InputSums};
use engine::{Engine, InputObserver, ObservedInput};
use gguf::TensorInfo;
use hal::{HostRows, Source};
use model::Model;

use super::score::in_sequence;
use super::{Chunks, Error, Perplexity, Result};

/// The name of the output matrix, which is collected only on request.
const OUTPUT: &str = "output.weight";

/// What to collect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collection {
    /// Also collect the inputs of the output matrix.
    pub output: bool,
    /// Also measure the perplexity.
    pub perplexity: bool,
}

/// What was collected so far.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Number of complete chunks.
    pub n_chunks: usize,
    /// The sums.
    pub matrix: ImportanceMatrix,
    /// The perplexity of the chunks; without a token if it is not measured.
    pub perplexity: Perplexity,
}

impl Collected {
    /// Runs `chunks` and adds the inputs of all matrices. `each` is called after every chunk.
    /// After an error, the sums of the chunks before it remain, with a part of the failed chunk.
    ///
    /// # Errors
    /// Errors of the engine, including an interrupt; [`Error::NotFinite`]; errors of `each`.
    pub fn run<E: From<Error>>(
        &mut self,
        engine: &mut Engine,
        chunks: &Chunks,
        what: Collection,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(&Collected) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let names = TensorNames::new(engine.model());
        self.matrix.chunk_size = u32::try_from(chunks.n_ctx()).unwrap_or(u32::MAX);
        for chunk in chunks.iter() {
            let mut collector = Collector {
                names: &names,
                what,
                tokens: &chunk,
                first_scored: chunks.first_scored(),
                matrix: &mut self.matrix,
                perplexity: &mut self.perplexity,
                partial: Vec::new(),
            };
            in_sequence(engine, |engine, sequence| {
                Ok(engine.observe_inputs(sequence, &chunk, interrupt, &mut collector)?)
            })?;
            let is_finite = |sums: &InputSums| sums.squares.iter().all(|v| v.is_finite());
            if let Some((tensor, _)) = self.matrix.entries.iter().find(|(_, s)| !is_finite(s)) {
                return Err(Error::NotFinite { tensor: tensor.clone() }.into());
            }
            self.n_chunks += 1;
            each(self)?;
        }
        Ok(())
    }
}

/// Finds the tensors of a file by the addresses of their bytes.
struct TensorNames {
    /// Sorted by address.
    tensors: Vec<(Range<usize>, String)>,
}

impl TensorNames {
    fn new(model: &Model) -> TensorNames {
        let range = |tensor: &TensorInfo| {
            let bytes = model.file.bytes(tensor).ok()?.as_ptr_range();
            Some((bytes.start.addr()..bytes.end.addr(), tensor.name.clone()))
        };
        let mut tensors: Vec<_> = model.file.tensors().iter().filter_map(range).collect();
        tensors.sort_by_key(|(range, _)| range.start);
        TensorNames { tensors }
    }

    /// Adds the names of the tensors that `rows` come from to `names`, each once.
    fn find<'a>(&'a self, rows: &HostRows, names: &mut Vec<&'a str>) {
        match rows.source() {
            Source::Mapped(bytes) => {
                let at = (**bytes).as_ref().as_ptr().addr();
                let index = self.tensors.partition_point(|(range, _)| range.end <= at);
                let found = self.tensors.get(index).filter(|(range, _)| range.contains(&at));
                if let Some((_, name)) = found.filter(|(_, name)| !names.contains(&name.as_str())) {
                    names.push(name);
                }
            }
            Source::Paged(store) => store.parts().iter().for_each(|part| self.find(part, names)),
            Source::Owned(_) => {}
        }
    }
}

/// Adds up the inputs of one chunk.
struct Collector<'a> {
    names: &'a TensorNames,
    what: Collection,
    tokens: &'a [u32],
    first_scored: usize,
    matrix: &'a mut ImportanceMatrix,
    perplexity: &'a mut Perplexity,
    /// The sums of one call.
    partial: Vec<f32>,
}

impl InputObserver for Collector<'_> {
    fn input(&mut self, input: &ObservedInput<'_>) {
        let Some(n_cols) = input.matrices.first().map(|rows| rows.desc().n_cols) else { return };
        let n_expert = input.weights.map_or(1, |weights| weights.len() / input.n_tokens.max(1));
        let counts = self.add_squares(input, n_cols, n_expert);
        // Several matrices can be rows of one tensor, such as queries, keys and values.
        let mut added: Vec<&str> = Vec::new();
        for rows in input.matrices {
            let mut names = Vec::new();
            self.names.find(rows, &mut names);
            names.retain(|name| !added.contains(name));
            added.extend(&names);
            names.retain(|name| name.starts_with("blk.") || (self.what.output && *name == OUTPUT));
            // The experts are the matrices of one tensor, or a tensor each.
            let is_split = n_expert > 1 && names.len() == n_expert;
            for (index, name) in names.into_iter().enumerate() {
                let experts = if is_split { index..index + 1 } else { 0..n_expert };
                let squares = &self.partial[experts.start * n_cols..experts.end * n_cols];
                add(self.matrix, name, squares, &counts[experts]);
            }
        }
    }

    fn wants_logits(&self, _: usize, end: usize) -> bool {
        self.what.perplexity && end > self.first_scored
    }

    fn logits(&mut self, position: usize, logits: &[f32]) {
        if let Some(&next) = self.tokens.get(position + 1).filter(|_| position >= self.first_scored)
        {
            self.perplexity.add(logits, next);
        }
    }
}

impl Collector<'_> {
    /// Sums the squared inputs in `self.partial`, `[n_expert, n_cols]`. Returns the number of tokens
    /// of each expert.
    fn add_squares(
        &mut self,
        input: &ObservedInput<'_>,
        n_cols: usize,
        n_expert: usize,
    ) -> Vec<u64> {
        self.partial.clear();
        self.partial.resize(n_cols * n_expert, 0.0);
        let mut counts = vec![0; n_expert];
        // Each expert has its own input, or all have the token's.
        let width = input.x.len() / input.n_tokens.max(1);
        for (token, x) in input.x.chunks_exact(width.max(1)).enumerate() {
            for (expert, count) in counts.iter_mut().enumerate() {
                let weight = input.weights.and_then(|all| all.get(token * n_expert + expert));
                if weight == Some(&0.0) {
                    continue;
                }
                *count += 1;
                let x = if width > n_cols { &x[expert * n_cols..][..n_cols] } else { x };
                let sums = &mut self.partial[expert * n_cols..][..n_cols];
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * x);
            }
        }
        counts
    }
}

fn add(matrix: &mut ImportanceMatrix, name: &str, squares: &[f32], counts: &[u64]) {
    if !matrix.entries.contains_key(name) {
        let sums = InputSums::new(squares.len() / counts.len().max(1), counts.len());
        matrix.entries.insert(name.to_owned(), sums);
    }
    let Some(sums) = matrix.entries.get_mut(name) else { return };
    sums.squares.iter_mut().zip(squares).for_each(|(sum, more)| *sum += more);
    // A file that the sums continue may state any number.
    for (sum, more) in sums.counts.iter_mut().zip(counts) {
        *sum = sum.saturating_add(*more);
    }
}

/// Checks that an importance matrix from a file belongs to `model`, so that sums can be added.
///
/// # Errors
/// [`Error::ForeignSums`] with the first entry of another size.
pub fn check_importance(matrix: &ImportanceMatrix, model: &Model) -> Result<()> {
    for tensor in model.file.tensors() {
        let Some(sums) = matrix.entries.get(&tensor.name) else { continue };
        let matrices: u64 = tensor.shape.iter().skip(2).product();
        let (expected, found) = (tensor.row_len() * matrices, sums.squares.len());
        if expected != found as u64 {
            return Err(Error::ForeignSums { tensor: tensor.name.clone(), expected, found });
        }
    }
    Ok(())
}

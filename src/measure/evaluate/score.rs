//! Runs a text through engines, chunk by chunk.

use std::sync::atomic::AtomicBool;

use super::{Chunks, Comparison, LogitsReader, LogitsWriter, Perplexity, Reference, Result};
use engine::{Engine, LogitsRequest, Sequence, StepStats};

/// Tokens whose reference logits are in memory at once.
const PIECE: usize = 64;

/// The perplexity of `chunks`, and statistics of the run. Also writes the logits to `logits`, if
/// given; `progress` receives the number of finished chunks and the perplexity so far.
///
/// # Errors
/// Errors of the engine, including an interrupt; errors of writing.
pub fn perplexity(
    engine: &mut Engine,
    chunks: &Chunks,
    mut logits: Option<&mut LogitsWriter>,
    interrupt: &AtomicBool,
    progress: &mut dyn FnMut(usize, &Perplexity),
) -> Result<(Perplexity, StepStats)> {
    let mut total = Perplexity::default();
    let mut stats = StepStats::default();
    for (done, chunk) in (1..).zip(chunks.iter()) {
        let mut written = Ok(());
        in_sequence(engine, |engine, sequence| {
            let (before, scored) = halves(chunks, &chunk);
            let ignore = &mut |_: usize, _: &[f32]| {};
            add(&mut stats, engine.feed(sequence, before, LogitsRequest::Last, interrupt, ignore)?);
            let score = &mut |pos: usize, row: &[f32]| {
                total.add(row, chunk[pos + 1]);
                if let (Some(logits), true) = (&mut logits, written.is_ok()) {
                    written = logits.write(row);
                }
            };
            add(&mut stats, engine.feed(sequence, scored, LogitsRequest::All, interrupt, score)?);
            Ok(())
        })?;
        written?;
        progress(done, &total);
    }
    Ok((total, stats))
}

/// Divergence of `engine` from `reference`, and statistics of `engine`'s run. Both run each piece
/// of the text, `reference` first.
///
/// # Errors
/// Errors of both engines.
pub fn compare_with_engine(
    engine: &mut Engine,
    reference: &mut Engine,
    chunks: &Chunks,
    interrupt: &AtomicBool,
    progress: &mut dyn FnMut(usize, &Comparison),
) -> Result<(Comparison, StepStats)> {
    let mut total = Comparison::default();
    let mut stats = StepStats::default();
    let mut rows: Vec<f32> = Vec::new();
    for (done, chunk) in (1..).zip(chunks.iter()) {
        let (before, scored) = halves(chunks, &chunk);
        in_sequence(reference, |reference, theirs| {
            in_sequence(engine, |engine, mine| {
                let ignore = &mut |_: usize, _: &[f32]| {};
                reference.feed(theirs, before, LogitsRequest::Last, interrupt, ignore)?;
                add(&mut stats, engine.feed(mine, before, LogitsRequest::Last, interrupt, ignore)?);
                for piece in scored.chunks(PIECE) {
                    rows.clear();
                    let store = &mut |_: usize, row: &[f32]| rows.extend_from_slice(row);
                    reference.feed(theirs, piece, LogitsRequest::All, interrupt, store)?;
                    let mut base_rows = rows.chunks_exact(rows.len() / piece.len());
                    let score = &mut |pos: usize, row: &[f32]| {
                        // Both engines return one row per token.
                        if let Some(base) = base_rows.next() {
                            total.add(Reference::Logits(base), row, chunk[pos + 1]);
                        }
                    };
                    add(
                        &mut stats,
                        engine.feed(mine, piece, LogitsRequest::All, interrupt, score)?,
                    );
                }
                Ok(())
            })
        })?;
        progress(done, &total);
    }
    Ok((total, stats))
}

/// The logits of all tokens of `chunks` whose successors are predicted, `[n, n_vocab]`, to compare
/// several engines with.
///
/// # Errors
/// Errors of the engine, including an interrupt.
pub fn logits(engine: &mut Engine, chunks: &Chunks, interrupt: &AtomicBool) -> Result<Vec<f32>> {
    let mut rows = Vec::new();
    for chunk in chunks.iter() {
        let (before, scored) = halves(chunks, &chunk);
        in_sequence(engine, |engine, sequence| {
            engine.feed(sequence, before, LogitsRequest::Last, interrupt, &mut |_, _| {})?;
            let store = &mut |_: usize, row: &[f32]| rows.extend_from_slice(row);
            engine.feed(sequence, scored, LogitsRequest::All, interrupt, store)?;
            Ok(())
        })?;
    }
    Ok(rows)
}

/// Divergence of `engine` from `reference`, the result of [`logits`] for the same chunks and
/// vocabulary.
///
/// # Errors
/// Errors of the engine, including an interrupt.
pub fn compare_with_logits(
    engine: &mut Engine,
    reference: &[f32],
    chunks: &Chunks,
    interrupt: &AtomicBool,
) -> Result<Comparison> {
    let mut total = Comparison::default();
    let mut rest = reference;
    for chunk in chunks.iter() {
        let (before, scored) = halves(chunks, &chunk);
        in_sequence(engine, |engine, sequence| {
            engine.feed(sequence, before, LogitsRequest::Last, interrupt, &mut |_, _| {})?;
            let score = &mut |pos: usize, row: &[f32]| {
                if let Some((base, later)) = rest.split_at_checked(row.len()) {
                    total.add(Reference::Logits(base), row, chunk[pos + 1]);
                    rest = later;
                }
            };
            engine.feed(sequence, scored, LogitsRequest::All, interrupt, score)?;
            Ok(())
        })?;
    }
    Ok(total)
}

/// Divergence of `engine` from the probabilities in a file, over the file's own text.
///
/// # Errors
/// Errors of the engine and the file; [`super::Error::Damaged`] for an inconsistent file.
pub fn compare_with_file(
    engine: &mut Engine,
    reference: &mut LogitsReader,
    interrupt: &AtomicBool,
    progress: &mut dyn FnMut(usize, &Comparison),
) -> Result<(Comparison, StepStats)> {
    let mut total = Comparison::default();
    let mut stats = StepStats::default();
    let chunks = reference.chunks().clone();
    for (done, chunk) in (1..).zip(chunks.iter()) {
        let (before, scored) = halves(&chunks, &chunk);
        let mut read = Ok(());
        in_sequence(engine, |engine, sequence| {
            let ignore = &mut |_: usize, _: &[f32]| {};
            add(&mut stats, engine.feed(sequence, before, LogitsRequest::Last, interrupt, ignore)?);
            let score = &mut |pos: usize, row: &[f32]| {
                if read.is_ok() {
                    read = reference.next().map(|base| {
                        total.add(Reference::LogProbs(base), row, chunk[pos + 1]);
                    });
                }
            };
            add(&mut stats, engine.feed(sequence, scored, LogitsRequest::All, interrupt, score)?);
            Ok(())
        })?;
        read?;
        progress(done, &total);
    }
    Ok((total, stats))
}

/// Splits a chunk into the tokens that are only read and the tokens whose successors are predicted.
/// The last token has no successor.
fn halves<'a>(chunks: &Chunks, chunk: &'a [u32]) -> (&'a [u32], &'a [u32]) {
    chunk[..chunk.len() - 1].split_at(chunks.first_scored())
}

/// Runs `f` with a new sequence and frees its KV cache, even after an error.
pub(super) fn in_sequence<T>(
    engine: &mut Engine,
    f: impl FnOnce(&mut Engine, &mut Sequence) -> Result<T>,
) -> Result<T> {
    let mut sequence = engine.new_sequence();
    f(engine, &mut sequence)
}

fn add(total: &mut StepStats, step: StepStats) {
    *total += step;
}

//! Runs a text through engines, chunk by chunk.

use std::sync::atomic::AtomicBool;

use super::{Chunks, Comparison, LogitsReader, LogitsWriter, Perplexity, Reference, Result};
use engine::{Engine, Sequence, StepStats, Want};

/// Tokens whose reference logits are held at once.
const PIECE: usize = 64;

/// The perplexity of `chunks`, and statistics of the run. The logits are also written to `logits`;
/// `progress` receives the number of finished chunks.
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
            let quiet = &mut |_: usize, _: &[f32]| {};
            add(&mut stats, engine.feed(sequence, before, Want::Last, interrupt, quiet)?);
            let each = &mut |pos: usize, row: &[f32]| {
                total.add(row, chunk[pos + 1]);
                if let (Some(logits), true) = (&mut logits, written.is_ok()) {
                    written = logits.write(row);
                }
            };
            add(&mut stats, engine.feed(sequence, scored, Want::All, interrupt, each)?);
            Ok(())
        })?;
        written?;
        progress(done, &total);
    }
    Ok((total, stats))
}

/// Divergence of `engine` from `reference`, which reads the same tokens in turn with `engine`, and
/// statistics of `engine`'s run.
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
                let quiet = &mut |_: usize, _: &[f32]| {};
                reference.feed(theirs, before, Want::Last, interrupt, quiet)?;
                add(&mut stats, engine.feed(mine, before, Want::Last, interrupt, quiet)?);
                for piece in scored.chunks(PIECE) {
                    rows.clear();
                    let keep = &mut |_: usize, row: &[f32]| rows.extend_from_slice(row);
                    reference.feed(theirs, piece, Want::All, interrupt, keep)?;
                    let mut kept = rows.chunks_exact(rows.len() / piece.len());
                    let each = &mut |pos: usize, row: &[f32]| {
                        // Both engines return one row per token.
                        if let Some(base) = kept.next() {
                            total.add(Reference::Logits(base), row, chunk[pos + 1]);
                        }
                    };
                    add(&mut stats, engine.feed(mine, piece, Want::All, interrupt, each)?);
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
            engine.feed(sequence, before, Want::Last, interrupt, &mut |_, _| {})?;
            let keep = &mut |_: usize, row: &[f32]| rows.extend_from_slice(row);
            engine.feed(sequence, scored, Want::All, interrupt, keep)?;
            Ok(())
        })?;
    }
    Ok(rows)
}

/// Divergence of `engine` from `kept`, the result of [`logits`] for the same chunks and
/// vocabulary.
///
/// # Errors
/// Errors of the engine, including an interrupt.
pub fn compare_with_logits(
    engine: &mut Engine,
    kept: &[f32],
    chunks: &Chunks,
    interrupt: &AtomicBool,
) -> Result<Comparison> {
    let mut total = Comparison::default();
    let mut rest = kept;
    for chunk in chunks.iter() {
        let (before, scored) = halves(chunks, &chunk);
        in_sequence(engine, |engine, sequence| {
            engine.feed(sequence, before, Want::Last, interrupt, &mut |_, _| {})?;
            let each = &mut |pos: usize, row: &[f32]| {
                if let Some((base, later)) = rest.split_at_checked(row.len()) {
                    total.add(Reference::Logits(base), row, chunk[pos + 1]);
                    rest = later;
                }
            };
            engine.feed(sequence, scored, Want::All, interrupt, each)?;
            Ok(())
        })?;
    }
    Ok(total)
}

/// Divergence of `engine` from the probabilities in a file, over the file's own text.
///
/// # Errors
/// Errors of the engine; [`super::Error::Damaged`] for an inconsistent file.
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
            let quiet = &mut |_: usize, _: &[f32]| {};
            add(&mut stats, engine.feed(sequence, before, Want::Last, interrupt, quiet)?);
            let each = &mut |pos: usize, row: &[f32]| {
                if read.is_ok() {
                    read = reference.next().map(|base| {
                        total.add(Reference::LogProbs(base), row, chunk[pos + 1]);
                    });
                }
            };
            add(&mut stats, engine.feed(sequence, scored, Want::All, interrupt, each)?);
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
    chunk[..chunk.len() - 1].split_at(chunks.first())
}

/// Runs `f` with a new sequence and frees its KV cache, also after an error.
fn in_sequence<T>(
    engine: &mut Engine,
    f: impl FnOnce(&mut Engine, &mut Sequence) -> Result<T>,
) -> Result<T> {
    let mut sequence = engine.open();
    let result = f(engine, &mut sequence);
    engine.close(sequence);
    result
}

fn add(total: &mut StepStats, step: StepStats) {
    *total += step;
}

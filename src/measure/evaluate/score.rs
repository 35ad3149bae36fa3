//! Runs the chunks of a text through engines.

use std::sync::atomic::AtomicBool;

use super::{Chunks, Comparison, LogitsReader, LogitsWriter, Perplexity, Reference, Result};
use engine::{Engine, Feed, LogitsRequest, Sequence, StepStats};

/// Maximum number of tokens whose reference logits are in memory at once.
const PIECE: usize = 64;

/// The perplexity of `chunks`, and statistics of the run. Also writes the logits to `logits`, if
/// given; `progress` receives the number of finished chunks and the perplexity so far. An engine
/// with several sequences runs as many chunks at once.
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
    let stats = run(engine, chunks, interrupt, &mut |event| match event {
        Event::Row { next, logits: row } => {
            total.add(row, next);
            logits.as_mut().map_or(Ok(()), |logits| logits.write(row))
        }
        Event::Chunk(done) => {
            progress(done, &total);
            Ok(())
        }
    })?;
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
    run(engine, chunks, interrupt, &mut |event| {
        if let Event::Row { logits, .. } = event {
            rows.extend_from_slice(logits);
        }
        Ok(())
    })?;
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
    run(engine, chunks, interrupt, &mut |event| {
        if let Event::Row { next, logits } = event
            && let Some((base, later)) = rest.split_at_checked(logits.len())
        {
            total.add(Reference::Logits(base), logits, next);
            rest = later;
        }
        Ok(())
    })?;
    Ok(total)
}

/// Divergence of `engine` from the probabilities in a file, over the file's own text. An engine
/// with several sequences runs as many chunks at once.
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
    let chunks = reference.chunks().clone();
    let stats = run(engine, &chunks, interrupt, &mut |event| {
        match event {
            Event::Row { next, logits } => {
                total.add(Reference::LogProbs(reference.next()?), logits, next);
            }
            Event::Chunk(done) => progress(done, &total),
        }
        Ok(())
    })?;
    Ok((total, stats))
}

/// What [`run`] reports.
enum Event<'a> {
    /// The logits after a token of the text whose successor is `next`.
    Row { next: u32, logits: &'a [f32] },
    /// The number of finished chunks.
    Chunk(usize),
}

/// Runs the chunks, as many at once as the engine has sequences, and reports the logits in the
/// order of the text. The logits of a chunk are kept in memory until the chunks before it are
/// complete.
fn run(
    engine: &mut Engine,
    chunks: &Chunks,
    interrupt: &AtomicBool,
    report: &mut dyn FnMut(Event<'_>) -> Result<()>,
) -> Result<StepStats> {
    let (n_vocab, n_seq) = (engine.model().n_vocab(), engine.options().n_seq.max(1));
    let all: Vec<Vec<u32>> = chunks.iter().collect();
    engine.take_stats()?;
    let mut done = 0;
    for group in all.chunks(n_seq) {
        let halves: Vec<_> = group.iter().map(|chunk| halves(chunks, chunk)).collect();
        let mut sequences: Vec<Sequence> = group.iter().map(|_| engine.new_sequence()).collect();
        let before = halves.iter().map(|(before, _)| *before);
        let mut feeds = feed_each(&mut sequences, before, LogitsRequest::Last);
        engine.step(&mut feeds, interrupt, &mut |_, _, _| {})?;
        let mut waiting: Vec<Vec<f32>> = vec![Vec::new(); group.len()];
        let mut reported = Ok(());
        let scored = halves.iter().map(|(_, scored)| *scored);
        let mut feeds = feed_each(&mut sequences, scored, LogitsRequest::All);
        engine.step(&mut feeds, interrupt, &mut |index, at, logits| {
            if index > 0 {
                waiting[index].extend_from_slice(logits);
            } else if reported.is_ok() {
                reported = report(Event::Row { next: group[0][at + 1], logits });
            }
        })?;
        reported?;
        for (chunk, rows) in group.iter().zip(&waiting) {
            let next = &chunk[chunks.first_scored() + 1..];
            for (&next, logits) in next.iter().zip(rows.chunks_exact(n_vocab)) {
                report(Event::Row { next, logits })?;
            }
            done += 1;
            report(Event::Chunk(done))?;
        }
    }
    Ok(engine.take_stats()?)
}

fn feed_each<'a>(
    sequences: &'a mut [Sequence],
    tokens: impl Iterator<Item = &'a [u32]>,
    want: LogitsRequest,
) -> Vec<Feed<'a>> {
    sequences
        .iter_mut()
        .zip(tokens)
        .map(|(sequence, tokens)| Feed { sequence, tokens, want })
        .collect()
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

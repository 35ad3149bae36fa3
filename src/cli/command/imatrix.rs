//! `thermocline imatrix`.

use crate::cli::args::{Frequency, ImatrixArgs, ImatrixFormat};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::progress;
use crate::cli::terminal::{Terminal, counted, printable};
use crate::convert::ImportanceMatrix;
use crate::engine::{Engine, EngineOptions, Sparsity};
use crate::evaluate::{Chunks, Collected, Collection, check_importance};
use runtime::{Opened, Runtime};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Default chunk size in tokens, as in llama-imatrix.
const DEFAULT_CONTEXT: usize = 512;
/// Tokens computed and observed together.
const BATCH: usize = 64;

/// Collects an importance matrix, or merges the given ones, and prints the path of the file.
///
/// # Errors
/// Errors of loading, running and writing; a text that is too short; Ctrl-C, after which the file
/// has the chunks before it.
pub(crate) fn run(args: &ImatrixArgs, terminal: &Terminal) -> Result<(), Failure> {
    let text = args.text()?;
    let interrupt = Interrupt::install()?;
    let start = Instant::now();
    let job = Job { args, earlier: read_files(&args.in_file)?, start, terminal };
    match text {
        Some(text) => job.collect(&text, &interrupt)?,
        None => job.write(&args.output, &Collected::default())?,
    }
    let mut out = Output::stdout();
    out.line(&printable(&args.output.display().to_string()))?;
    out.flush()
}

/// The sum of the files of `--in-file`.
fn read_files(paths: &[PathBuf]) -> Result<ImportanceMatrix, Failure> {
    let mut all = ImportanceMatrix::default();
    for path in paths {
        let matrix = ImportanceMatrix::open(path, DEFAULT_CONTEXT as u32)?;
        all.merge(matrix, &path.display().to_string())?;
    }
    Ok(all)
}

struct Job<'a> {
    args: &'a ImatrixArgs,
    /// The sums of earlier runs.
    earlier: ImportanceMatrix,
    start: Instant,
    terminal: &'a Terminal,
}

impl Job<'_> {
    fn collect(&self, text: &str, interrupt: &Interrupt) -> Result<(), Failure> {
        let runtime =
            Runtime::new(self.args.model.options(), self.terminal.stoppable_observer(interrupt))?;
        let opened = runtime.open(self.args.model.model.as_deref())?.decoder()?;
        check_importance(&self.earlier, &opened.model)?;
        let chunks = self.chunks(text, &opened, &runtime)?;
        let mut engine = interrupt.exit_during_load(|| load(&runtime, &opened, &chunks))?;
        let bar = progress::counter(self.terminal, "collecting", 0..chunks.n_chunks(), "chunks");
        let what = Collection { output: self.args.process_output, perplexity: self.args.ppl };
        let mut collected = Collected::default();
        let ended: Result<(), Failure> =
            collected.run(&mut engine, &chunks, what, interrupt.flag(), &mut |so_far| {
                bar.set_position(so_far.n_chunks as u64);
                if self.args.ppl {
                    bar.set_message(format!(", PPL {:.1}", so_far.perplexity.value()));
                }
                self.write_if_due(so_far)
            });
        bar.finish_and_clear();
        if let Err(failure) = ended {
            if collected.n_chunks > 0 {
                self.write(&self.args.output, &collected)?;
                let file = printable(&self.args.output.display().to_string());
                self.terminal.note(&format!(
                    "{file} has {} of {} chunks; --chunk {} --in-file {file} continues",
                    collected.n_chunks,
                    chunks.n_chunks(),
                    self.args.chunk + collected.n_chunks,
                ));
            }
            return Err(failure);
        }
        self.write(&self.args.output, &collected)?;
        self.report(&collected, &chunks);
        Ok(())
    }

    /// The text in chunks of the context size, without those that are skipped.
    fn chunks(&self, text: &str, opened: &Opened, runtime: &Runtime) -> Result<Chunks, Failure> {
        let Opened { model, tokenizer } = opened;
        let n_ctx = match runtime.options().n_ctx {
            None => DEFAULT_CONTEXT,
            given @ Some(_) => runtime.fixed_context(given, model),
        };
        let mut tokens = tokenizer
            .encode(text, true, self.args.parse_special)
            .map_err(|e| Failure::new(Exit::Failed, "cannot tokenize the text").caused_by(&e))?;
        let skipped = self.args.chunk.saturating_mul(n_ctx).min(tokens.len());
        if skipped > 0 && skipped == tokens.len() {
            let n_chunks = tokens.len() / n_ctx;
            let message =
                format!("--chunk {} skips the whole text of {n_chunks} chunks", self.args.chunk);
            let help = "--chunk is the first chunk to read, -c the size of a chunk";
            return Err(Failure::usage(message).help(help));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        Ok(Chunks::new(tokens.split_off(skipped), n_ctx, bos, self.args.chunks)?)
    }

    fn write_if_due(&self, so_far: &Collected) -> Result<(), Failure> {
        let is_due =
            |every: Frequency| every.is_some_and(|n| so_far.n_chunks.is_multiple_of(n.get()));
        let output = &self.args.output;
        if is_due(self.args.output_frequency) {
            self.write(output, so_far)?;
        }
        if is_due(self.args.save_frequency) {
            let mut name = output.as_os_str().to_owned();
            name.push(format!(".at_{}", so_far.n_chunks));
            self.write(Path::new(&name), so_far)?;
        }
        Ok(())
    }

    /// Writes the sums so far, with those of earlier runs.
    fn write(&self, path: &Path, so_far: &Collected) -> Result<(), Failure> {
        let mut matrix = self.earlier.clone();
        let mut new = so_far.matrix.clone();
        if so_far.n_chunks > 0 {
            new.datasets.extend(self.args.dataset());
            // The chunk size of this run counts.
            matrix.chunk_size = new.chunk_size;
        }
        matrix.merge(new, "the sums of this run")?;
        match self.args.output_format {
            ImatrixFormat::Gguf => matrix.save(path)?,
            ImatrixFormat::Dat => matrix.save_dat(path)?,
        }
        Ok(())
    }

    fn report(&self, collected: &Collected, chunks: &Chunks) {
        let entries = &collected.matrix.entries;
        let unused: usize = entries.values().map(|sums| sums.n_unused()).sum();
        if unused > 0 {
            self.terminal.note(&format!(
                "{unused} matrices of experts were not used by any token; a longer text may reach them"
            ));
        }
        let ppl = &collected.perplexity;
        if ppl.nll.n() > 0 {
            let (value, error) = (ppl.value(), ppl.error());
            self.terminal.note(&format!("final estimate: PPL = {value:.4} +/- {error:.5}"));
        }
        self.terminal.note(&format!(
            "{}, {} of {} tokens, {:.1} s",
            counted(entries.len(), "tensor"),
            counted(collected.n_chunks, "chunk"),
            chunks.n_ctx(),
            self.start.elapsed().as_secs_f64()
        ));
    }
}

/// Loads the model with every neuron computed.
fn load(runtime: &Runtime, opened: &Opened, chunks: &Chunks) -> Result<Engine, Failure> {
    let settings = EngineOptions {
        n_ubatch: BATCH.min(chunks.n_ctx()),
        n_seq: 1,
        sparsity: Sparsity::Off,
        adapt: false,
        placing: runtime.placing(&opened.model),
        ..runtime.settings(&opened.model, chunks.n_ctx())
    };
    Ok(runtime.load(&opened.model, settings)?)
}

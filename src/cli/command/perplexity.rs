//! `thermocline perplexity`.

use crate::cli::args::{PerplexityArgs, Reference};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::progress;
use crate::cli::terminal::Terminal;
use crate::engine::{Engine, PlannerInputs, Sparsity, StepStats};
use crate::evaluate::{self, Chunks, Comparison, LogitsReader, LogitsWriter, Perplexity};
use indicatif::ProgressBar;
use runtime::{Opened, Runtime};
use serde_json::json;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Default chunk size in tokens, as in llama-perplexity.
const DEFAULT_CONTEXT: usize = 512;

/// Measures perplexity on a text, and if requested the divergence from a reference; prints both.
///
/// # Errors
/// Errors of loading and measuring; a text that is too short; standard output cannot be written.
pub(crate) fn run(args: &PerplexityArgs, terminal: &Terminal) -> Result<(), Failure> {
    let text = args.text()?;
    let interrupt = Interrupt::install()?;
    let job = interrupt.exit_during_load(|| Measurement::new(args, text, &interrupt, terminal))?;
    let start = Instant::now();
    let (result, chunks, stats) = job.measure()?;
    let report = Report {
        model: job.opened.model.file.name(),
        chunks,
        result,
        density: stats.active / stats.neurons.max(1.0),
        time: start.elapsed(),
    };
    let mut out = Output::stdout();
    if args.json {
        out.line(&format!("{:#}", report.json()))?;
    } else {
        out.write(report.text())?;
        terminal.note(&report.statistics());
    }
    out.flush()
}

struct Measurement<'a> {
    /// The text; `None` if the file of probabilities contains it.
    text: Option<String>,
    reference: Reference,
    terminal: &'a Terminal,
    interrupt: &'a Interrupt,
    runtime: Runtime,
    placing: PlannerInputs,
    opened: Opened,
    bos: Option<u32>,
    limit: Option<usize>,
}

/// The result of one run, or of comparing two runs.
enum Outcome {
    Alone(Perplexity),
    Compared(Comparison),
}

impl<'a> Measurement<'a> {
    fn new(
        args: &PerplexityArgs,
        text: Option<String>,
        interrupt: &'a Interrupt,
        terminal: &'a Terminal,
    ) -> Result<Self, Failure> {
        let options = args.options();
        if options.n_parallel < args.parallel {
            terminal.note("--against runs one chunk at a time");
        }
        let runtime = Runtime::new(options, terminal.observer())?;
        let opened = runtime.open(args.model.model.as_deref())?.decoder()?;
        let bos = opened.tokenizer.bos().filter(|_| opened.tokenizer.adds_bos());
        let (reference, limit) = (args.reference(), args.chunks);
        let placing = runtime.placing(&opened.model);
        Ok(Self { text, reference, terminal, interrupt, runtime, placing, opened, bos, limit })
    }

    fn measure(&self) -> Result<(Outcome, Chunks, StepStats), Failure> {
        let flag = self.interrupt.flag();
        if let Reference::Read(path) = &self.reference {
            let n_vocab = self.opened.model.n_vocab();
            let mut reader = LogitsReader::open(path, n_vocab, self.bos, self.limit)?;
            let chunks = reader.chunks().clone();
            self.note_overridden_flags(&chunks);
            let mut engine = self.load(chunks.n_ctx(), None)?;
            let progress = Progress::new(&chunks, self.terminal);
            let each = &mut |done, so_far: &Comparison| progress.chunk(done, &so_far.perplexity);
            let (result, stats) =
                evaluate::compare_with_file(&mut engine, &mut reader, flag, each)?;
            return Ok((Outcome::Compared(result), chunks, stats));
        }
        let chunks = self.chunks()?;
        let mut engine = self.load(chunks.n_ctx(), None)?;
        if self.reference == Reference::Dense {
            let mut dense = self.load(chunks.n_ctx(), Some(Sparsity::Off))?;
            let progress = Progress::new(&chunks, self.terminal);
            let each = &mut |done, so_far: &Comparison| progress.chunk(done, &so_far.perplexity);
            let (result, stats) =
                evaluate::compare_with_engine(&mut engine, &mut dense, &chunks, flag, each)?;
            return Ok((Outcome::Compared(result), chunks, stats));
        }
        let mut writer = match &self.reference {
            Reference::Write(path) => {
                Some(LogitsWriter::create(path, &chunks, self.opened.model.n_vocab())?)
            }
            Reference::None | Reference::Dense | Reference::Read(_) => None,
        };
        let progress = Progress::new(&chunks, self.terminal);
        let each = &mut |done, so_far: &Perplexity| progress.chunk(done, so_far);
        let (result, stats) =
            evaluate::perplexity(&mut engine, &chunks, writer.as_mut(), flag, each)?;
        if let Some(writer) = writer {
            writer.finish()?;
        }
        Ok((Outcome::Alone(result), chunks, stats))
    }

    fn note_overridden_flags(&self, chunks: &Chunks) {
        if self.text.is_some() {
            self.terminal.note("using the text stored with the probabilities");
        }
        if self.runtime.options().n_ctx.is_some() {
            let n_ctx = chunks.n_ctx();
            self.terminal
                .note(&format!("using a context of {n_ctx}, as stored with the probabilities"));
        }
    }

    /// The text in chunks of the context size.
    fn chunks(&self) -> Result<Chunks, Failure> {
        let Opened { model, tokenizer } = &self.opened;
        let n_ctx = match self.runtime.options().n_ctx {
            None => DEFAULT_CONTEXT,
            given @ Some(_) => self.runtime.fixed_context(given, model),
        };
        let text = self.text.as_deref().unwrap_or_default();
        let tokens = tokenizer
            .encode(text, true, false)
            .map_err(|e| Failure::new(Exit::Failed, "cannot tokenize the text").caused_by(&e))?;
        Ok(Chunks::new(tokens, n_ctx, self.bos, self.limit)?)
    }

    fn load(&self, n_ctx: usize, sparsity: Option<Sparsity>) -> Result<Engine, Failure> {
        let n_ctx = match self.runtime.options().n_parallel.get() as usize {
            1 => n_ctx,
            // Each sequence takes whole blocks of the KV cache.
            n_chunks => n_ctx.next_multiple_of(hal::KV_BLOCK).saturating_mul(n_chunks),
        };
        let mut settings = self.runtime.settings(&self.opened.model, n_ctx);
        settings.sparsity = sparsity.unwrap_or(settings.sparsity);
        settings.placing = self.placing.clone();
        let load = || self.runtime.load(&self.opened.model, settings);
        Ok(self.interrupt.exit_during_load(load)?)
    }
}

/// A bar on a terminal, and a line for each chunk with `-v`.
struct Progress<'a> {
    bar: ProgressBar,
    terminal: &'a Terminal,
    n_chunks: usize,
    /// Chunks so far, and their perplexity.
    last: Cell<(usize, f64)>,
}

impl<'a> Progress<'a> {
    fn new(chunks: &Chunks, terminal: &'a Terminal) -> Self {
        let n_chunks = chunks.n_chunks();
        let bar = progress::counter(terminal, "measuring", 0..n_chunks, "chunks");
        Self { bar, terminal, n_chunks, last: Cell::default() }
    }

    fn chunk(&self, done: usize, so_far: &Perplexity) {
        let ppl = so_far.value();
        self.bar.set_message(format!(", PPL {ppl:.1}"));
        self.bar.set_position(done as u64);
        self.last.set((done, ppl));
        let line = format!("chunk {done} of {}: PPL {ppl:.4}", self.n_chunks);
        self.bar.suspend(|| self.terminal.detail(&line));
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        let (done, ppl) = self.last.get();
        if (1..self.n_chunks).contains(&done) {
            let n = self.n_chunks;
            self.terminal.note(&format!("stopped after {done} of {n} chunks: PPL {ppl:.4}"));
        }
    }
}

/// The result, and the figures printed with it.
struct Report<'a> {
    model: &'a str,
    chunks: Chunks,
    result: Outcome,
    density: f64,
    time: Duration,
}

impl Report<'_> {
    fn perplexity(&self) -> &Perplexity {
        match &self.result {
            Outcome::Alone(perplexity) => perplexity,
            Outcome::Compared(comparison) => &comparison.perplexity,
        }
    }

    /// The report as text. Its first line has llama-perplexity's form.
    fn text(&self) -> String {
        let ppl = self.perplexity();
        let mut text = format!("Final estimate: PPL = {:.4} +/- {:.5}\n", ppl.value(), ppl.error());
        if let Outcome::Compared(c) = &self.result {
            let (base, kl) = (&c.reference, &c.divergence);
            text += &format!(
                "Reference:      PPL = {:.4} +/- {:.5}\n\
                 Mean KLD:       {:.6} +/- {:.6}\n\
                 Maximum KLD:    {:.6}\n\
                 Same top token: {:.3} %\n\
                 Density:        {:.2} %\n",
                base.value(),
                base.error(),
                // Rounding can make the mean slightly negative.
                kl.value().max(0.0),
                kl.error(),
                c.max_divergence,
                100.0 * c.same_top(),
                100.0 * self.density,
            );
        }
        text
    }

    fn statistics(&self) -> String {
        format!(
            "chunks of {} tokens: {}; tokens predicted: {}; {:.1} s; {:.2} % of the neurons were computed",
            self.chunks.n_ctx(),
            self.chunks.n_chunks(),
            self.perplexity().nll.n(),
            self.time.as_secs_f64(),
            100.0 * self.density,
        )
    }

    fn json(&self) -> serde_json::Value {
        let ppl = |p: &Perplexity| json!({ "ppl": p.value(), "ppl_error": p.error() });
        let mut report = json!({
            "model": self.model,
            "n_ctx": self.chunks.n_ctx(),
            "n_chunks": self.chunks.n_chunks(),
            "n_predicted": self.perplexity().nll.n(),
            "ppl": self.perplexity().value(),
            "ppl_error": self.perplexity().error(),
            "density": self.density,
            "seconds": self.time.as_secs_f64(),
        });
        if let Outcome::Compared(c) = &self.result {
            report["reference"] = ppl(&c.reference);
            report["kl_divergence"] = json!({
                "mean": c.divergence.value(),
                "mean_error": c.divergence.error(),
                "max": c.max_divergence,
                "same_top": c.same_top(),
            });
        }
        report
    }
}

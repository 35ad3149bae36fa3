//! `thermocline bench`: measures every combination of the requested values, one row per test.

mod compare;
mod facts;
mod markdown;
mod plot;
mod report;
mod row;

use super::trace::Trace;
use crate::bench::{self, Settings, Test, Text};
use crate::cli::args::{BenchArgs, BenchSetup, Subject, Synthetic, Threads};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::observer::bar;
use crate::cli::output;
use crate::cli::parse::values;
use crate::cli::progress;
use crate::cli::terminal::{Terminal, counted};
use crate::devices;
use crate::engine::{Engine, EngineOptions};
use crate::evaluate;
use compare::{Comparison, EngineLogits};
use facts::Facts;
use hal::format::Format;
use hal::{Bytes, KvCache};
use report::Report;
use row::Row;
use runtime::{Computation, ContextSize, Opened, Options, Runtime, SharedObserver};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime};

/// Relative change of the measured bandwidth above which the machine counts as busy.
const MAX_DRIFT: f64 = 0.05;

/// Measures speed and reports each test as it ends.
///
/// # Errors
/// A model that cannot be loaded or does not fit; Ctrl-C; standard output cannot be written.
pub(crate) fn run(setup: &BenchSetup<'_>, terminal: &Terminal) -> Result<(), Failure> {
    compare::check_devices(setup, terminal)?;
    let trace = Trace::open(setup.args.trace.as_deref())?;
    let interrupt = Interrupt::install()?;
    let mut bench = Bench {
        trace: &trace,
        comparison: Comparison::new(setup),
        computation: &setup.computations[0],
        setup,
        terminal,
        observer: terminal.stoppable_observer(&interrupt),
        interrupt,
        tests: tests(setup.args),
        report: Report::new(setup),
        bandwidths: BTreeMap::new(),
        n_begun: 0,
        is_new_model: false,
    };
    let done = setup.computations.iter().try_for_each(|computation| {
        bench.computation = computation;
        setup.subjects.iter().try_for_each(|subject| bench.run_subject(subject))
    });
    if done.is_ok() {
        bench.measure_bandwidth_again();
    }
    // End the report even after an error, so that JSON stays well-formed.
    let finished = bench.report.finish().and(done);
    let finished = finished.and_then(|()| bench.comparison.finish(terminal));
    let traced = trace.finish(terminal);
    finished.and(traced)
}

/// The tests of one combination, in llama-bench's order.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for n_depth in values(&args.n_depth) {
        let prompts = values(&args.n_prompt).into_iter().map(|n| (n, 0));
        let generations = values(&args.n_gen).into_iter().map(|n| (0, n));
        let all = prompts.chain(generations).chain(args.pg.iter().copied());
        for (n_prompt, n_gen) in all.filter(|pair| *pair != (0, 0)) {
            let test = |n_seq: u32| Test {
                n_prompt: n_prompt as usize,
                n_gen: n_gen as usize,
                n_depth: n_depth as usize,
                n_seq: n_seq as usize,
            };
            match n_gen {
                // Prefill of one sequence already fills the batches; more sequences change nothing.
                0 => tests.push(test(1)),
                _ => tests.extend(values(&args.parallel).into_iter().map(|n| test(n.get()))),
            }
        }
    }
    tests
}

/// One combination of the options with which an engine is loaded.
#[derive(Clone, Copy, Debug)]
struct Combination {
    /// Index into [`BenchSetup::device_options`].
    device_index: usize,
    threads: Threads,
    n_batch: NonZeroU32,
    n_ubatch: NonZeroU32,
    type_k: Format,
    type_v: Format,
}

fn combinations(setup: &BenchSetup<'_>) -> Vec<Combination> {
    let args = setup.args;
    let mut all = Vec::new();
    for n_batch in values(&args.batch_size) {
        for n_ubatch in values(&args.ubatch_size) {
            for &type_k in &args.cache_type_k {
                for &type_v in &args.cache_type_v {
                    for device_index in 0..setup.device_options.len() {
                        let with = |threads| Combination {
                            device_index,
                            threads,
                            n_batch,
                            n_ubatch,
                            type_k,
                            type_v,
                        };
                        all.extend(args.thread_counts().into_iter().map(with));
                    }
                }
            }
        }
    }
    all
}

impl Combination {
    fn run_options(self, setup: &BenchSetup<'_>, computation: &Computation) -> Options {
        let devices = setup.device_options[self.device_index].clone();
        Options {
            n_ctx: None,
            n_ubatch: self.n_ubatch.min(self.n_batch),
            n_parallel: NonZeroU32::MIN,
            threads: self.threads,
            threads_batch: self.threads,
            kv_formats: KvCache { k: self.type_k, v: self.type_v },
            computation: Computation { devices, ..computation.clone() },
        }
    }
}

struct Bench<'a> {
    setup: &'a BenchSetup<'a>,
    /// The entry of [`BenchSetup::computations`] that is measured.
    computation: &'a Computation,
    terminal: &'a Terminal,
    observer: SharedObserver,
    trace: &'a Trace,
    comparison: Comparison<'a>,
    interrupt: Interrupt,
    tests: Vec<Test>,
    report: Report,
    /// GB/s by number of threads, measured before the first test with that number.
    bandwidths: BTreeMap<usize, Option<f64>>,
    n_begun: usize,
    /// Whether no engine of the current model was loaded yet.
    is_new_model: bool,
}

impl Bench<'_> {
    fn run_subject(&mut self, subject: &Subject) -> Result<(), Failure> {
        let path = match subject {
            Subject::BuiltIn => None,
            Subject::File(path) => Some(path),
            Subject::Synthetic(Synthetic { spec, write: Some(path) }) => {
                let size = spec.size().map_err(|e| creation_failed(&e))?;
                let bar = bar("making the model", size, self.terminal);
                let made = spec.write(path, &mut |done, _| {
                    bar.set_position(done);
                    !self.interrupt.is_set()
                });
                bar.finish_and_clear();
                made.map_err(|e| creation_failed(&e))?;
                self.terminal.note(&format!("{spec} was written to '{}'", path.display()));
                Some(path)
            }
            Subject::Synthetic(Synthetic { spec, write: None }) => {
                if self.tests.is_empty() {
                    return Ok(());
                }
                let size = spec.size().map_err(|e| creation_failed(&e))?;
                runtime::check_total_memory(size)?;
                let bar = bar("making the model", size, self.terminal);
                let file = spec.build(&mut |done, _| {
                    bar.set_position(done);
                    !self.interrupt.is_set()
                });
                bar.finish_and_clear();
                let file = file.map_err(|e| creation_failed(&e))?;
                return self.run_model(&Opened::from_file(file, self.computation)?);
            }
        };
        if self.tests.is_empty() {
            return Ok(());
        }
        let cpu = devices::cpu(Some(1));
        let computation = self.computation;
        let path = path.map(AsRef::as_ref);
        let opened = Opened::open(path, computation, &cpu, self.observer.as_ref())?.decoder()?;
        self.run_model(&opened)
    }

    fn run_model(&mut self, opened: &Opened) -> Result<(), Failure> {
        let text = self.setup.prompt.as_deref().unwrap_or(bench::STORY);
        let text = Text::new(text, &opened.tokenizer)
            .map_err(|e| Failure::new(Exit::Failed, "cannot tokenize the prompt").caused_by(&e))?;
        self.comparison.next_model();
        self.is_new_model = true;
        combinations(self.setup)
            .into_iter()
            .try_for_each(|combination| self.run_combination(opened, &text, combination))
    }

    fn run_combination(
        &mut self,
        opened: &Opened,
        text: &Text,
        combination: Combination,
    ) -> Result<(), Failure> {
        let options = combination.run_options(self.setup, self.computation);
        let runtime = Runtime::new(options, self.observer.clone())?;
        let machine = runtime.machine();
        let most = |of: fn(&Test) -> usize| self.tests.iter().map(of).max().unwrap_or(0);
        let (n_seq, n_total, n_text) =
            (most(|test| test.n_seq), most(Test::n_ctx), most(Test::n_text));
        let n_ctx = most(Test::n_tokens);
        let n_ctx = u32::try_from(n_ctx).ok().and_then(NonZeroU32::new).ok_or_else(|| {
            Failure::usage(format!(
                "a test of {n_ctx} tokens is longer than any context; reduce -p, -n, -d or -np"
            ))
        })?;
        let wanted = Some(ContextSize::Tokens(n_ctx));
        let n_ctx = runtime.fixed_context(wanted, &opened.model).max(n_total);
        if self.comparison.was_measured(machine, combination, self.terminal) {
            return Ok(());
        }
        let n_threads = machine.n_threads;
        runtime.check_overrides(&opened.model)?;
        if std::mem::take(&mut self.is_new_model) {
            runtime.note_unused_overrides(&opened.model);
        }
        let (mut engine, bandwidth, load) = self.load(&runtime, opened, n_ctx, n_seq)?;
        let computation = &runtime.options().computation;
        let facts = Facts::new(&engine, machine, self.setup, computation, combination);
        let mut facts = Facts { n_threads, bandwidth, load, ..facts };
        let n_vocab = opened.model.n_vocab();
        let text = text.first(n_ctx.max(n_text), n_vocab).ok_or_else(|| {
            Failure::usage("the prompt text contains no token of this model's vocabulary")
                .help("pass another text with --prompt-file")
        })?;
        let label = self.comparison.label(&facts);
        self.comparison.add_title(&facts);
        if self.setup.args.check {
            let flag = self.interrupt.flag();
            let logits = bench::logits(&mut engine, self.check_text(&text), flag)?;
            let checked = EngineLogits {
                combination,
                label: label.clone(),
                devices: facts.devices.names.clone(),
                placement: engine.placement().clone(),
                logits,
            };
            facts.difference =
                self.comparison.compare_logits(checked, &opened.model, self.terminal);
        }
        if let Some(path) = self.setup.args.trace_experts.as_deref().filter(|_| self.n_begun == 0) {
            let trace = evaluate::trace_choices(&mut engine, &text, self.interrupt.flag())?;
            output::write_file(path, &trace)?;
        }
        self.trace.watch(&mut engine, &label);
        for test in self.tests.clone() {
            self.run_test(&mut engine, &text, &facts, test)?;
        }
        let ram = ram_used(&engine);
        self.comparison.plot.add_memory(&label, &facts, ram);
        Ok(())
    }

    /// The engine, the memory bandwidth, and how long loading took. Until the first test begins, no
    /// output has begun, so Ctrl-C ends the process.
    fn load(
        &mut self,
        runtime: &Runtime,
        opened: &Opened,
        n_ctx: usize,
        n_seq: usize,
    ) -> Result<(Engine, Option<f64>, Duration), Failure> {
        let (interrupt, is_first) = (self.interrupt.clone(), self.n_begun == 0);
        let mut load = || {
            let placing = runtime.placing(&opened.model);
            let settings =
                EngineOptions { placing, n_seq, ..runtime.settings(&opened.model, n_ctx) };
            let machine = runtime.machine();
            let (free, n_threads) =
                (machine.cpu.memory().ok().and_then(|memory| memory.free), machine.n_threads);
            let measure = || read_bandwidth(self.setup, n_threads, free, self.terminal);
            let bandwidth = *self.bandwidths.entry(n_threads).or_insert_with(measure);
            let begin = Instant::now();
            let engine = runtime.load(&opened.model, settings)?;
            Ok((engine, bandwidth, begin.elapsed()))
        };
        if is_first { interrupt.exit_during_load(load) } else { load() }
    }

    fn run_test(
        &mut self,
        engine: &mut Engine,
        text: &[u32],
        facts: &Facts,
        test: Test,
    ) -> Result<(), Failure> {
        if self.n_begun > 0 {
            self.pause(self.setup.args.delay)?;
        }
        self.n_begun += 1;
        if self.setup.args.progress {
            let n = self.n_tests();
            self.terminal.note(&format!("test {}/{n}: {}, {test}", self.n_begun, facts.model_type));
        }
        let time = SystemTime::now();
        let settings = Settings {
            n_batch: facts.n_batch as usize,
            repetitions: self.setup.args.repetitions as usize,
            warmup: self.setup.args.warmup,
        };
        let flag = self.interrupt.flag();
        let n = self.n_tests();
        let bar = progress::timer(self.terminal, &format!("test {} of {n}: {test}", self.n_begun));
        let measured = bench::measure(engine, text, test, settings, flag);
        bar.finish_and_clear();
        let measured = measured?;
        let row = Row { facts, test, measured, time, ram_used: ram_used(engine) };
        self.comparison.plot.add(&self.comparison.label(facts), &row);
        self.report.row(&row)
    }

    /// The tokens that `--check` feeds to every engine: if possible, enough for the largest
    /// micro-batch of any engine.
    fn check_text<'t>(&self, text: &'t [u32]) -> &'t [u32] {
        let steps = combinations(self.setup).into_iter();
        let longest = steps.map(|one| one.n_ubatch.min(one.n_batch).get() as usize).max();
        &text[..longest.unwrap_or(0).max(bench::N_REPEATED).min(text.len())]
    }

    fn n_tests(&self) -> usize {
        let n_engines = combinations(self.setup).len() * self.setup.subjects.len();
        n_engines * self.tests.len()
    }

    /// Waits between tests. Ctrl-C ends the wait with an error.
    fn pause(&self, delay: Duration) -> Result<(), Failure> {
        const STEP: Duration = Duration::from_millis(50);
        let begin = Instant::now();
        while let Some(left) = delay.checked_sub(begin.elapsed()).filter(|d| !d.is_zero()) {
            if self.interrupt.is_set() {
                return Err(Failure::interrupted());
            }
            std::thread::sleep(left.min(STEP));
        }
        Ok(())
    }

    /// Measures the bandwidth again and warns if it changed: a busy machine gives unreliable rates.
    fn measure_bandwidth_again(&self) {
        for (&n_threads, before) in &self.bandwidths {
            let free = devices::cpu(Some(1)).memory().ok().and_then(|memory| memory.free);
            let after = read_bandwidth(self.setup, n_threads, free, self.terminal);
            let (Some(before), Some(after)) = (before, after) else {
                self.terminal.note("the memory bandwidth could not be measured");
                continue;
            };
            let probed = format!(
                "{}: {before:.1} GB/s of memory bandwidth before the tests and {after:.1} GB/s after",
                counted(n_threads, "thread")
            );
            if (after / before - 1.0).abs() > MAX_DRIFT {
                self.terminal.note(&format!(
                    "{probed}: the machine was probably busy, so the rates are unreliable; stop other programs and repeat"
                ))
            } else {
                self.terminal.detail(&probed)
            }
        }
    }
}

/// The memory bandwidth in GB/s with `--probe-size`; `None` if it cannot be measured.
fn read_bandwidth(
    setup: &BenchSetup<'_>,
    n_threads: usize,
    free: Option<Bytes>,
    terminal: &Terminal,
) -> Option<f64> {
    let usual = || bench::usual_probe_size(devices::last_level_cache().map(Bytes));
    let wanted = setup.args.probe_size.map_or_else(usual, |mib| Bytes(mib << 20));
    let size = bench::probe_size(wanted, free);
    if size < wanted {
        terminal.note(&format!(
            "only {size} are read to measure the memory bandwidth, a quarter of the free memory, in place of {wanted}; the processor's caches may make it too high"
        ));
    }
    let bar = progress::timer(terminal, "measuring the memory bandwidth");
    let measured = bench::read_bandwidth(n_threads, size);
    bar.finish_and_clear();
    measured
}

/// System memory that the model uses, computed as in `plan`.
fn ram_used(engine: &Engine) -> Bytes {
    let (model, devices) = (engine.model(), engine.devices());
    crate::engine::host_bytes(model, devices, engine.options(), engine.placement()).total.total()
}

fn creation_failed(error: &crate::synthetic::Error) -> Failure {
    if matches!(error, crate::synthetic::Error::Stopped) {
        return Failure::interrupted();
    }
    Failure::new(Exit::Failed, "cannot create the synthetic model").caused_by(error)
}

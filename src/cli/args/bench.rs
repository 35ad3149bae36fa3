//! `thermocline bench`.

use super::model::cache_type;
use super::{CommonArgs, HubArgs, PlacementArgs, Threads, boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::parse::{self, List, values};
use crate::cli::texts::read_file;
use crate::synthetic::{Error, Spec};
use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use hal::format::Format;
use runtime::{Computation, DeviceOptions};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `bench`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tests")]
pub(crate) struct BenchArgs {
    /// GGUF files or USER/REPO[:QUANT], separated by commas; may be repeated
    ///
    /// By default, the built-in story model is measured.
    #[arg(short, long, value_name = "FILE", env = "THERMOCLINE_ARG_MODEL", value_delimiter = ',')]
    pub(crate) model: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Prompt lengths (prefill tests)
    #[arg(
        short = 'p',
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_N_PROMPT",
        default_value = "512"
    )]
    #[arg(value_parser = counts("-p"))]
    pub(crate) n_prompt: Vec<List<u32>>,
    /// Numbers of tokens to generate (decode tests)
    #[arg(
        short = 'n',
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_N_GEN",
        default_value = "128"
    )]
    #[arg(value_parser = counts("-n"))]
    pub(crate) n_gen: Vec<List<u32>>,
    /// Prefill P tokens, then decode G tokens, as one test (-pg)
    #[arg(long, value_name = "P,G", env = "THERMOCLINE_ARG_PG", value_parser = parse::pair)]
    pub(crate) pg: Vec<(u32, u32)>,
    /// Context depths to fill before the test
    #[arg(
        short = 'd',
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_N_DEPTH",
        default_value = "0"
    )]
    #[arg(value_parser = counts("-d"))]
    pub(crate) n_depth: Vec<List<u32>>,
    /// Numbers of sequences that decode at once (-np)
    ///
    /// Each reported rate is the total of all sequences.
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_N_PARALLEL", default_value = "1")]
    #[arg(value_parser = sequences)]
    pub(crate) parallel: Vec<List<NonZeroU32>>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_REPETITIONS", default_value_t = 5)]
    #[arg(value_parser = whole::<u32>(1..=10_000))]
    pub(crate) repetitions: u32,
    /// CPU threads
    #[arg(short, long, value_name = "LIST", env = "THERMOCLINE_ARG_THREADS")]
    #[arg(value_parser = thread_counts)]
    pub(crate) threads: Vec<List<Threads>>,
    /// Logical batch sizes
    #[arg(short, long, value_name = "LIST", env = "THERMOCLINE_ARG_BATCH", default_value = "2048")]
    #[arg(value_parser = sizes("-b"))]
    pub(crate) batch_size: Vec<List<NonZeroU32>>,
    /// Physical batch sizes (-ub)
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_UBATCH", default_value = "512")]
    #[arg(value_parser = sizes("-ub"))]
    pub(crate) ubatch_size: Vec<List<NonZeroU32>>,
    /// Formats of the keys in the KV cache (-ctk)
    #[arg(
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_CACHE_TYPE_K",
        default_value = "f16",
        value_delimiter = ',',
        value_parser = cache_type()
    )]
    pub(crate) cache_type_k: Vec<Format>,
    /// Formats of the values in the KV cache (-ctv)
    #[arg(
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_CACHE_TYPE_V",
        default_value = "f16",
        value_delimiter = ',',
        value_parser = cache_type()
    )]
    pub(crate) cache_type_v: Vec<Format>,
    /// Text for the prompts; default: a built-in text
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_PROMPT_FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Seconds to wait between tests
    #[arg(long, value_name = "SECONDS", env = "THERMOCLINE_ARG_DELAY", default_value = "0")]
    #[arg(value_parser = whole::<u32>(0..=86_400).map(|n| Duration::from_secs(n.into())))]
    pub(crate) delay: Duration,
    /// One untimed run before each test (--no-warmup)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_WARMUP", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) warmup: bool,
    /// Measure a synthetic model: SHAPE:TYPE:relu or SHAPE:TYPE:silu
    ///
    /// SHAPE is tiny, 1b, 3b, 7b, 8b, 13b or 70b, or EMBDxLAYERSxFFxHEADS/KV_HEADS.
    /// SHAPE*EXPERTS/USED:TYPE:silu makes an MoE model that routes each token to USED of EXPERTS.
    #[arg(long, value_name = "SPEC", env = "THERMOCLINE_ARG_SYNTHETIC")]
    #[arg(value_parser = synthetic)]
    pub(crate) synthetic: Option<Spec>,
    /// Density of the synthetic model: fraction of active neurons
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_DENSITY", requires = "synthetic", value_parser = parse::share)]
    pub(crate) density: Option<f64>,
    /// Write the synthetic model to a file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_WRITE", requires = "synthetic")]
    pub(crate) write: Option<PathBuf>,
    /// Seed of the synthetic model
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_SEED", default_value_t = 0, value_parser = whole::<u32>(0..))]
    pub(crate) seed: u32,
    /// Compare the logits of all backends and budgets
    ///
    /// The command fails if logits differ by more than rounding explains.
    #[arg(long, env = "THERMOCLINE_ARG_CHECK", value_parser = boolish())]
    pub(crate) check: bool,
    /// Memory to read when the bandwidth is measured, in MiB
    ///
    /// Less than the processor's caches hold gives a bandwidth that is too high. Default: 16 times the
    /// last-level caches, 128 to 1024, and at most a quarter of the free memory.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_PROBE_SIZE")]
    #[arg(value_parser = whole::<u64>(1..=1 << 20))]
    pub(crate) probe_size: Option<u64>,
    /// Write a timeline for ui.perfetto.dev or chrome://tracing
    ///
    /// Recording the timeline slows the run down.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_TRACE", help_heading = "Report")]
    pub(crate) trace: Option<PathBuf>,
    /// Write the experts or neurons that each token of the prompt uses to a file
    ///
    /// `scripts/simulate_tiers` compares policies for weights in memory on such traces. Only the
    /// first combination of the flags is traced.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_TRACE_EXPERTS", value_hint = clap::ValueHint::FilePath)]
    pub(crate) trace_experts: Option<PathBuf>,
    /// Draw the comparison as an SVG file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_PLOT", help_heading = "Report")]
    pub(crate) plot: Option<PathBuf>,
    /// Format of the report
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        env = "THERMOCLINE_ARG_OUTPUT",
        default_value = "md",
        help_heading = "Report"
    )]
    pub(crate) output: OutputFormat,
    /// Also print the report on standard error, in this format (-oe)
    #[arg(
        long,
        value_name = "FORMAT",
        env = "THERMOCLINE_ARG_OUTPUT_ERR",
        help_heading = "Report"
    )]
    pub(crate) output_err: Option<OutputFormat>,
    /// Same as -o json
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish(), help_heading = "Report")]
    pub(crate) json: bool,
    /// Print each test's name on standard error as it begins
    #[arg(long, env = "THERMOCLINE_ARG_PROGRESS", value_parser = boolish(), help_heading = "Report")]
    pub(crate) progress: bool,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Formats of llama-bench's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A Markdown table.
    Md,
    /// Comma-separated values, every field quoted.
    Csv,
    /// One JSON array.
    Json,
    /// One JSON object per line.
    Jsonl,
    /// SQL statements: CREATE TABLE, then INSERT.
    Sql,
}

/// The flags of `bench`, with the values that come from several flags or from a file.
#[derive(Clone, Debug)]
pub(crate) struct BenchSetup<'a> {
    /// The flags. `bench` measures every combination of their lists.
    pub(crate) args: &'a BenchArgs,
    /// The models to measure, at least one.
    pub(crate) subjects: Vec<Subject>,
    /// The prompt text; `None` for the built-in text.
    pub(crate) prompt: Option<String>,
    /// One entry per combination of the device flags that take lists; never empty.
    pub(crate) device_options: Vec<DeviceOptions>,
    /// One entry per combination of --mmap and --cpu-mask. The devices are replaced by an entry of
    /// `device_options`.
    pub(crate) computations: Vec<Computation>,
}

/// A model to measure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subject {
    /// The built-in story model.
    BuiltIn,
    /// A GGUF file.
    File(PathBuf),
    /// A synthetic model with random weights.
    Synthetic(Synthetic),
}

/// `--synthetic SHAPE:TYPE:relu|silu` and related flags.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Synthetic {
    /// Shape, format and density of the model.
    pub(crate) spec: Spec,
    /// Path of the file to write; the benchmark then runs that file.
    pub(crate) write: Option<PathBuf>,
}

impl BenchArgs {
    /// Checks flags that depend on each other, and reads the prompt file.
    ///
    /// # Errors
    /// Flags that leave nothing to measure or to compare; a file that cannot be read.
    pub(crate) fn resolve(&self) -> Result<BenchSetup<'_>, Failure> {
        let setup = BenchSetup {
            args: self,
            subjects: self.subjects()?,
            prompt: self.prompt_file.as_deref().map(read_file).transpose()?,
            device_options: self.placement.devices.combinations(),
            computations: self.placement.computations(),
        };
        if self.check && setup.device_options.len() < 2 {
            let help = "name several backends, such as --backend cpu,wgpu, or several --vram-budget values";
            return Err(
                Failure::usage("--check needs at least two configurations to compare").help(help)
            );
        }
        let lengths = [values(&self.n_prompt), values(&self.n_gen)].concat().into_iter();
        let none = lengths.chain(self.pg.iter().flat_map(|&(p, g)| [p, g])).all(|n| n == 0);
        if none && self.write.is_none() {
            let help = "give a prompt length with -p or a generation length with -n";
            return Err(Failure::usage("nothing to measure: all lengths are 0").help(help));
        }
        Ok(setup)
    }

    /// The thread counts to measure with.
    pub(crate) fn thread_counts(&self) -> Vec<Threads> {
        if self.threads.is_empty() { vec![None] } else { values(&self.threads) }
    }

    /// The format of the report on standard output.
    pub(crate) fn output_format(&self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.output }
    }

    fn subjects(&self) -> Result<Vec<Subject>, Failure> {
        let mut subjects: Vec<_> = self.model.iter().cloned().map(Subject::File).collect();
        if let Some(spec) = &self.synthetic {
            let mut spec = Spec { seed: self.seed.into(), ..spec.clone() };
            if self.density.is_some() {
                spec.density = self.density;
                spec.check().map_err(|e| invalid_spec(&spec.to_string(), &e))?;
            }
            subjects.push(Subject::Synthetic(Synthetic { spec, write: self.write.clone() }));
        }
        if subjects.is_empty() {
            subjects.push(Subject::BuiltIn);
        }
        Ok(subjects)
    }
}

/// Parses a list of counts. `flag` begins the error message.
fn counts(flag: &'static str) -> impl Fn(&str) -> Result<List<u32>, Failure> + Clone {
    move |text| parse::list(text).map(List).map_err(|why| Failure::usage(format!("{flag} {why}")))
}

/// Parses a list of numbers above 0. `flag` begins the error message.
fn sizes(flag: &'static str) -> impl Fn(&str) -> Result<List<NonZeroU32>, Failure> + Clone {
    move |text| {
        let List(values) = counts(flag)(text)?;
        let sizes: Option<_> = values.into_iter().map(NonZeroU32::new).collect();
        sizes.map(List).ok_or_else(|| Failure::usage(format!("{flag} cannot be 0")))
    }
}

/// Maximum value of `-np`.
const MAX_PARALLEL: u32 = 256;

fn sequences(text: &str) -> Result<List<NonZeroU32>, Failure> {
    let list = sizes("-np")(text)?;
    match list.0.iter().find(|n| n.get() > MAX_PARALLEL) {
        Some(n) => Err(Failure::usage(format!("-np {n} exceeds {MAX_PARALLEL} sequences"))),
        None => Ok(list),
    }
}

/// Parses thread counts. 0, or -1 as the only value, selects the default count.
fn thread_counts(text: &str) -> Result<List<Threads>, Failure> {
    if text == "-1" {
        return Ok(List(vec![None]));
    }
    let List(values) = counts("-t")(text)?;
    match values.iter().find(|n| **n > 4096) {
        Some(n) => Err(Failure::usage(format!("-t {n} exceeds 4096 threads"))),
        None => Ok(List(values.into_iter().map(|n| NonZeroUsize::new(n as usize)).collect())),
    }
}

fn synthetic(text: &str) -> Result<Spec, Failure> {
    Spec::parse(text).map_err(|e| invalid_spec(text, &e))
}

fn invalid_spec(spec: &str, error: &Error) -> Failure {
    Failure::usage(format!("invalid --synthetic {spec}"))
        .caused_by(error)
        .help("write it as SHAPE:TYPE:relu or SHAPE:TYPE:silu, such as 1b:q4_0:relu")
}

//! Options of `bench`.

use super::device::combinations;
use super::model::{CacheType, computation, threads};
use super::text::read_file;
use crate::cli::args::{BenchArgs, CacheTypeName, OutputFormat};
use crate::cli::failure::Failure;
use crate::cli::parse;
use crate::synthetic::Spec;
use runtime::{Computation, DeviceOptions};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

/// `thermocline bench`. Every combination of the lists is measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BenchOptions {
    /// The models to measure, at least one.
    pub(crate) subjects: Vec<Subject>,
    /// Lengths of prefill tests; 0 skips the test.
    pub(crate) n_prompt: Vec<u32>,
    /// Lengths of decode tests; 0 skips the test.
    pub(crate) n_gen: Vec<u32>,
    /// Prefill and decode in one test.
    pub(crate) pg: Vec<(u32, u32)>,
    /// Tokens in the context before the test.
    pub(crate) n_depth: Vec<u32>,
    /// Numbers of sequences decoded at once.
    pub(crate) n_parallel: Vec<NonZeroU32>,
    /// Repetitions of each test.
    pub(crate) repetitions: u32,
    /// Thread counts; `None` for the default.
    pub(crate) threads: Vec<Option<NonZeroUsize>>,
    /// Logical batch sizes.
    pub(crate) n_batch: Vec<NonZeroU32>,
    /// Physical batch sizes.
    pub(crate) n_ubatch: Vec<NonZeroU32>,
    /// Formats of the cached keys.
    pub(crate) type_k: Vec<CacheType>,
    /// Formats of the cached values.
    pub(crate) type_v: Vec<CacheType>,
    /// The prompt text and its path; `None` for the built-in text.
    pub(crate) prompt: Option<(PathBuf, String)>,
    /// Pause between tests.
    pub(crate) delay: Duration,
    /// An untimed run before each test.
    pub(crate) warmup: bool,
    /// Report on standard output.
    pub(crate) output: OutputFormat,
    /// Report on standard error.
    pub(crate) output_err: Option<OutputFormat>,
    /// Print the name of each test as it starts.
    pub(crate) progress: bool,
    /// Compare the logits of all combinations.
    pub(crate) check: bool,
    /// Path of the trace.
    pub(crate) trace: Option<PathBuf>,
    /// Path of the plot.
    pub(crate) plot: Option<PathBuf>,
    /// Device options, at least one entry.
    pub(crate) places: Vec<DeviceOptions>,
    /// How the models are computed; the devices come from an entry of `places`.
    pub(crate) computation: Computation,
}

/// A model to measure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subject {
    /// The built-in model.
    BuiltIn,
    /// A file.
    File(PathBuf),
    /// A model made in memory.
    Synthetic(Synthetic),
}

/// `--synthetic SHAPE:TYPE:relu|silu` and related flags.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Synthetic {
    /// The model.
    pub(crate) spec: Spec,
    /// Path to write it to; it is then measured from there.
    pub(crate) write: Option<PathBuf>,
}

impl BenchOptions {
    /// # Errors
    /// Invalid or unsupported values.
    pub(crate) fn resolve(args: &BenchArgs) -> Result<Self, Failure> {
        let mut subjects: Vec<_> = args.model.iter().cloned().map(Subject::File).collect();
        if let Some(spec) = &args.synthetic {
            subjects.push(Subject::Synthetic(synthetic(spec, args)?));
        }
        if subjects.is_empty() {
            subjects.push(Subject::BuiltIn);
        }
        let options = Self {
            subjects,
            n_prompt: counts("-p", &args.n_prompt)?,
            n_gen: counts("-n", &args.n_gen)?,
            pg: args.pg.clone(),
            n_depth: counts("-d", &args.n_depth)?,
            n_parallel: parallel(&args.parallel)?,
            repetitions: args.repetitions,
            threads: thread_counts(&args.threads)?,
            n_batch: sizes("-b", &args.batch_size)?,
            n_ubatch: sizes("-ub", &args.ubatch_size)?,
            type_k: cache_types(&args.cache_type_k)?,
            type_v: cache_types(&args.cache_type_v)?,
            prompt: match &args.prompt_file {
                Some(path) => Some((path.clone(), read_file(path)?)),
                None => None,
            },
            delay: Duration::from_secs(args.delay.into()),
            warmup: args.warmup,
            output: if args.json { OutputFormat::Json } else { args.output },
            output_err: args.output_err,
            progress: args.progress,
            check: args.check,
            trace: args.trace.clone(),
            plot: args.plot.clone(),
            places: combinations(&args.placement.devices),
            computation: computation(&args.placement),
        };
        if options.check && options.places.len() < 2 {
            let help = "name at least two: --backend cpu,wgpu, or several budgets";
            return Err(
                Failure::usage("--check needs several configurations to compare").help(help)
            );
        }
        let lengths = options.n_prompt.iter().chain(&options.n_gen);
        let none = lengths.chain(options.pg.iter().flat_map(|(p, g)| [p, g])).all(|n| *n == 0);
        if none && args.write.is_none() {
            let help = "give a prompt length with -p or a generation length with -n";
            return Err(Failure::usage("nothing to measure").help(help));
        }
        Ok(options)
    }
}

fn cache_types(names: &[CacheTypeName]) -> Result<Vec<CacheType>, Failure> {
    names.iter().map(|name| CacheType::resolve(*name)).collect()
}

/// All values of a list flag, given once or several times.
fn counts(flag: &str, lists: &[String]) -> Result<Vec<u32>, Failure> {
    let mut values = Vec::new();
    for text in lists {
        let list = parse::list(text);
        values.extend(list.map_err(|why| Failure::usage(format!("{flag} {why}")))?);
    }
    Ok(values)
}

fn sizes(flag: &str, lists: &[String]) -> Result<Vec<NonZeroU32>, Failure> {
    let values = counts(flag, lists)?.into_iter();
    let sizes: Option<_> = values.map(NonZeroU32::new).collect();
    sizes.ok_or_else(|| Failure::usage(format!("{flag} cannot be 0")))
}

/// Maximum number of sequences: each has an entry in the batch facts of every step.
const MOST_PARALLEL: u32 = 256;

fn parallel(lists: &[String]) -> Result<Vec<NonZeroU32>, Failure> {
    let values = sizes("-np", lists)?;
    match values.iter().find(|n| n.get() > MOST_PARALLEL) {
        Some(n) => Err(Failure::usage(format!("-np {n} is more than {MOST_PARALLEL} sequences"))),
        None => Ok(values),
    }
}

fn thread_counts(lists: &[String]) -> Result<Vec<Option<NonZeroUsize>>, Failure> {
    if lists.is_empty() || lists == ["-1"] {
        return Ok(vec![None]);
    }
    let values = counts("-t", lists)?;
    match values.iter().find(|n| **n > 4096) {
        Some(n) => Err(Failure::usage(format!("-t {n} is more than 4096 threads"))),
        None => Ok(values.into_iter().map(|n| threads(i32::try_from(n).unwrap_or(-1))).collect()),
    }
}

fn synthetic(spec: &str, args: &BenchArgs) -> Result<Synthetic, Failure> {
    let wrong = |error: &dyn std::error::Error| {
        Failure::usage(format!("invalid --synthetic {spec}"))
            .caused_by(error)
            .help("write it as SHAPE:TYPE:relu or SHAPE:TYPE:silu, such as 1b:q4_0:relu")
    };
    let mut spec = Spec::parse(spec).map_err(|e| wrong(&e))?;
    spec.seed = args.seed.into();
    if let Some(density) = args.density {
        spec.density = Some(density);
        spec.check().map_err(|e| wrong(&e))?;
    }
    Ok(Synthetic { spec, write: args.write.clone() })
}

//! `thermocline convert`, `quantize`, `split` and `merge`.

use crate::cli::args::{ConvertArgs, MergeArgs, QuantizeArgs, SplitArgs};
use crate::cli::errors::is_out_of_memory;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::observer::bar;
use crate::cli::output::Output;
use crate::cli::suggest::nearest;
use crate::cli::terminal::{Terminal, counted, printable};
use crate::convert::{
    self, BeforeAfter, Error, PartSize, Progress, QuantizeSummary, Summary, Target,
};
use crate::gguf::Problem;
use hal::Bytes;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Converts a Hugging Face folder to a GGUF file.
///
/// # Errors
/// An invalid folder, an output file that exists; no partial output file is left behind.
pub(crate) fn convert(args: &ConvertArgs, terminal: &Terminal) -> Result<(), Failure> {
    let (job, start) = (args.job()?, Instant::now());
    let summary = with_bar("converting", terminal, |progress| job.run(progress))?;
    print_summary(&job.output, &summary, start, terminal)
}

/// Copies a model file with its weights quantised to another type.
///
/// # Errors
/// An unsupported type, a file that cannot be read; no partial output file is left behind.
pub(crate) fn quantize(args: &QuantizeArgs, terminal: &Terminal) -> Result<(), Failure> {
    let (job, start) = (args.job()?, Instant::now());
    if args.dry_run {
        let summary = job.dry_run()?;
        print_quantized(&summary, job.target, None, terminal);
        return print_sizes(&[(job.output, summary.size)]);
    }
    if !args.keep_split {
        let summary = with_bar("quantising", terminal, |progress| job.run(progress))?;
        print_quantized(&summary, job.target, Some(start), terminal);
        return print_paths(&[job.output]);
    }
    let (paths, summary) = with_bar("quantising", terminal, |progress| job.run_parts(progress))?;
    print_quantized(&summary, job.target, Some(start), terminal);
    print_paths(&paths)
}

/// Prints what a quantisation did, and the time since `start`.
fn print_quantized(
    summary: &QuantizeSummary,
    target: Target,
    start: Option<Instant>,
    terminal: &Terminal,
) {
    for note in &summary.notes {
        terminal.note(&printable(note));
    }
    let BeforeAfter { before, after } = summary.tensor_bytes;
    let time =
        start.map_or(String::new(), |start| format!(", {:.1} s", start.elapsed().as_secs_f64()));
    terminal.note(&format!(
        "{}: {}, {} before, {} after, {:.2} bits per weight{time}",
        target.name(),
        counted(summary.n_tensors, "tensor"),
        Bytes(before),
        Bytes(after),
        summary.bits_per_value(),
    ));
}

/// Splits a model file into several files, or joins them.
///
/// # Errors
/// A file that cannot be read, output files that exist; no output file is left behind.
pub(crate) fn split(args: &SplitArgs, terminal: &Terminal) -> Result<(), Failure> {
    if args.merge {
        return join(&args.input, &args.prefix, args.force, terminal);
    }
    let job = args.job();
    if args.dry_run {
        return print_sizes(&job.dry_run()?);
    }
    let (paths, summary) = with_bar("splitting", terminal, |progress| job.run(progress))?;
    print_parts(&paths, &summary, terminal)
}

/// Prints the files that a run without `--dry-run` would write.
fn print_sizes(files: &[PartSize]) -> Result<(), Failure> {
    let mut out = Output::stdout();
    for (path, size) in files {
        out.line(&format!("{}  {}", printable(&path.display().to_string()), Bytes(*size)))?;
    }
    out.flush()
}

/// Prints the paths of several files on standard output and the summary on standard error.
fn print_parts(paths: &[PathBuf], summary: &Summary, terminal: &Terminal) -> Result<(), Failure> {
    for note in &summary.notes {
        terminal.note(&printable(note));
    }
    terminal.note(&format!(
        "{} in {}, {}",
        counted(summary.n_tensors, "tensor"),
        counted(paths.len(), "file"),
        Bytes(summary.size)
    ));
    print_paths(paths)
}

/// Prints paths on standard output.
fn print_paths(paths: &[PathBuf]) -> Result<(), Failure> {
    let mut out = Output::stdout();
    for path in paths {
        out.line(&printable(&path.display().to_string()))?;
    }
    out.flush()
}

/// Joins the files of a split model.
///
/// # Errors
/// A missing file, an output file that exists; no output file is left behind.
pub(crate) fn merge(args: &MergeArgs, terminal: &Terminal) -> Result<(), Failure> {
    join(&args.input, &args.outfile, args.force, terminal)
}

fn join(first: &Path, output: &Path, force: bool, terminal: &Terminal) -> Result<(), Failure> {
    let start = Instant::now();
    let summary =
        with_bar("joining", terminal, |progress| convert::merge(first, output, force, progress))?;
    print_summary(output, &summary, start, terminal)
}

/// Runs a job with a progress bar; Ctrl-C or SIGTERM ends it.
fn with_bar<T>(
    what: &'static str,
    terminal: &Terminal,
    job: impl FnOnce(Progress<'_>) -> Result<T, Error>,
) -> Result<T, Failure> {
    let interrupt = Interrupt::install()?;
    // The first progress report sets the length. A bar created without a length would stay hidden.
    let bar = bar(what, Bytes(u64::MAX), terminal);
    let done = job(&|done, of| {
        bar.set_length(of);
        bar.set_position(done);
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    if matches!(done, Err(Error::Interrupted)) {
        terminal.note("stopped; no file was written");
    }
    Ok(done?)
}

/// Prints the path on standard output, and the summary with the time since `start` on standard
/// error.
fn print_summary(
    path: &Path,
    summary: &Summary,
    start: Instant,
    terminal: &Terminal,
) -> Result<(), Failure> {
    for note in &summary.notes {
        terminal.note(&printable(note));
    }
    let (size, seconds) = (Bytes(summary.size), start.elapsed().as_secs_f64());
    let what = if summary.what.is_empty() { String::new() } else { format!("{}: ", summary.what) };
    let n = counted(summary.n_tensors, "tensor");
    terminal.note(&format!("{what}{n}, {size}, {seconds:.1} s"));
    print_paths(&[path.to_owned()])
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let help = help(&error);
        let failure = if let Error::Interrupted = error {
            return Failure::interrupted();
        } else if let Error::Target { .. }
        | Error::CodebookTarget { .. }
        | Error::Pattern { .. }
        | Error::NeedsImportance { .. }
        | Error::Requantize { .. }
        | Error::Exists { .. }
        | Error::SameFile { .. }
        | Error::Parts { .. } = error
        {
            Failure::usage(error.to_string())
        } else if let Error::Importance { .. } | Error::ImportanceSize { .. } = error {
            Failure::new(Exit::Failed, "cannot use the importance matrix").caused_by(&error)
        } else if let Error::Container(file) = &error
            && is_out_of_memory(file)
        {
            Failure::new(Exit::Memory, "not enough memory").caused_by(&error)
        } else if is_output_error(&error) {
            Failure::new(Exit::Failed, "cannot create the output file").caused_by(&error)
        } else if let Error::Io { .. } = error {
            Failure::new(Exit::Failed, "cannot read the input files").caused_by(&error)
        } else {
            Failure::new(Exit::BadModel, "cannot use the input model").caused_by(&error)
        };
        Failure { help, ..failure }
    }
}

/// The GGUF problem behind the error, if a GGUF file caused it.
fn problem(error: &Error) -> Option<&Problem> {
    if let Error::Container(error) = error { Some(error.problem()) } else { None }
}

/// Whether the system refused the output file.
fn is_output_error(error: &Error) -> bool {
    let of_output = |problem: &Problem| {
        matches!(
            problem,
            Problem::Disk { .. }
                | Problem::NotReplaceable { .. }
                | Problem::ReadByThisRun
                | Problem::Io { action: "write" | "create" | "rename the finished file", .. }
        )
    };
    matches!(error, Error::Io { action: "write", .. }) || problem(error).is_some_and(of_output)
}

fn help(error: &Error) -> Option<String> {
    if let Error::Architecture { found, known, .. } = error {
        let near = nearest(found, known.iter().copied());
        let near = near.map_or(String::new(), |name| format!("the most similar is {name}; "));
        let n = known.len();
        return Some(format!("{n} classes are supported: {near}docs/convert.md lists them"));
    }
    if let Error::Shapes { known, .. } = error {
        return Some(format!("known model types: {}", known.join(", ")));
    }
    if let Error::Target { known, .. } = error {
        return Some(format!("supported types: {}", known.join(", ")));
    }
    let help = if let Error::CodebookTarget { .. } = error {
        "files of this type run; Q2_K, Q3_K_S or IQ4_XS can be made here, llama.cpp makes this one"
    } else if let Error::Importance { .. } = error {
        "`thermocline imatrix` and llama-imatrix make importance matrices"
    } else if let Error::ImportanceSize { .. } = error {
        "use an importance matrix of this model"
    } else if let Error::NeedsImportance { .. } = error {
        "`thermocline imatrix -m IN -f TEXT` makes one, and --imatrix imatrix.gguf uses it"
    } else if let Error::Exists { .. } = error {
        "--force replaces it"
    } else if let Error::SameFile { .. } = error {
        "choose another output file"
    } else if let Error::Requantize { .. } = error {
        "quantise from the F16 file, or pass --allow-requantize"
    } else if let Error::PreTokenizer { .. } = error {
        "set --pre NAME to the `tokenizer.ggml.pre` of a GGUF file from the same model family"
    } else if let Error::Pickle { .. } = error {
        "the checkpoint is damaged or malicious; look for the model in safetensors format"
    } else if let Error::MissingTensor { .. } = error {
        "check that all files of the checkpoint were downloaded"
    } else if let Error::Parts { .. } = error {
        "a larger --split-max-size or --split-max-tensors gives fewer files"
    } else if let Some(Problem::NotReplaceable { .. } | Problem::ReadByThisRun) = problem(error) {
        "choose another output file"
    } else if let Some(Problem::Disk { .. }) = problem(error) {
        "free some space, or write to another disk"
    } else if let Some(Problem::SourceChanged | Problem::SourceLost) = problem(error) {
        "start again, and leave the file as it is until the output is complete"
    } else {
        return None;
    };
    Some(help.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_exit_codes_and_help() {
        let exists = Failure::from(Error::Exists { file: "x.gguf".into() });
        assert_eq!((exists.exit.code(), exists.help.as_deref()), (2, Some("--force replaces it")));
        for action in ["write", "rename the finished file"] {
            let reason = std::io::ErrorKind::StorageFull.into();
            let full = crate::gguf::Error::new("x.gguf", Problem::Io { action, reason });
            let full = Failure::from(Error::Container(full));
            let said = (full.exit, full.message.as_str());
            assert_eq!(said, (Exit::Failed, "cannot create the output file"), "{action}");
        }
        let reason = std::io::ErrorKind::PermissionDenied.into();
        let input = Failure::from(Error::Io { file: "x".into(), action: "read", reason });
        let said = (input.exit, input.message.as_str());
        assert_eq!(said, (Exit::Failed, "cannot read the input files"));
        let unknown = Error::Architecture {
            file: "c".into(),
            found: "LlamasForCausalLM".into(),
            known: vec!["LlamaForCausalLM", "OPTForCausalLM"],
        };
        let unknown = Failure::from(unknown);
        assert_eq!(unknown.exit.code(), 3);
        assert!(unknown.causes[0].contains("LlamasForCausalLM"));
        let help = "2 classes are supported: the most similar is LlamaForCausalLM; docs/convert.md lists them";
        assert_eq!(unknown.help.as_deref(), Some(help));
        assert_eq!(Failure::from(Error::Interrupted).exit.code(), 130);
    }
}

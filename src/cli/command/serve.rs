//! `thermocline serve`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::chat::dialogue::dialogue;
use crate::cli::args::ServeArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use crate::engine::EngineOptions;
use gguf::fault;
use hal::Bytes;
use runtime::{Opened, Runtime};
use scheduler::{Pooling, SchedulerOptions};
use serve::{LogSink, ServedModel, Server};

/// Interval between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Listens, loads the model, and serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// An address, TLS file or model that cannot be used; a failure of the server.
pub(crate) fn run(args: &ServeArgs, terminal: &Terminal) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let server = Server::bind(args.config(sink(terminal)))?;
    let urls = server.urls().join(", ");
    if server.is_public() && args.api_key.is_empty() {
        terminal.note(
            "other machines can connect and no API key is set: anyone on the network can use this server; set --api-key, or --host 127.0.0.1",
        );
    }
    terminal.note(&format!("listening on {urls}; loading the model"));
    let handle = server.handle();
    let serving = thread::Builder::new().name("serve".to_owned()).spawn(move || server.run());
    let serving = serving.map_err(|e| {
        Failure::new(Exit::Failed, "cannot start a thread for the server").caused_by(&e)
    })?;
    // While the model loads, there are no requests to finish, so a signal exits at once.
    let served = {
        let loading = ExitOnSignal::watch(&interrupt);
        let served = load(args, terminal);
        loading.stop();
        served
    };
    let served = match served {
        Ok(served) => Arc::new(served),
        Err(failure) => {
            handle.failed(&failure.message);
            handle.stop();
            drop(serving.join());
            return Err(failure);
        }
    };
    handle.ready(Arc::clone(&served));
    let model = match &args.model.model {
        Some(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy(),
        None => "the built-in story model".into(),
    };
    let page = if args.webui { ", a page at /" } else { "" };
    terminal.note(&format!(
        "ready on {urls}; serving {model} to OpenAI's clients at /v1{page}; Ctrl-C stops"
    ));
    while !interrupt.is_set() && !serving.is_finished() {
        thread::sleep(POLL_INTERVAL);
    }
    terminal.note("stopping: open requests may finish; a second signal exits at once");
    handle.stop();
    served.stop(args.grace_period());
    match serving.join() {
        Ok(done) => Ok(done?),
        Err(_) => Err(Failure::new(Exit::Failed, "the server failed; please report it")),
    }
}

/// Opens and loads the model, and starts the scheduler.
fn load(args: &ServeArgs, terminal: &Terminal) -> Result<ServedModel, Failure> {
    let runtime = Runtime::new(args.options(), terminal.observer())?;
    let Opened { model, tokenizer } = runtime.open(args.model.model.as_deref())?;
    let defaults = args.defaults();
    if defaults.pooling == Some(Pooling::Rank) && model.rank.is_none() {
        return Err(Failure::new(Exit::BadModel, "this model has no head for ranking")
            .help("--reranking needs a ranking model, such as Qwen3-Reranker"));
    }
    let dialogue = dialogue(&args.template, &model.file, &tokenizer, terminal)?;
    let placing = runtime.placing(&model);
    let n_ctx = runtime.context(&model, &placing);
    let settings = EngineOptions { placing, ..runtime.settings(&model, n_ctx) };
    let engine = runtime.load(&model, settings)?;
    let notes = terminal.clone();
    let options = SchedulerOptions {
        max_queued: args.max_queued as usize,
        cache_reuse: args.cache_prompt,
        slot_folder: args.slot_save_path.clone(),
        disk_cache: args.disk_cache()?,
        observer: Arc::new(move |notice| notes.note(&notice.to_string())),
        ..SchedulerOptions::default()
    };
    let others = runtime.machine().others.iter().map(|other| other.reserve());
    let reserves: Vec<Bytes> = [Bytes(0)].into_iter().chain(others).collect();
    ServedModel::start(engine, Arc::new(tokenizer), dialogue, defaults, options, &reserves)
        .map_err(|e| Failure::chain(Exit::Failed, &e))
}

/// Writes log lines to standard error; with `--log-disable`, drops them.
fn sink(terminal: &Terminal) -> LogSink {
    let terminal = terminal.clone();
    Arc::new(move |line: &str| terminal.print_log(line))
}

/// Exits the process on a signal while the model loads.
struct ExitOnSignal(Arc<AtomicBool>);

impl ExitOnSignal {
    fn watch(interrupt: &Interrupt) -> ExitOnSignal {
        let done = Arc::new(AtomicBool::new(false));
        let (interrupt, ended) = (interrupt.clone(), Arc::clone(&done));
        let watch = move || {
            while !ended.load(Ordering::Acquire) {
                if interrupt.is_set() {
                    fault::remove_unfinished();
                    std::process::exit(0);
                }
                thread::sleep(POLL_INTERVAL);
            }
        };
        // If the thread cannot be spawned, a second signal still exits.
        drop(thread::Builder::new().name("signals".to_owned()).spawn(watch));
        ExitOnSignal(done)
    }

    fn stop(self) {
        self.0.store(true, Ordering::Release);
    }
}

//! Writes traces as a file that Perfetto and chrome://tracing open.
//!
//! Chrome's format: an object with `traceEvents`, complete events (`X`) with a start and a duration
//! in microseconds, and metadata (`M`) that names rows. A process in the trace is an engine, and a
//! row is one of its devices. Events are written as they arrive, under a temporary name until the
//! file is complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use hal::Clock;
use serde_json::{Map, Value, json};

use crate::timeline::{Event, StepTrace, Work};
use gguf::PartFile;

/// A trace being written.
#[derive(Debug)]
pub struct TraceFile {
    /// `None` once the trace is finished.
    out: Option<Output>,
    /// The origin of all times.
    origin: Instant,
    n_events: usize,
    n_steps: usize,
    n_processes: usize,
    /// The clock of each row, by the row's name.
    clocks: BTreeMap<String, &'static str>,
    devices: Vec<String>,
    /// The first error; nothing is written after it.
    failed: Option<io::Error>,
}

impl TraceFile {
    /// Creates a trace, which is at `path` once it is finished.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(path: &Path) -> io::Result<TraceFile> {
        let mut out = Output::create(path)?;
        out.write_all(b"{\"traceEvents\": [")?;
        Ok(TraceFile {
            out: Some(out),
            origin: Instant::now(),
            n_events: 0,
            n_steps: 0,
            n_processes: 0,
            clocks: BTreeMap::new(),
            devices: Vec::new(),
            failed: None,
        })
    }

    /// Begins the events of an engine called `name`. `devices` has the name of each device and the
    /// description of its driver.
    pub fn engine(&mut self, name: &str, devices: &[(String, String)]) {
        self.n_processes += 1;
        self.meta("process_name", 0, &json!({ "name": name }));
        for (row, (device, description)) in devices.iter().enumerate() {
            self.meta("thread_name", row, &json!({ "name": format!("{device}: {description}") }));
            self.meta("thread_sort_index", row, &json!({ "sort_index": row }));
        }
        self.devices = devices.iter().map(|(name, _)| name.clone()).collect();
    }

    fn meta(&mut self, name: &str, row: usize, args: &Value) {
        let process = self.n_processes;
        self.add(&json!({ "ph": "M", "pid": process, "tid": row, "name": name, "args": args }));
    }

    /// Writes the events of a step.
    pub fn step(&mut self, step: &StepTrace<'_>) {
        self.n_steps += 1;
        for event in step.events {
            self.event(event, step.n_tokens);
        }
    }

    fn event(&mut self, event: &Event, n_tokens: usize) {
        let Event { device, work, last, begin, end, clock } = *event;
        if let Some(name) = self.devices.get(device) {
            self.clocks.insert(name.clone(), describe(clock));
        }
        let [begin, end] =
            [begin, end].map(|at| at.saturating_duration_since(self.origin).as_nanos());
        let mut args = Map::new();
        args.insert("step".to_owned(), self.n_steps.into());
        args.insert("tokens".to_owned(), n_tokens.into());
        if let Some(layer) = work.layer().filter(|_| work == last) {
            args.insert("layer".to_owned(), layer.into());
        }
        let name = if work == last { work.to_string() } else { format!("{work} to {last}") };
        let category = match work {
            Work::HandOff(_) | Work::Copy | Work::Read(_) => "transfer",
            Work::Embedding
            | Work::Attention(_)
            | Work::Neurons(_)
            | Work::Merge(_)
            | Work::Head => "compute",
        };
        // Times are whole nanoseconds, so that rounding does not make events overlap in the file.
        let times = [begin, end.saturating_sub(begin)].map(|ns| ns as f64 / 1e3);
        let (pid, [ts, dur]) = (self.n_processes, times);
        self.add(&json!({
            "ph": "X", "pid": pid, "tid": device, "name": name, "cat": category, "ts": ts, "dur": dur, "args": args,
        }));
    }

    fn add(&mut self, event: &Value) {
        let separator = if self.n_events == 0 { "\n" } else { ",\n" };
        self.n_events += 1;
        if let (Some(out), None) = (&mut self.out, &self.failed) {
            self.failed = write!(out, "{separator}{event}").err();
        }
    }

    /// Completes the file, renames it, and returns the number of steps. A trace without steps is
    /// removed.
    ///
    /// # Errors
    /// The first write error.
    pub fn finish(&mut self) -> io::Result<usize> {
        let Some(mut out) = self.out.take() else { return Ok(self.n_steps) };
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.n_steps == 0 => Ok(0),
            None => {
                let about = json!({ "engine": "thermocline", "version": env!("CARGO_PKG_VERSION"), "clocks": self.clocks });
                write!(out, "\n],\n\"displayTimeUnit\": \"ms\",\n\"otherData\": {about}}}\n")?;
                out.commit()?;
                Ok(self.n_steps)
            }
        }
    }
}

/// The output: a temporary file until the trace is complete, or the target itself if it is not a
/// regular file, such as a pipe.
#[derive(Debug)]
enum Output {
    Part(PartFile),
    Stream(BufWriter<File>),
}

impl Output {
    fn create(path: &Path) -> io::Result<Output> {
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(Output::Stream(BufWriter::new(File::options().write(true).open(path)?)));
        }
        // Resolves a symbolic link, so that the link stays and its target is written.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        PartFile::create(&target).map(Output::Part).map_err(io::Error::other)
    }

    fn commit(self) -> io::Result<()> {
        match self {
            Output::Part(part) => part.commit().map_err(io::Error::other),
            Output::Stream(mut stream) => stream.flush(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Part(part) => part.write(bytes),
            Output::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Part(part) => part.flush(),
            Output::Stream(stream) => stream.flush(),
        }
    }
}

fn describe(clock: Clock) -> &'static str {
    match clock {
        Clock::Host => "the host's clock",
        Clock::Device => {
            "the device's timestamps, aligned with the host's clock at each run; the error is less than the time of a hand-off"
        }
        Clock::Observed => {
            "the host's clock, from the submission to when the host noticed the end, since the device has no timestamps; spans look longer than they are"
        }
    }
}

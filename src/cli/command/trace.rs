//! Writes the timeline of `--trace FILE`.

use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::engine::Engine;
use crate::trace::TraceFile;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The trace file, if requested.
#[derive(Debug)]
pub(crate) struct Trace(Option<(PathBuf, Arc<Mutex<TraceFile>>)>);

impl Trace {
    /// Starts a trace that [`Trace::finish`] completes; without `path`, nothing is recorded.
    ///
    /// # Errors
    /// The file cannot be written. Call this before loading a model, so that the error comes early.
    pub(crate) fn open(path: Option<&Path>) -> Result<Trace, Failure> {
        let Some(path) = path else { return Ok(Trace(None)) };
        let file = TraceFile::create(path).map_err(|error| write_failure(path, &error))?;
        Ok(Trace(Some((path.to_owned(), Arc::new(Mutex::new(file))))))
    }

    /// Records all further steps of `engine`.
    pub(crate) fn watch(&self, engine: &mut Engine, name: &str) {
        let Some((_, file)) = &self.0 else { return };
        let infos = engine.devices().iter().map(|device| device.info());
        let devices: Vec<_> = infos.map(|i| (i.name.clone(), i.described())).collect();
        file.lock().unwrap_or_else(PoisonError::into_inner).engine(name, &devices);
        let file = Arc::clone(file);
        engine.set_tracer(Some(Box::new(move |step| {
            file.lock().unwrap_or_else(PoisonError::into_inner).step(step);
        })));
    }

    /// Completes the file; call this even if the run failed.
    ///
    /// # Errors
    /// The first write error.
    pub(crate) fn finish(&self, terminal: &Terminal) -> Result<(), Failure> {
        let Some((path, file)) = &self.0 else { return Ok(()) };
        let finished = file.lock().unwrap_or_else(PoisonError::into_inner).finish();
        match finished.map_err(|error| write_failure(path, &error))? {
            0 => terminal.note("no step was run, so no trace was written"),
            1 => terminal.note(&format!("1 step is in the trace '{}'", path.display())),
            n => terminal.note(&format!("{n} steps are in the trace '{}'", path.display())),
        }
        Ok(())
    }
}

fn write_failure(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot write the trace to '{}'", path.display());
    Failure::new(Exit::Failed, message).caused_by(error)
}

//! Prints the runtime's notices, with the flags that affect them, and its progress.

use std::collections::HashSet;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use gguf::fault;
use hal::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use runtime::{DiskNotice, Notice, Observer, RepackNotice, SharedObserver, SparsityNotice, Task};

use super::draw_target::draw_target;
use super::failure::Exit;
use super::interrupt::Interrupt;
use super::progress;
use super::terminal::Terminal;

/// Minimum size for a progress bar. Smaller models load too fast to read one.
const BAR_FROM: Bytes = Bytes(64 << 20);

/// A progress bar over `size` bytes; hidden if the terminal shows no progress or `size` is below
/// [`BAR_FROM`].
pub(crate) fn bar(what: &'static str, size: Bytes, terminal: &Terminal) -> ProgressBar {
    if !terminal.shows_progress() || size < BAR_FROM {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(size.0), draw_target());
    match ProgressStyle::with_template("{prefix} {bar:30} {binary_bytes}/{binary_total_bytes}") {
        Ok(style) => bar.with_style(style).with_prefix(what),
        Err(_) => bar,
    }
}

struct Printer {
    terminal: Terminal,
    interrupt: Option<Interrupt>,
    /// Whether Ctrl-C ends the process while weights are read, merged and loaded.
    exits: bool,
    bar: Mutex<Option<(Task, ProgressBar)>>,
    /// What was printed: `bench` opens a runtime for each row, with the same notices.
    printed: Mutex<HashSet<String>>,
}

impl Terminal {
    pub(crate) fn observer(&self) -> SharedObserver {
        self.printer(None, false)
    }

    /// As [`Terminal::observer`]; Ctrl-C stops repacking.
    pub(crate) fn stoppable_observer(&self, interrupt: &Interrupt) -> SharedObserver {
        self.printer(Some(interrupt), false)
    }

    /// As [`Terminal::stoppable_observer`]; Ctrl-C during loading ends the process, which must not
    /// have begun any output.
    pub(crate) fn exiting_observer(&self, interrupt: &Interrupt) -> SharedObserver {
        self.printer(Some(interrupt), true)
    }

    fn printer(&self, interrupt: Option<&Interrupt>, exits: bool) -> SharedObserver {
        let (bar, printed) = (Mutex::default(), Mutex::default());
        let interrupt = interrupt.cloned();
        Arc::new(Printer { terminal: self.clone(), interrupt, exits, bar, printed })
    }
}

impl Observer for Printer {
    fn notice(&self, notice: &Notice) {
        let text = text(notice);
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        if !printed.insert(text.clone()) {
            return;
        }
        let print = || {
            if notice.is_detail() { self.terminal.detail(&text) } else { self.terminal.note(&text) }
        };
        let bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        match &*bar {
            Some((_, bar)) => bar.suspend(print),
            None => print(),
        }
    }

    fn progress(&self, task: Task, done: Bytes, total: Bytes) {
        let mut shown = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        // Kernels are compiled while they are tested and while weights are loaded.
        let is_shown = shown.as_ref().is_some_and(|(shown, _)| *shown == task);
        if task == Task::Compile && shown.is_some() && !is_shown {
            return;
        }
        if done >= total {
            if let Some((_, bar)) = shown.take() {
                bar.finish_and_clear();
            }
            return;
        }
        let start = || {
            let timer = |what| progress::timer(&self.terminal, what);
            let bar = |what| bar(what, total, &self.terminal);
            let bar = match task {
                Task::Tune => timer("measuring the memory"),
                Task::Compile => timer("compiling kernels"),
                Task::Test => timer("testing the GPU's kernels"),
                Task::Read => bar("reading"),
                Task::Merge => bar("merging"),
                Task::Load => bar("loading"),
                Task::Repack => bar("repacking"),
            };
            (task, bar)
        };
        let (_, bar) = shown.get_or_insert_with(start);
        match task {
            Task::Tune | Task::Compile => return,
            Task::Test => {}
            Task::Read | Task::Merge | Task::Load | Task::Repack => {
                bar.set_length(total.0);
                bar.set_position(done.0);
            }
        }
        // Nothing is written to files while kernels are tested, or weights read, merged and loaded.
        if self.exits && task != Task::Repack && self.is_stopped() {
            bar.finish_and_clear();
            fault::remove_unfinished();
            process::exit(i32::from(Exit::Interrupted.code()));
        }
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::is_set)
    }
}

/// A notice as text, with the flags that affect it.
#[allow(clippy::wildcard_enum_match_arm)] // most notices concern no flag
fn text(notice: &Notice) -> String {
    let hint = match notice {
        Notice::Context { .. } => {
            "-c sets the context; a larger context leaves less device memory for neurons"
        }
        Notice::NoDevice { expected_by, .. } if expected_by.is_empty() => {
            "`thermocline doctor` reports what is missing"
        }
        Notice::NoMemoryReport { .. } => "--vram-budget sets a limit",
        Notice::DeviceFull(_) => "--vram-budget sets how much of it to use",
        Notice::NoProfile => "`thermocline profile` collects a profile",
        Notice::ProfileRefused { .. } => "`thermocline profile --restart` replaces it",
        Notice::PredictorRefused { .. } => "`thermocline predictor --restart` replaces it",
        Notice::LargerThanMemory { .. } => "--ram-check rejects such a model",
        Notice::LittleMemory { .. } => "a smaller context (-c) needs less",
        Notice::Sparsity(
            SparsityNotice::TrainedPredictor { .. } | SparsityNotice::Thresholds { .. },
        ) => "`perplexity --against dense` measures the loss",
        Notice::Sparsity(SparsityNotice::Predictor { .. }) => {
            "--sparsity exact keeps the exact result"
        }
        Notice::Disk(DiskNotice::Tiers { .. }) => "--ram-budget sets the memory",
        Notice::Repack(RepackNotice::Writing { .. }) => "--repack-cache off disables it",
        Notice::WholeLayersIgnored => {
            return "--n-gpu-layers has no effect: --disable-gpu-index keeps the neurons of all layers on the CPU"
                .to_owned();
        }
        Notice::BudgetReduced { .. } => return format!("--vram-budget: {notice}"),
        Notice::SplitFileIsMapped => return format!("{notice}, despite --no-mmap"),
        Notice::Repack(RepackNotice::Off { cost }) => return format!("--no-repack: {cost}"),
        Notice::Sparsity(SparsityNotice::ThresholdIgnored { .. }) => {
            return format!("--sparse-threshold: {notice}");
        }
        _ => return notice.to_string(),
    };
    format!("{notice}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_name_the_flags_that_change_them() {
        let context = Notice::Context { n_ctx: 64, n_ctx_train: 128, shorter: Some((32, 0.25)) };
        let shown = text(&context);
        assert!(shown.contains("32 would decode 25 % faster; -c sets the context"), "{shown}");
        let (reason, flags) = ("no driver".to_owned(), vec!["--main-gpu"]);
        let shown = text(&Notice::NoDevice { reason, expected_by: flags });
        assert!(shown.starts_with("--main-gpu has no effect: no driver"), "{shown}");
    }
}

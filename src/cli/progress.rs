//! Progress on a terminal, for work that takes more than a second.

use super::draw_target::draw_target;
use super::terminal::Terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::cell::RefCell;
use std::fmt::Write;
use std::ops::Range;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Interval between two updates of the elapsed time.
const TICK: Duration = Duration::from_millis(200);

/// Time after which a [`DelayedBar`] appears.
const DELAY: Duration = Duration::from_millis(700);

const SHARE: &str = "{prefix} {bar:20} {percent:>3} %, {time}  {msg}";
const TIMER: &str = "{prefix}, {time}";

fn counting(unit: &str) -> String {
    format!("{{prefix}} {{bar:20}} {{pos}}/{{len}} {unit}, {{time}}{{msg}}")
}

/// A bar over units such as `tokens`, with the time that has passed, the time that is left, and a
/// message; hidden if the terminal shows no progress. `range` is the units that are complete and all units.
pub(crate) fn counter(
    terminal: &Terminal,
    what: &str,
    range: Range<usize>,
    unit: &str,
) -> ProgressBar {
    shown(terminal, what, range, &counting(unit))
}

/// As [`counter`] for shares of a whole, with a message beside the bar.
pub(crate) fn share(terminal: &Terminal, what: &str, range: Range<usize>) -> ProgressBar {
    shown(terminal, what, range, SHARE)
}

/// As [`counter`] for work whose length is not known: only the time that has passed.
pub(crate) fn timer(terminal: &Terminal, what: &str) -> ProgressBar {
    shown(terminal, what, 0..0, TIMER)
}

/// A bar for work that usually ends at once: it appears only if the work takes longer. Dropping it
/// removes it.
#[derive(Debug)]
pub(crate) struct DelayedBar {
    bar: ProgressBar,
    /// Dropped when the work ends, and the thread that waits for that or shows the bar.
    delay: Option<(Sender<()>, JoinHandle<()>)>,
}

impl DelayedBar {
    /// As [`counter`].
    pub(crate) fn counter(
        terminal: &Terminal,
        what: &str,
        range: Range<usize>,
        unit: &str,
    ) -> DelayedBar {
        if !terminal.shows_progress() {
            return DelayedBar { bar: ProgressBar::hidden(), delay: None };
        }
        let hidden = ProgressDrawTarget::hidden();
        let bar = styled(hidden, what, range, &counting(unit));
        let (working, ended) = mpsc::channel::<()>();
        let later = bar.clone();
        let show = move || {
            if ended.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
                later.set_draw_target(draw_target());
                tick(&later, TICK);
            }
        };
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(show);
        // Without a thread the bar stays hidden.
        DelayedBar { bar, delay: thread.ok().map(|thread| (working, thread)) }
    }

    pub(crate) fn set_position(&self, done: usize) {
        self.bar.set_position(done as u64);
    }
}

impl Drop for DelayedBar {
    fn drop(&mut self) {
        if let Some((working, thread)) = self.delay.take() {
            drop(working);
            // The thread does not panic.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// The bar of a prompt, which text on the same terminal replaces.
#[derive(Debug)]
pub(crate) struct PromptBar(RefCell<Option<DelayedBar>>);

impl PromptBar {
    pub(crate) fn new(n_tokens: usize, terminal: &Terminal) -> PromptBar {
        let bar = DelayedBar::counter(terminal, "reading the prompt", 0..n_tokens, "tokens");
        PromptBar(RefCell::new(Some(bar)))
    }

    pub(crate) fn set_position(&self, n_tokens: usize) {
        self.0.borrow().iter().for_each(|bar| bar.set_position(n_tokens));
    }

    pub(crate) fn remove(&self) {
        self.0.take();
    }
}

fn shown(terminal: &Terminal, what: &str, range: Range<usize>, template: &str) -> ProgressBar {
    if !terminal.shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = styled(draw_target(), what, range, template);
    tick(&bar, TICK);
    bar
}

/// Lets the time on a bar pass. indicatif panics if the system refuses its thread, so another one is
/// tried first.
pub(crate) fn tick(bar: &ProgressBar, interval: Duration) {
    if thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok()) {
        bar.enable_steady_tick(interval);
    }
}

fn styled(
    target: ProgressDrawTarget,
    what: &str,
    range: Range<usize>,
    template: &str,
) -> ProgressBar {
    let Range { start, end } = range;
    let bar = ProgressBar::with_draw_target(Some(end as u64), target);
    let times = move |state: &ProgressState, out: &mut dyn Write| {
        let done = state.pos().saturating_sub(start as u64);
        let left = (end as u64).saturating_sub(state.pos());
        let _ = out.write_str(&times(state.elapsed(), done, left));
    };
    let bar = match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.with_key("time", times)),
        Err(_) => bar,
    };
    bar.with_prefix(what.to_owned()).with_position(start as u64)
}

/// The time that has passed, and the time that `left` units will take if they are as fast as the
/// `done` ones.
fn times(elapsed: Duration, done: u64, left: u64) -> String {
    let passed = time(elapsed.as_secs());
    match (done, left) {
        (0, _) | (_, 0) => passed,
        _ => {
            let seconds = elapsed.as_secs_f64() * left as f64 / done as f64;
            format!("{passed}, {} left", time(seconds.ceil() as u64))
        }
    }
}

fn time(seconds: u64) -> String {
    match (seconds / 3600, seconds % 3600 / 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (hours, minutes) => format!("{hours}h {minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_valid() {
        for template in [&counting("tokens"), SHARE, TIMER] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
        assert_eq!([5, 65, 7260].map(time), ["5s", "1m 5s", "2h 1m"]);
        let shown = [(0, 10), (2, 3), (7, 0)]
            .map(|(done, left)| times(Duration::from_secs(40), done, left));
        assert_eq!(shown, ["40s", "40s, 1m 0s left", "40s"]);
    }
}

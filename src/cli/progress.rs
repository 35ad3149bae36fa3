//! Progress on a terminal, for work that takes more than a second.

use super::terminal::Terminal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

/// Interval between two updates of the elapsed time.
const TICK: Duration = Duration::from_millis(200);

const SHARE: &str = "{prefix} {bar:30} {percent:>3} %, {time}  {msg}";
const TIMER: &str = "{prefix}, {time}";

fn counting(unit: &str) -> String {
    format!("{{prefix}} {{bar:30}} {{pos}}/{{len}} {unit}, {{time}}")
}

/// A bar over units such as `tokens`, with the time that has passed and the time that is left;
/// hidden if the terminal shows no progress. `range` is the units that are complete and all units.
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

fn shown(terminal: &Terminal, what: &str, range: Range<usize>, template: &str) -> ProgressBar {
    if !terminal.shows_progress() {
        return ProgressBar::hidden();
    }
    let Range { start, end } = range;
    let bar = ProgressBar::with_draw_target(Some(end as u64), ProgressDrawTarget::stderr());
    let times = move |state: &ProgressState, out: &mut dyn Write| {
        let done = state.pos().saturating_sub(start as u64);
        let left = (end as u64).saturating_sub(state.pos());
        let _ = out.write_str(&times(state.elapsed(), done, left));
    };
    let bar = match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.with_key("time", times)),
        Err(_) => bar,
    };
    let bar = bar.with_prefix(what.to_owned()).with_position(start as u64);
    bar.enable_steady_tick(TICK);
    bar
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

//! How a download is shown: a bar on a terminal, otherwise a line now and then.

use crate::cli::draw_target::draw_target;
use crate::cli::progress::tick;
use crate::cli::terminal::{Terminal, printable};
use hub::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Bytes whose check takes long enough to mention it.
const LONG_CHECK: u64 = 1_000_000_000;

/// Shows a download on standard error.
#[derive(Debug)]
pub(crate) struct DownloadBar {
    terminal: Terminal,
    bar: ProgressBar,
    /// Bytes of all files.
    total: u64,
    /// Bytes of the files that are complete.
    before: u64,
    name: String,
    size: Option<u64>,
    /// Bytes of the current file on disk, and bytes that arrived since the start.
    position: u64,
    arrived: u64,
    start: Instant,
    last_line: Instant,
}

/// Bytes as the hub shows them, with a decimal unit.
pub(crate) fn shown_size(bytes: u64) -> String {
    let units = ["kB", "MB", "GB", "TB"];
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1e3;
        unit += 1;
    }
    match bytes {
        0..1000 => format!("{bytes} bytes"),
        _ if value < 9.995 => format!("{value:.2} {}", units[unit]),
        _ if value < 99.95 => format!("{value:.1} {}", units[unit]),
        _ => format!("{value:.0} {}", units[unit]),
    }
}

fn shown_time(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match (seconds / 3600, seconds % 3600 / 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

impl DownloadBar {
    pub(crate) fn new(terminal: &Terminal) -> Self {
        Self {
            terminal: terminal.clone(),
            bar: ProgressBar::hidden(),
            total: 0,
            before: 0,
            name: String::new(),
            size: None,
            position: 0,
            arrived: 0,
            start: Instant::now(),
            last_line: Instant::now(),
        }
    }

    /// Removes the bar from the terminal.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Speed and remaining time. indicatif's own figures count bytes that were on disk already.
    fn speed(&self, done: u64) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        if self.arrived == 0 || seconds < 0.5 {
            return String::new();
        }
        let speed = self.arrived as f64 / seconds;
        let left = self.total.saturating_sub(done) as f64 / speed;
        format!("{}/s  {} left", shown_size(speed as u64), shown_time(left))
    }

    fn note(&self, text: &str) {
        self.bar.suspend(|| self.terminal.note(text));
    }
}

impl Progress for DownloadBar {
    fn begin(&mut self, files: usize, total: u64, present: u64) {
        let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
        let rest = if present > 0 {
            format!("; {} are on disk already", shown_size(present))
        } else {
            String::new()
        };
        let size = if total > 0 { format!(", {}", shown_size(total)) } else { String::new() };
        self.note(&format!("downloading {files}{size}{rest}"));
        (self.total, self.before, self.arrived, self.position) = (total, 0, 0, 0);
        self.start = Instant::now();
        if !self.terminal.shows_progress() {
            return;
        }
        self.clear();
        let bar = ProgressBar::with_draw_target(Some(total), draw_target());
        let style = "{bar:20} {percent:>3} %  {decimal_bytes}/{decimal_total_bytes}  {msg}";
        self.bar = match ProgressStyle::with_template(style) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        self.bar.set_position(present);
        tick(&self.bar, Duration::from_millis(500));
    }

    fn check(&mut self, checked: u64, present: u64) {
        let begins = self.position == 0 || checked < self.position;
        if begins && !self.terminal.shows_progress() && present >= LONG_CHECK {
            self.note(&format!("checking {} that are on disk already", shown_size(present)));
        }
        self.position = checked;
        self.bar.set_position(self.before + checked);
        self.bar.set_message("checking the data on disk");
    }

    fn file(&mut self, name: &str, size: Option<u64>, present: u64) {
        (self.name, self.size) = (printable(name), size);
        self.last_line = Instant::now();
        if !self.terminal.shows_progress() {
            let from = if present > 0 { format!(" from byte {present}") } else { String::new() };
            self.note(&format!("downloading {}{from}", self.name));
        }
        self.position = present;
        self.position(present);
    }

    fn position(&mut self, bytes: u64) {
        let done = self.before + bytes;
        self.arrived += bytes.saturating_sub(self.position);
        self.position = bytes;
        if done > self.total {
            self.bar.set_length(done);
        }
        self.bar.set_position(done);
        if !self.bar.is_hidden() {
            self.bar.set_message(self.speed(done));
        }
        if !self.terminal.shows_progress() && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let of = self.size.map_or(String::new(), |size| format!(" of {}", shown_size(size)));
            self.note(&format!("{}: {}{of}", self.name, shown_size(bytes)));
        }
    }

    fn retry(&mut self, reason: &str, wait: Duration) {
        let when = match wait.as_secs_f64() {
            0.0 => "continuing".to_owned(),
            seconds => format!("trying again in {seconds:.1} s"),
        };
        self.note(&format!("{}: {}; {when}", self.name, printable(reason)));
    }

    fn wait(&mut self, name: &str) {
        self.note(&format!("another process downloads {}; waiting for it", printable(name)));
    }

    fn complete(&mut self, name: &str, verified: bool) {
        self.before += self.size.unwrap_or_default();
        self.position = 0;
        if !verified {
            self.note(&format!(
                "{}: the server states no checksum, so only the size was verified",
                printable(name)
            ));
        } else if !self.terminal.shows_progress() {
            self.note(&format!("{}: complete, checksum verified", printable(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_one_or_two_units() {
        let shown = [0.2, 59.0, 61.0, 7500.0].map(shown_time);
        assert_eq!(shown, ["1 s", "59 s", "1 min", "2 h 5 min"]);
    }

    #[test]
    fn sizes_have_three_digits() {
        let sizes = [0, 999, 1000, 12_340, 4_683_073_536, 999_600_000_000];
        let shown = sizes.map(shown_size);
        assert_eq!(shown, ["0 bytes", "999 bytes", "1.00 kB", "12.3 kB", "4.68 GB", "1.00 TB"]);
    }
}

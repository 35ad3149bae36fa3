//! The terminal that progress bars are drawn on.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use anstream::AutoStream;
use indicatif::{ProgressDrawTarget, TermLike};
use terminal_size::{Height, Width, terminal_size_of};

/// Draws per second.
const RATE: u8 = 20;

/// A draw target on standard error, which must be a terminal.
pub(crate) fn draw_target() -> ProgressDrawTarget {
    ProgressDrawTarget::term_like_with_hz(Box::new(UnpaddedTerminal::default()), RATE)
}

/// Standard error, without the blanks to which indicatif pads each bar: after a padded bar the
/// terminal echoes `^C` on the next line, and the bar would not be erased. What is written waits
/// for `flush`, so that a bar appears at once.
#[derive(Debug, Default)]
struct UnpaddedTerminal(Mutex<String>);

impl UnpaddedTerminal {
    fn push(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    /// Moves the cursor by `n` cells, by the control sequence that ends in `letter`.
    fn move_cursor(&self, n: usize, letter: char) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.push(&format!("\x1b[{n}{letter}")) }
    }
}

impl TermLike for UnpaddedTerminal {
    fn width(&self) -> u16 {
        terminal_size_of(io::stderr()).map_or(80, |(Width(width), _)| width).max(1)
    }

    fn height(&self) -> u16 {
        terminal_size_of(io::stderr()).map_or(24, |(_, Height(height))| height)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.push(text)?;
        self.push("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        if text.bytes().all(|byte| byte == b' ') { Ok(()) } else { self.push(text) }
    }

    fn clear_line(&self) -> io::Result<()> {
        self.push("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let text = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // Makes consoles of Windows interpret the control sequences.
        let mut stderr = AutoStream::always(io::stderr());
        stderr.write_all(text.as_bytes())?;
        stderr.flush()
    }
}

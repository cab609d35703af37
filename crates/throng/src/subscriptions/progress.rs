//! How far an import is, on stderr: one line that changes on a terminal, and one line now and then
//! elsewhere.

use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use throng_units::format::{counted, rate};

use crate::terminal;

/// How often the line of a terminal changes.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);

/// How often a log gets a line.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of one pass over a file.
#[derive(Debug)]
pub(super) struct ImportProgress {
    verb: &'static str,
    /// The size of the file, if it is known and not 0.
    size: Option<u64>,
    bytes: u64,
    lines: u64,
    begin: Instant,
    shown: Instant,
    is_terminal: bool,
}

impl ImportProgress {
    /// `verb` says what is done with lines: `checked`.
    pub(super) fn new(verb: &'static str, size: Option<u64>) -> ImportProgress {
        let (now, is_terminal) = (Instant::now(), io::stderr().is_terminal());
        let size = size.filter(|size| *size > 0);
        ImportProgress { verb, size, bytes: 0, lines: 0, begin: now, shown: now, is_terminal }
    }

    /// Counts what is done, and shows it if it is time to.
    pub(super) fn advance(&mut self, lines: usize, bytes: usize) {
        self.lines += lines as u64;
        self.bytes += bytes as u64;
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        if self.shown.elapsed() < interval {
            return;
        }
        self.shown = Instant::now();
        let text = self.text(self.begin.elapsed());
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        } else {
            terminal::print_note(&text);
        }
    }

    /// Makes room on a terminal for other output.
    pub(super) fn clear(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn text(&self, elapsed: Duration) -> String {
        let lines = counted(self.lines, "line", "lines");
        let share = self.size.map(|size| format!(", {}%", self.bytes.min(size) * 100 / size));
        let per_second = rate(self.lines as f64 / elapsed.as_secs_f64().max(0.001));
        format!("{lines} {}{} ({per_second})", self.verb, share.unwrap_or_default())
    }
}

impl Drop for ImportProgress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_short_line() {
        let mut progress = ImportProgress::new("applied", Some(300));
        progress.is_terminal = false;
        progress.advance(1, 100);
        assert_eq!(progress.text(Duration::from_secs(1)), "1 line applied, 33% (1.00/s)");
        progress.advance(1999, 500);
        assert_eq!(progress.text(Duration::from_secs(2)), "2,000 lines applied, 100% (1,000/s)");
        progress.size = None;
        assert_eq!(progress.text(Duration::from_secs(2)), "2,000 lines applied (1,000/s)");
    }
}

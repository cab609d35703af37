//! Errors of the command, and their exit codes.

use throng_units::paint::{Ink, Paint, sanitized};

/// The command line is not valid.
pub(super) const EXIT_USAGE: u8 = 64;
/// The plan file is invalid.
pub(super) const EXIT_PLAN: u8 = 78;
/// An assertion does not hold, or something failed.
pub(super) const EXIT_FAILED: u8 = 1;

/// An error: lines to print, and the exit code.
#[derive(Debug)]
pub(super) struct CommandError {
    pub(super) lines: Vec<String>,
    pub(super) code: u8,
}

impl CommandError {
    pub(super) fn new(code: u8, line: impl ToString) -> CommandError {
        CommandError { lines: vec![line.to_string()], code }
    }
}

/// Prints an error, which may be followed by commands that help, one per line.
pub(super) fn print_error(message: &str) {
    let paint = Paint::on(&std::io::stderr());
    let error = paint.ink(Ink::BAD, "error:");
    let mut lines = message.lines().map(sanitized);
    eprintln!("{error} {}", lines.next().unwrap_or_default());
    lines.for_each(|line| eprintln!("{line}"));
}

//! Prints to the terminal, or to the pipe or file in its place.

use std::io::{self, Write as _};

use throng_units::paint::{Ink, Paint, sanitized};

/// Prints to standard output. Errors are ignored: they mean that the reader has closed the pipe.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints an error to standard error. Its further lines may be commands that help.
pub fn print_error(message: &str) {
    let error = Paint::on(&io::stderr()).ink(Ink::BAD, "error:");
    let mut lines = message.lines().map(sanitized);
    eprintln!("{error} {}", lines.next().unwrap_or_default());
    lines.for_each(|line| eprintln!("{line}"));
}

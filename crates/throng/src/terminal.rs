//! Errors and notes of commands, on stderr.

use std::io::{self, Write};

use throng_units::paint::{Ink, Paint};

/// Prints an error of one sentence.
pub fn print_error(message: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{} {message}", paint.ink(Ink::BAD, "error:"));
}

/// Prints a note, which is not part of the output.
pub fn print_note(message: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{}", paint.ink(Ink::Dim, format_args!("note: {message}")));
}

/// Turns the error of a closed pipe into success: the reader has seen enough.
pub fn ignore_closed_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

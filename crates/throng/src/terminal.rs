//! Output of commands on stdout, their errors and notes on stderr.

use std::io::{self, Write};

use throng_units::paint::{Ink, Paint};

/// Exit code for a wrong command line.
pub(crate) const EXIT_USAGE: u8 = 64;
pub(crate) const EXIT_CONFIGURATION: u8 = 78;
/// Exit code for every other error.
pub(crate) const EXIT_RUNTIME: u8 = 1;

/// Prints the output of a command. A closed pipe is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    ignore_closed_pipe(io::stdout().write_all(text.as_bytes()))
}

/// Prints an error of one sentence.
pub(crate) fn print_error(message: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{} {message}", paint.ink(Ink::BAD, "error:"));
}

/// Prints a note, which is not part of the output.
pub(crate) fn print_note(message: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{}", paint.ink(Ink::Dim, format_args!("note: {message}")));
}

/// Turns the error of a closed pipe into success: the reader has seen enough.
pub(crate) fn ignore_closed_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

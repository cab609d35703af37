//! What commands say beside their output.

use std::io::{self, Write};

use throng_units::paint::{Ink, Paint};

/// Says on stderr, in one sentence, what went wrong.
pub fn complain(sentence: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{} {sentence}", paint.ink(Ink::BAD, "error:"));
}

/// Says something on stderr that is not part of the output.
pub fn remark(sentence: &str) {
    let paint = Paint::on(&io::stderr());
    let _ = writeln!(io::stderr(), "{}", paint.ink(Ink::Dim, format_args!("note: {sentence}")));
}

/// A reader that has seen enough and closed its end is no error.
pub fn ignore_closed_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

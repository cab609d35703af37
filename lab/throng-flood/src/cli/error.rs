//! Errors of the command, and their exit codes.

use throng_units::Invalid;

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

impl From<Invalid> for CommandError {
    fn from(error: Invalid) -> CommandError {
        CommandError::new(EXIT_FAILED, error)
    }
}

//! The command `throng flood`.
//!
//! | exit code | |
//! |---|---|
//! | 0 | the run is complete, and every assertion holds |
//! | 1 | an assertion does not hold, the run failed, or a result could not be written |
//! | 64 | wrong usage |
//! | 78 | the plan file is invalid |
//! | 130, 143 | ended by Ctrl-C or `SIGTERM`, with a report of what was done by then |

mod agents;
mod allowance;
mod arguments;
mod interrupts;
mod plan;
mod run;

use std::process::ExitCode;

use throng_units::paint::Paint;

pub use interrupts::{Interrupts, NoSignals, interrupts};

pub use arguments::{Agent, Arguments, Command, Compare, Run};

/// Wrong usage.
const EXIT_USAGE: u8 = 64;
/// The plan file is invalid.
const EXIT_PLAN: u8 = 78;
/// An assertion does not hold, or something failed.
const EXIT_FAILED: u8 = 1;

/// An error: lines to print, and the exit code.
#[derive(Debug)]
struct Failure {
    lines: Vec<String>,
    code: u8,
}

impl Failure {
    fn new(code: u8, line: impl ToString) -> Failure {
        Failure { lines: vec![line.to_string()], code }
    }
}

/// Runs the command.
pub fn run(arguments: Arguments) -> ExitCode {
    let done = match arguments.command {
        Some(Command::Compare(compare)) => run::compare(&compare),
        Some(Command::Agent(agent)) => agents::agent(&agent),
        None => run::run(&arguments.run),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            for line in &failure.lines {
                complain(line);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints an error, which may be followed by commands that help, one per line.
fn complain(message: &str) {
    let paint = Paint::on(&std::io::stderr());
    let error = paint.ink(throng_units::paint::Ink::BAD, "error:");
    let mut lines = message.lines().map(throng_units::paint::sanitized);
    eprintln!("{error} {}", lines.next().unwrap_or_default());
    lines.for_each(|line| eprintln!("{line}"));
}

#[cfg(test)]
mod tests;

//! `throng flood`: from the command line to the report.
//!
//! | exit code | |
//! |---|---|
//! | 0 | the run was done and every assertion holds |
//! | 1 | an assertion does not hold, the run could not be done, or a result could not be written |
//! | 64 | the command line is wrong |
//! | 78 | the plan's file is wrong |
//! | 130, 143 | Ctrl-C, or `SIGTERM`, ended it; there is a report of what was done by then |

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

/// The command line is wrong.
const EXIT_USAGE: u8 = 64;
/// The plan's file is wrong.
const EXIT_PLAN: u8 = 78;
/// Something did not hold or could not be done.
const EXIT_FAILED: u8 = 1;

/// Why there is nothing to show: what to say, a line each, and the exit code.
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

/// Does what the command line asks for.
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

/// One sentence to standard error, perhaps with commands that help, a line each.
fn complain(message: &str) {
    let paint = Paint::on(&std::io::stderr());
    let error = paint.ink(throng_units::paint::Ink::BAD, "error:");
    let mut lines = message.lines().map(throng_units::paint::sanitized);
    eprintln!("{error} {}", lines.next().unwrap_or_default());
    lines.for_each(|line| eprintln!("{line}"));
}

#[cfg(test)]
mod tests;

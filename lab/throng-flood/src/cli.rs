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
mod error;
mod interrupts;
mod plan;
mod run;

use std::process::ExitCode;

use arguments::FloodCommand;
use error::EXIT_USAGE;
use throng_report::terminal::print_error;

pub use arguments::Arguments;
pub use interrupts::{Interrupts, interrupts};

/// The command line of this process. Prints an error of it, or the help it asks for, and returns
/// the exit code. A package's call for the documents of `P` is answered here, too.
pub fn parse<P: clap::Parser>() -> Result<P, ExitCode> {
    if let Some(written) = throng_manual::write_documents_if_asked(P::command) {
        return Err(written.map_or_else(
            |error| {
                print_error(&format!("cannot write the documents: {error}"));
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        ));
    }
    P::try_parse().map_err(|error| {
        // An error means that the terminal is closed.
        let _ = error.print();
        if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS }
    })
}

/// Runs the command.
pub fn run(arguments: Arguments) -> ExitCode {
    let done = match arguments.command {
        Some(FloodCommand::Compare(compare)) => run::compare(&compare),
        Some(FloodCommand::Agent(agent)) => agents::agent(&agent),
        None => run::run(&arguments.run),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            error.lines.iter().for_each(|line| print_error(line));
            ExitCode::from(error.code)
        }
    }
}

#[cfg(test)]
mod tests;

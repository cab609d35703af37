//! `throng doctor`: can this machine hold so many connections, and what would have to change?
//!
//! The checks are those of [`throng_machine::preflight`]; here is what is asked, and how the answer
//! looks.
//!
//! | module | what it is |
//! |---|---|
//! | [`arguments`] | the flags, and what they ask of the machine |
//! | `text` | the answer for people |
//! | `json` | the answer for programs |
//! | `file` | the settings as a file for `/etc/sysctl.d` |

mod arguments;
mod file;
mod json;
mod text;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use throng_machine::preflight::{self, Applied, Preflight};
use throng_text::paint::Paint;

use crate::terminal;

pub use arguments::{Arguments, Role};

/// What was asked, what was found, and what was changed before that.
struct Answer<'a> {
    arguments: &'a Arguments,
    found: Preflight,
    /// With `--apply` only.
    applied: Option<Vec<Applied>>,
}

/// Checks this machine, changes it if that is asked for, and prints the answer. The exit code is 0
/// if so many connections are possible, and 1 if something must change first.
pub fn doctor(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(fault) = arguments.fault() {
        terminal::complain(&fault);
        return Ok(crate::EXIT_USAGE.into());
    }
    let wanted = arguments.wanted();
    let mut found = preflight::check(&wanted);
    if arguments.sysctl_file {
        print(&file::text(arguments, &found))?;
        return Ok(ExitCode::SUCCESS);
    }
    let applied = arguments.apply.then(|| preflight::apply(&found));
    if applied.is_some() {
        found = preflight::check(&wanted);
    }
    let is_possible = found.is_possible();
    let answer = Answer { arguments, found, applied };
    print(&match arguments.json {
        true => json::text(&answer)?,
        false => text::text(&answer, Paint::on(&std::io::stdout())),
    })?;
    Ok(if is_possible { ExitCode::SUCCESS } else { crate::EXIT_RUNTIME.into() })
}

fn print(text: &str) -> Result<()> {
    terminal::ignore_closed_pipe(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(())
}

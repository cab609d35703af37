//! `throng doctor`: can this machine hold N connections, and what would have to change? Without a
//! number: how many does it hold?
//!
//! The checks are those of [`throng_host::preflight`]; here is what is asked, and how the answer
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
use throng_host::preflight::{self, Applied, Preflight, Room};
use throng_units::paint::Paint;

use crate::terminal;

pub use arguments::{Arguments, Role};

/// What was asked, what was found, and what was changed before that.
struct Answer<'a> {
    arguments: &'a Arguments,
    /// As many as were asked for, or the most that fit.
    connections: u32,
    found: Preflight,
    /// With `--apply` only.
    applied: Option<Vec<Applied>>,
}

/// Checks this machine, changes it if that is asked for, and prints the answer. The exit code is 0
/// if that many connections are possible, and 1 if something must change first.
pub fn doctor(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(fault) = arguments.fault() {
        terminal::complain(&fault);
        return Ok(crate::EXIT_USAGE.into());
    }
    let most = arguments.connections.unwrap_or(u32::MAX);
    // Looked at once: memory comes and goes, and what fits must still fit when it is shown.
    let room = Room::look(&arguments.wanted(most.into()));
    let connections = arguments.connections.unwrap_or_else(|| what_fits(&room, arguments));
    let wanted = arguments.wanted(connections.into());
    let mut found = room.check(&wanted);
    if arguments.sysctl_file {
        print(&file::text(arguments, connections, &found))?;
        return Ok(ExitCode::SUCCESS);
    }
    let applied = arguments.apply.then(|| preflight::apply(&found));
    if applied.is_some() {
        found = preflight::check(&wanted);
    }
    let is_possible = found.is_possible();
    let answer = Answer { arguments, connections, found, applied };
    print(&match arguments.json {
        true => json::text(&answer)?,
        false => text::text(&answer, Paint::on(&std::io::stdout())),
    })?;
    Ok(if is_possible { ExitCode::SUCCESS } else { crate::EXIT_RUNTIME.into() })
}

/// The most connections that fit, to three digits: free memory is not known more exactly.
fn what_fits(room: &Room, arguments: &Arguments) -> u32 {
    let fits = room.fits(u32::MAX.into(), |connections| arguments.wanted(connections));
    let digits = fits.checked_ilog10().unwrap_or(0).saturating_sub(2);
    let unit = 10_u64.pow(digits);
    (fits / unit * unit) as u32
}

fn print(text: &str) -> Result<()> {
    terminal::ignore_closed_pipe(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(())
}

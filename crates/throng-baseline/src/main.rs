//! Throng measured against the raw send() loop of the kernel it runs on.
//!
//! A measurement of a push server says little by itself, because on loopback most of a delivery is
//! work of the kernel. So each is compared with the kernel alone: a loop that sends the same bytes
//! to as many connections, with the same client, at the same time.
//!
//! # Layout
//!
//! - [`measure`]: the measurements; [`figures`]: their names and goals.
//! - [`client`]: the subscribers, the same code for both sides.
//! - [`raw_server`], [`raw_process`]: the raw loop and its process; [`server_process`]: the process
//!   of Throng; [`child`]: stops either with this process.
//! - [`ledger`], [`stats`], [`report`]: from values to a table.
//! - [`settings`]: what is measured, and how.
//! - [`preflight`], [`machine`]: whether the machine allows it; processor time and memory of
//!   processes and of the whole machine.
//! - [`net`], [`http`], [`frame`]: sockets and parsers.
//!
//! Exit codes: 0 measured (whatever the results), 1 not measured, 64 wrong usage.

mod child;
mod cli;
mod client;
mod figures;
mod frame;
mod http;
mod ledger;
mod machine;
mod measure;
mod net;
mod preflight;
mod raw_process;
mod raw_server;
mod report;
mod server_process;
mod settings;
mod stats;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use cli::{Arguments, Inner};
use ledger::Ledger;

const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing is left to do if the terminal is gone.
            let _ = error.print();
            return if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.inner {
        Some(Inner::RawServer { threads, connections }) => raw_server::run(*threads, *connections),
        Some(Inner::Bound { program, arguments }) => child::become_bound(program, arguments),
        None => measure_all(arguments),
    }
}

fn measure_all(arguments: &Arguments) -> Result<()> {
    let settings = arguments.settings(preflight::connections_per_thread()?)?;
    preflight::prepare(&settings, arguments.apply)?;
    let mut ledger = Ledger::default();
    let outcome = measure::run(&arguments.wanted(), &settings, &mut ledger);
    // After an error, too: a long run's figures are worth keeping.
    write!(std::io::stdout(), "{}", report::table(&ledger))?;
    if let Some(path) = &arguments.json {
        report::write_json(path, &ledger, &settings)?;
    }
    outcome
}

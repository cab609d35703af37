//! Throng measured against the raw send() loop of the kernel it runs on.
//!
//! On loopback most of a delivery is work of the kernel, so that the rate of a server says little.
//! Each measurement is compared with the kernel alone: a loop that sends the same bytes to as many
//! connections of the same client, in the same run.
//!
//! # Layout
//!
//! - [`measure`]: makes the measurements; [`measurements`]: their names and goals.
//! - [`client`]: the subscribers, the same code for both sides.
//! - [`workers`]: threads with private descriptor tables, of the client and of the raw loop.
//! - [`raw_server`], [`raw_process`]: the raw loop and its process; [`server_process`]: the process
//!   of Throng; [`child`]: stops either with this process.
//! - [`results`], [`stats`], [`report`]: from values to a table.
//! - [`settings`]: the settings of all measurements.
//! - [`preflight`]: checks the machine. [`machine`]: processor time and memory of processes and of
//!   the whole machine.
//! - [`net`], [`http`], [`frame`]: sockets and parsers.
//!
//! Exit codes: 0 measured, whatever the results; 1 failed; 64 usage.

mod child;
mod cli;
mod client;
mod frame;
mod http;
mod machine;
mod measure;
mod measurements;
mod net;
mod preflight;
mod raw_process;
mod raw_server;
mod report;
mod results;
mod server_process;
mod settings;
mod stats;
mod workers;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use throng_units::paint::Paint;

use cli::{Arguments, Inner};
use results::Results;

const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // An error means that the terminal is closed.
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
    let mut results = Results::default();
    let outcome = measure::run(&arguments.selected(), &settings, &mut results);
    // Also after an error: the measurements before it took minutes.
    let mut stdout = std::io::stdout();
    write!(stdout, "{}", report::table(&results, Paint::on(&stdout)))?;
    if let Some(path) = &arguments.json {
        report::write_json(path, &results, &settings)?;
    }
    outcome
}

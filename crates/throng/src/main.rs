//! The `throng` binary: the server, two commands to try it with, the load generator, the doctor for
//! machines, and the classic benchmarks.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`settings`] | every setting, from flags, variables and the file |
//! | [`serve`] | the server's life, from settings to exit |
//! | [`planes`] | joins data plane and control plane |
//! | [`banner`] | what the server says when it starts |
//! | [`doctor`] | can this machine hold N connections, and what must change? |
//! | [`service`] | the service manager and the signals |
//! | [`publish`], [`tail`] | the two client commands |
//! | [`client`] | what they share |
//! | [`terminal`] | errors and remarks on stderr |
//! | [`version`] | what is in a bug report |

mod banner;
mod cli;
mod client;
mod doctor;
mod planes;
mod publish;
mod serve;
mod service;
mod settings;
mod tail;
mod terminal;
mod version;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Arguments, Command, Sources};
use settings::{Settings, SettingsError};

/// The command line is wrong.
const EXIT_USAGE: u8 = 64;
/// The settings are wrong.
const EXIT_CONFIGURATION: u8 = 78;
/// Something went wrong while running.
const EXIT_RUNTIME: u8 = 1;

fn main() -> ExitCode {
    let (words, is_bound) = cli::words(std::env::args_os().collect());
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    match run(arguments.command, is_bound) {
        Ok(code) => code,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(error) => explain(&error),
            Err(error) => {
                terminal::complain(&format!("{error:#}"));
                let is_settings = error.is::<SettingsError>();
                ExitCode::from(if is_settings { EXIT_CONFIGURATION } else { EXIT_RUNTIME })
            }
        },
    }
}

/// Prints what is wrong with the command line, or the help that it asks for.
fn explain(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
}

fn run(command: Command, is_bound: bool) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(sources) => {
            if is_bound {
                bind_to_parent()?;
            }
            serve::serve(|| load(sources))?;
        }
        Command::Check(sources) => print_settings(&load(sources)?)?,
        Command::Publish(arguments) => publish::publish(arguments)?,
        Command::Tail(arguments) => tail::tail(&arguments)?,
        Command::Doctor(arguments) => return doctor::doctor(&arguments),
        Command::Flood(arguments) => return Ok(throng_flood::cli::run(*arguments)),
        Command::Bench(arguments) => return Ok(throng_benchmarks::cli::run(&arguments)),
        Command::Version => print(&version::text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Has the kernel end this process with the one that started it, whatever ends that.
fn bind_to_parent() -> anyhow::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have ended before that.
    anyhow::ensure!(getppid() == parent, "the process that started this one is gone");
    Ok(())
}

fn load(sources: Sources) -> Result<Settings, SettingsError> {
    settings::load(sources.options, std::env::vars_os(), sources.config.as_deref())
}

/// The effective settings, as a file that says the same.
fn print_settings(settings: &Settings) -> anyhow::Result<()> {
    print(&toml::to_string(settings)?)
}

fn print(text: &str) -> anyhow::Result<()> {
    terminal::ignore_closed_pipe(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(())
}

//! The `throng` binary: the server, client commands, keys, the machine check, the load generator
//! and the benchmarks.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`settings`] | every setting: flags, variables and the file |
//! | [`access`] | keys, rules and demands on tokens, from the settings |
//! | [`serve`] | `throng serve`: start, run, shut down |
//! | [`planes`] | connects data plane and control plane |
//! | [`banner`] | the text that the server prints when it starts |
//! | [`doctor`] | `throng doctor`: whether this machine can hold N connections |
//! | [`service`] | systemd notifications and signals |
//! | [`publish`], [`tail`] | the two client commands |
//! | [`key`] | `throng key`: makes a key for an application |
//! | [`client`] | HTTP client and errors of those two |
//! | [`terminal`] | output, errors, notes, exit codes |
//! | [`version`] | `throng version`: facts for bug reports |

mod access;
mod banner;
mod cli;
mod client;
mod doctor;
mod key;
mod planes;
mod publish;
mod serve;
mod service;
mod settings;
mod tail;
mod terminal;
mod version;

use std::process::ExitCode;

use clap::Parser as _;

use access::AccessSettings;
use cli::{Arguments, Command, Sources};
use service::EarlyHangups;
use settings::{Settings, SettingsError};
use terminal::{EXIT_CONFIGURATION, EXIT_RUNTIME, EXIT_USAGE};

fn main() -> ExitCode {
    // The first statement: until it has run, SIGHUP ends the process.
    let early_hangups = EarlyHangups::catch_for(std::env::args_os().nth(1).as_deref());
    let (words, is_bound) = cli::words(std::env::args_os().collect());
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => return explain(&cli::with_present_name(error)),
    };
    match run(arguments.command, is_bound, &early_hangups) {
        Ok(code) => code,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(error) => explain(&error),
            Err(error) => {
                terminal::print_error(&format!("{error:#}"));
                let is_settings = error.is::<SettingsError>();
                ExitCode::from(if is_settings { EXIT_CONFIGURATION } else { EXIT_RUNTIME })
            }
        },
    }
}

/// Prints an error of the command line, or the requested help.
fn explain(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
}

fn run(command: Command, is_bound: bool, early_hangups: &EarlyHangups) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(sources) => {
            if is_bound {
                bind_to_parent()?;
            }
            serve::serve(|| load(sources), early_hangups)?;
        }
        Command::Check(sources) => check(&load(sources)?)?,
        Command::Publish(arguments) => publish::publish(arguments)?,
        Command::Tail(arguments) => tail::tail(&arguments)?,
        Command::Key(arguments) => key::key(&arguments)?,
        Command::Doctor(arguments) => return doctor::doctor(&arguments),
        Command::Flood(arguments) => return Ok(throng_flood::cli::run(*arguments)),
        Command::Bench(arguments) => return Ok(throng_benchmarks::cli::run(&arguments)),
        Command::Version => terminal::print(&version::text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the kernel terminate this process when its parent ends.
fn bind_to_parent() -> anyhow::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have ended before the call.
    anyhow::ensure!(getppid() == parent, "the process that started this one is gone");
    Ok(())
}

fn load(sources: Sources) -> Result<Settings, SettingsError> {
    settings::load(sources.options, std::env::vars_os(), sources.config.as_deref())
}

/// Checks the settings as the server does, and prints them as a file that `--config` accepts.
fn check(settings: &Settings) -> anyhow::Result<()> {
    for warning in AccessSettings::load(settings)?.warnings {
        terminal::print_note(&warning);
    }
    Ok(terminal::print(&toml::to_string(settings)?)?)
}

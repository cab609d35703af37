//! The `throng` binary: the server, two commands to try it with, the load generator, and the
//! doctor for machines, and the classic experiments.
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
//! | [`doctor`] | can this machine hold so many connections, and what must change? |
//! | [`service`] | the service manager and the signals |
//! | [`publish`], [`tail`] | the two client commands |
//! | [`client`] | what they share |
//! | [`terminal`] | colours for people |

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
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    match run(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            terminal::complain(&format!("{error:#}"));
            let is_settings = error.is::<SettingsError>();
            ExitCode::from(if is_settings { EXIT_CONFIGURATION } else { EXIT_RUNTIME })
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(sources) => serve::serve(&load(sources)?)?,
        Command::Check(sources) => print_settings(&load(sources)?)?,
        Command::Publish(arguments) => publish::publish(arguments)?,
        Command::Tail(arguments) => tail::tail(&arguments)?,
        Command::Doctor(arguments) => return doctor::doctor(&arguments),
        Command::Flood(arguments) => return Ok(throng_flood::cli::run(*arguments)),
        Command::Bench(arguments) => return Ok(throng_experiments::cli::run(&arguments)),
        Command::ServeBound(sources) => {
            bind_to_parent()?;
            serve::serve(&load(sources)?)?;
        }
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

/// The settings that hold, as a file that would say the same.
fn print_settings(settings: &Settings) -> anyhow::Result<()> {
    let text = toml::to_string(settings)?;
    terminal::ignore_closed_pipe(std::io::stdout().write_all(text.as_bytes()))?;
    Ok(())
}

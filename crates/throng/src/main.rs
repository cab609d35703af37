//! The `throng` binary: the server, client commands, keys, and the machine check.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`settings`] | every setting: flags, variables and the file |
//! | [`access`] | keys, rules and demands on tokens, from the settings |
//! | [`outbound`] | key sets at URLs and callouts, from the settings |
//! | [`load`] | the settings of `throng serve`, at the start and again |
//! | [`serve`] | `throng serve`: start, run, shut down |
//! | [`dev`] | `throng serve --dev`: keys for one run |
//! | [`dev_tls`] | `throng serve --dev-tls`: a certificate for this machine |
//! | [`check`] | `throng check`: checks the settings, and what a client may do |
//! | [`beside`] | what runs beside the two planes, and what of it only one process may do |
//! | [`acme`] | certificates by ACME, from the settings |
//! | [`tls`] | TLS from the settings, and the reload of its files |
//! | [`journals`] | what keeps logs beneath the channels: a data directory, or several nodes |
//! | [`planes`] | connects data plane and control plane |
//! | [`plane_settings`] | what the settings mean for both |
//! | [`banner`] | the text that the server prints when it starts |
//! | [`start_line`] | the line of the log that says what started |
//! | [`doctor`] | `throng doctor`: whether this machine can hold N connections |
//! | [`laboratory`] | `throng flood` and `throng bench`, which are programs of their own |
//! | [`health`] | `throng health`: whether a server is healthy |
//! | [`docs`] | the site of the documentation, from the settings |
//! | [`documents`] | `throng completions`, `throng man` and `throng licenses` |
//! | [`service`] | systemd notifications and signals |
//! | [`signal_thread`] | the one thread that signals reach |
//! | [`publish`], [`tail`], [`list`], [`connections`] | the client commands |
//! | [`subscription_counts`] | tells clients of applications how many follow a channel |
//! | [`subscriptions`] | `throng subscriptions`: imports what users follow |
//! | [`data_commands`] | `throng data`: checks, exports and compacts the data directory |
//! | [`key`] | `throng key`: makes a key for an application |
//! | [`token`] | `throng token`: makes, shows and checks tokens |
//! | [`cluster`] | `throng cluster`: how several nodes are, and what is suspect |
//! | [`client`] | HTTP client and errors of those |
//! | [`terminal`] | output, errors, notes, exit codes |
//! | [`control_commands`] | `throng reload`, `drain` and `upgrade`: ask a server that runs |
//! | [`departure`] | the drain that an operator asks for |
//! | [`control_socket`] | how those commands reach it |
//! | [`operator`] | what the server does for signals and such commands |
//! | [`redirect`] | the listener that sends clients from http to https |
//! | [`reload`] | what a reload replaces while the server runs |
//! | [`log_level`] | the level of the log, which can change |
//! | [`memory`] | how much memory each part may take, and what is given up when it is short |
//! | [`free_memory`] | when free memory of the allocator goes back to the kernel |
//! | [`watch`] | whether the event loops turn, for probes and systemd |
//! | [`upgrade`] | a new process takes over from a running one |
//! | [`version`] | `throng version`: facts for bug reports |

mod access;
mod acme;
mod activation;
mod banner;
mod beside;
mod check;
mod cli;
mod client;
mod cluster;
mod connections;
mod control_commands;
mod control_socket;
mod create;
mod data_commands;
mod departure;
mod dev;
mod dev_tls;
mod docs;
mod doctor;
mod documents;
mod free_memory;
mod health;
mod journals;
mod key;
mod laboratory;
mod list;
mod load;
mod log_level;
mod log_writer;
mod memory;
mod operator;
mod outbound;
mod plane_settings;
mod planes;
mod presence_events;
mod publish;
mod redirect;
mod reload;
mod serve;
mod service;
mod settings;
mod signal_thread;
mod start_line;
mod subscription_counts;
mod subscriptions;
mod tail;
mod terminal;
mod tls;
mod token;
mod upgrade;
mod version;
mod watch;
mod without_ipv6;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Arguments, Command};
use service::EarlyHangups;
use settings::SettingsError;
use throng_core::Kind;

use terminal::{EXIT_CONFIGURATION, EXIT_RUNTIME, EXIT_USAGE};

fn main() -> ExitCode {
    // The first statement: until it has run, SIGHUP ends the process.
    let early_hangups = EarlyHangups::catch_for(std::env::args_os().nth(1).as_deref());
    // The static binary of releases must not load the plugins of the machine's own glibc.
    if cfg!(target_feature = "crt-static") {
        throng_host::names::resolve_names_without_plugins();
    }
    if let Some(code) = upgrade::parent::parent(std::env::args_os()) {
        return code;
    }
    if let Some(error) = laboratory::become_program(std::env::args_os()) {
        terminal::print_error(&error);
        return EXIT_RUNTIME.into();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    match run(arguments.command, &early_hangups) {
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

fn run(command: Command, early_hangups: &EarlyHangups) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(arguments) => serve::serve(*arguments, early_hangups)?,
        Command::Check(arguments) => return check::check(*arguments),
        Command::Publish(arguments) => publish::publish(arguments)?,
        Command::Create(arguments) => create::create(&arguments)?,
        Command::Tail(arguments) => tail::tail(&arguments)?,
        Command::Channels(arguments) => list::list(Kind::Channel, &arguments)?,
        Command::Connections(arguments) => connections::connections(&arguments)?,
        Command::Subscriptions(arguments) => subscriptions::subscriptions(&arguments)?,
        Command::Users(arguments) => list::list(Kind::User, &arguments)?,
        Command::Key(arguments) => key::key(&arguments)?,
        Command::Token(arguments) => return token::token(&arguments),
        Command::Data(arguments) => return data_commands::data(arguments),
        Command::Doctor(arguments) => return doctor::doctor(&arguments),
        Command::Cluster(arguments) => return cluster::cluster(&arguments),
        Command::Reload(arguments) => return control_commands::reload(*arguments),
        Command::Drain(arguments) => return control_commands::drain(*arguments),
        Command::Upgrade(arguments) => return control_commands::upgrade(*arguments),
        Command::Health(arguments) => health::health(arguments)?,
        // `laboratory::become_program` has become these.
        Command::Flood(_) | Command::Bench(_) => return Ok(EXIT_USAGE.into()),
        Command::Completions(arguments) => documents::completions::<Arguments>(&arguments)?,
        Command::Man(arguments) => documents::man::<Arguments>(&arguments)?,
        Command::Licenses => documents::licenses()?,
        Command::Version => terminal::print(&version::text())?,
    }
    Ok(ExitCode::SUCCESS)
}

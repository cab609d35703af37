//! `throng token`: makes, shows and checks tokens.
//!
//! | module | contents |
//! |---|---|
//! | `given` | the token that a command is about |
//! | `moment` | moments in texts |
//! | `new` | signs a token |
//! | `signing_key` | finds the key to sign with |
//! | `show` | prints what is in a token |
//! | `check` | verifies a token as the server does |

mod check;
mod given;
mod moment;
mod new;
mod show;
mod signing_key;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

pub(crate) use given::refuse_key;
pub(crate) use moment::moment;

/// Arguments of `throng token`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Sign a token and print it
    New(Box<new::Arguments>),
    /// Print the contents of a token, without verifying it
    Show(show::Arguments),
    /// Verify a token as a server with these settings would
    Check(check::Arguments),
}

pub(crate) fn token(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::New(arguments) => new::new(arguments)?,
        Command::Show(arguments) => show::show(arguments)?,
        Command::Check(arguments) => return check::check(arguments),
    }
    Ok(ExitCode::SUCCESS)
}

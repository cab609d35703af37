//! `throng data`: what is done with the data directory of a server, which mostly does not run.
//!
//! | module | contents |
//! |---|---|
//! | `backup` | asks a server that runs for a copy |
//! | `check` | says what is wrong, and where |
//! | `export` | writes all of it as lines of JSON |
//! | `store` | the directory, while no server has it |

mod backup;
mod check;
mod export;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use throng_data::storage::Storage as _;
use throng_units::format::bytes;

use crate::terminal;
use backup::BackupArguments;
use store::StoppedStore;

const EXAMPLES: &str = "\
Except for `backup`, stop the server first: a directory belongs to one process at a time. Run the
command as the server's user.

Examples:
  throng data backup /var/lib/throng/backup
  throng data check /var/lib/throng/data
  throng data export /var/lib/throng/data messages.ndjson
  throng data export /var/lib/throng/data | jq -r 'select(.type == \"message\") .channel'
  throng data compact /var/lib/throng/data
  throng data restored /var/lib/throng/data";

/// Arguments of `throng data`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// The subcommand, with its own arguments.
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    /// Read everything and report each fault and its place; exits with 1 if there is one
    Check(DirectoryArguments),
    /// Write messages, subscriptions and read markers as JSON, one object per line
    Export(ExportArguments),
    /// Rewrite the files without replaced and removed records
    Compact(DirectoryArguments),
    /// Mark the directory as a restored older copy, so that message ids begin anew
    Restored(DirectoryArguments),
    /// Copy the directory of a running server as it is now
    Backup(Box<BackupArguments>),
}

#[derive(Debug, Args)]
struct DirectoryArguments {
    /// The data directory (the setting `data`)
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Arguments of `throng data export`.
#[derive(Debug, Args)]
struct ExportArguments {
    /// The directory to read.
    #[command(flatten)]
    from: DirectoryArguments,

    /// The file to write, which must not exist [default: standard output]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) fn data(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        DataCommand::Check(arguments) => check::check(&StoppedStore::open(&arguments.directory)?),
        DataCommand::Export(arguments) => {
            let store = StoppedStore::open(&arguments.from.directory)?;
            export::export(&store, arguments.file.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        DataCommand::Compact(arguments) => {
            let store = StoppedStore::open(&arguments.directory)?;
            compact(&store)?;
            Ok(ExitCode::SUCCESS)
        }
        DataCommand::Backup(arguments) => backup::backup(*arguments),
        DataCommand::Restored(arguments) => {
            let store = StoppedStore::open(&arguments.directory)?;
            store.logs.note_restored().context("cannot write to the data directory")?;
            terminal::print("noted: the next server on this directory begins a new epoch\n")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Compacts the files, and says what that gave.
fn compact(store: &StoppedStore) -> Result<()> {
    let size = || {
        let size = store.storage.bytes().context("cannot read the size of the data directory")?;
        anyhow::Ok(bytes(size as f64))
    };
    let before = size()?;
    while store.logs.remove_erased().context("cannot write to the data directory")? {}
    store.logs.forget_erased().context("cannot write to the data directory")?;
    store.storage.compact().context("cannot compact the data directory")?;
    Ok(terminal::print(&format!("{before} before, {} now\n", size()?))?)
}

//! `throng completions`, `throng man` and `throng licenses`: what a package ships beside the
//! binary. Completions and man pages come from the definition of the command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory};
use throng_manual::Shell;

use crate::terminal;

/// The licences of everything in the binary; `scripts/licenses` writes the file.
const LICENSES: &str = include_str!("../licenses.txt");

/// Arguments of `throng completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  throng completions bash > /usr/share/bash-completion/completions/throng
  throng completions zsh > /usr/share/zsh/site-functions/_throng
  throng completions fish > ~/.config/fish/completions/throng.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell to print completions for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Arguments of `throng man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  throng man | man -l -
  throng man /usr/local/share/man/man1")]
pub(crate) struct ManArguments {
    /// Write one page per command into this directory, creating it if necessary [default: print the
    /// page of `throng` itself]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints the completions of `A`'s command line.
pub(crate) fn completions<A: CommandFactory>(arguments: &CompletionsArguments) -> Result<()> {
    let text = throng_manual::completions(A::command(), arguments.shell);
    Ok(terminal::print(&String::from_utf8(text)?)?)
}

/// Prints or writes the man pages of `A`'s command line.
pub(crate) fn man<A: CommandFactory>(arguments: &ManArguments) -> Result<()> {
    let Some(directory) = &arguments.directory else {
        return Ok(terminal::print(&throng_manual::page(A::command())?)?);
    };
    throng_manual::write_pages(A::command(), directory)
        .with_context(|| format!("cannot write man pages to {}", directory.display()))
}

/// Prints the licences.
pub(crate) fn licenses() -> Result<()> {
    Ok(terminal::print(LICENSES)?)
}

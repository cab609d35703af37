//! `throng completions`, `throng man` and `throng licenses`: what a package ships beside the
//! binary. Completions and man pages come from the definition of the command line.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

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
    /// The shell that completes the commands
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
    /// Write a page for each command into this directory, which is created if it is missing
    /// [default: print the page of `throng` itself]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints the completions of `A`'s command line.
pub(crate) fn completions<A: CommandFactory>(arguments: &CompletionsArguments) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut A::command(), "throng", &mut text);
    Ok(terminal::print(&String::from_utf8(text)?)?)
}

/// Prints or writes the man pages of `A`'s command line.
pub(crate) fn man<A: CommandFactory>(arguments: &ManArguments) -> Result<()> {
    let Some(directory) = &arguments.directory else {
        let mut page = Vec::new();
        // There is no page for `throng help`.
        let command = A::command().disable_help_subcommand(true);
        clap_mangen::Man::new(command).render(&mut page)?;
        return Ok(terminal::print(&String::from_utf8(page)?)?);
    };
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(A::command(), directory))
        .with_context(|| format!("cannot write man pages to {}", directory.display()))
}

/// Prints the licences.
pub(crate) fn licenses() -> Result<()> {
    Ok(terminal::print(LICENSES)?)
}

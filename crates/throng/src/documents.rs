//! `throng completions`, `throng man` and `throng licenses`: what a package ships beside the
//! binary. Completions and man pages come from the definition of the command line.

mod man_page;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Command, CommandFactory};
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
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut A::command(), "throng", &mut text);
    Ok(terminal::print(&String::from_utf8(text)?)?)
}

/// Prints or writes the man pages of `A`'s command line.
pub(crate) fn man<A: CommandFactory>(arguments: &ManArguments) -> Result<()> {
    // There is no page for `throng help`.
    let mut command = A::command().disable_help_subcommand(true);
    command.build();
    let Some(directory) = &arguments.directory else {
        return Ok(terminal::print(&man_page::page(&command, &[])?)?);
    };
    fs::create_dir_all(directory)
        .map_err(Into::into)
        .and_then(|()| write_pages(&command, &[], directory))
        .with_context(|| format!("cannot write man pages to {}", directory.display()))
}

/// Writes the page of a command, whose parents have these names, and its subcommands' pages.
fn write_pages(command: &Command, parents: &[&str], directory: &Path) -> Result<()> {
    let page = man_page::page(command, parents)?;
    fs::write(directory.join(format!("{}.1", man_page::name(command))), page)?;
    let parents = [parents, &[man_page::name(command)]].concat();
    let subcommands = command.get_subcommands().filter(|one| !one.is_hide_set());
    subcommands.into_iter().try_for_each(|one| write_pages(one, &parents, directory))
}

/// Prints the licences.
pub(crate) fn licenses() -> Result<()> {
    Ok(terminal::print(LICENSES)?)
}

//! Man pages and shell completions, from the definition of a command line.

mod man_page;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, ValueEnum as _};
pub use clap_complete::Shell;

/// The first word of a private command line, by which packages get the documents of a program that
/// has no commands for them: `throng-flood write-documents DIR`.
const WRITE_DOCUMENTS: &str = "write-documents";

/// The completions of a program.
pub fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut text);
    text
}

/// The man page of a program.
pub fn page(command: Command) -> io::Result<String> {
    man_page::page(&built(command), &[])
}

/// Writes the man page of a program, and one for each of its commands, into a directory, which it
/// makes if necessary.
pub fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    write_page_and_below(&built(command), &[], directory)
}

/// Writes pages into `DIR/man` and completions into `DIR/completions`, if the arguments of this
/// process are the private `write-documents DIR`. Returns `None` otherwise.
pub fn write_documents_if_asked(command: impl FnOnce() -> Command) -> Option<io::Result<()>> {
    let mut words = std::env::args_os().skip(1);
    if words.next().as_deref() != Some(OsStr::new(WRITE_DOCUMENTS)) {
        return None;
    }
    let directory = words.next()?;
    Some(write_documents(&command(), Path::new(&directory)))
}

fn write_documents(command: &Command, directory: &Path) -> io::Result<()> {
    write_pages(command.clone(), &directory.join("man"))?;
    let folder = directory.join("completions");
    fs::create_dir_all(&folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let suffix = shell.to_possible_value().map(|value| value.get_name().to_owned());
        let name = format!("{}.{}", command.get_name(), suffix.unwrap_or_default());
        fs::write(folder.join(name), completions(command.clone(), shell))?;
    }
    Ok(())
}

fn built(command: Command) -> Command {
    // There is no page for `help`.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

/// `parents` are the names of the pages above.
fn write_page_and_below(command: &Command, parents: &[&str], directory: &Path) -> io::Result<()> {
    let page = man_page::page(command, parents)?;
    fs::write(directory.join(format!("{}.1", man_page::name(command))), page)?;
    let parents = [parents, &[man_page::name(command)]].concat();
    // A command without help of its own is another program, with pages of its own.
    let subcommands = command
        .get_subcommands()
        .filter(|one| !one.is_hide_set() && !one.is_disable_help_flag_set());
    subcommands.into_iter().try_for_each(|one| write_page_and_below(one, &parents, directory))
}

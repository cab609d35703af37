//! `throng flood` and `throng bench`: programs of the laboratory, which need not be installed. This
//! process becomes `throng-flood` or `throng-bench`, as git becomes `git-foo`.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// The commands, each with its program.
const PROGRAMS: [(&str, &str); 2] = [("flood", "throng-flood"), ("bench", "throng-bench")];

/// A command line of the laboratory.
#[derive(Debug, PartialEq, Eq)]
struct LaboratoryCommand {
    name: &'static str,
    program: &'static str,
    arguments: Vec<OsString>,
}

/// Becomes the program of a command line such as `throng flood …` or `throng help flood`. Returns
/// an error if it is not installed, and `None` if the command is another one.
pub(crate) fn become_program(words: impl IntoIterator<Item = OsString>) -> Option<String> {
    let LaboratoryCommand { name, program, arguments } = read(words)?;
    // Beside this program first: a laboratory there is of the same version.
    let own = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(program)));
    for path in own.as_deref().into_iter().chain([Path::new(program)]) {
        // Usage lines show the command as it was typed.
        let error = Command::new(path).arg0(format!("throng {name}")).args(&arguments).exec();
        if error.kind() != ErrorKind::NotFound {
            return Some(format!("{} cannot be started: {error}", path.display()));
        }
    }
    Some(format!(
        "`throng {name}` needs the program {program}, which is neither beside this one nor in \
         PATH: install the package throng-lab, or run `cargo build --release -p {program}` in a \
         checkout"
    ))
}

fn read(words: impl IntoIterator<Item = OsString>) -> Option<LaboratoryCommand> {
    let mut words = words.into_iter().skip(1).peekable();
    let help = words.next_if(|word| word == "help").map(|_| OsString::from("--help"));
    let word = words.next()?;
    let (name, program) = PROGRAMS.into_iter().find(|(name, _)| word == *name)?;
    Some(LaboratoryCommand { name, program, arguments: help.into_iter().chain(words).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Option<(&'static str, Vec<OsString>)> {
        let command = read(["throng"].iter().chain(words).map(OsString::from))?;
        Some((command.program, command.arguments))
    }

    #[test]
    fn arguments_are_passed_on_as_they_are() {
        let arguments = ["--plan", "-x"].map(OsString::from).to_vec();
        assert_eq!(of(&["flood", "--plan", "-x"]), Some(("throng-flood", arguments)));
        assert_eq!(of(&["help", "bench"]), Some(("throng-bench", vec!["--help".into()])));
    }

    #[test]
    fn other_commands_are_left_alone() {
        for words in [&[][..], &["serve", "flood"], &["help", "serve"], &["help"]] {
            assert_eq!(of(words), None, "{words:?}");
        }
    }
}

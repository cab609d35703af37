//! The programs that benchmarks start: the server and nats-server.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{env, iter};

/// A program that benchmarks start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The flag that says where it is.
    pub(crate) flag: &'static str,
}

pub(crate) const SERVER: Program = Program { name: "throng", flag: "--server" };
pub(crate) const NATS_SERVER: Program = Program { name: "nats-server", flag: "--nats-server" };

impl Program {
    /// Its path: as given, or else in the directory of this program or one of PATH.
    pub(crate) fn find(self, given: Option<&Path>) -> Result<PathBuf, String> {
        let Program { name, flag } = self;
        if let Some(given) = given {
            return if is_executable(given) {
                Ok(given.to_owned())
            } else {
                Err(format!("{} is no program that can be run: see {flag}", given.display()))
            };
        }
        let own = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
        let path = env::var_os("PATH").unwrap_or_default();
        // Distributions install servers where only root's PATH leads to.
        own.into_iter()
            .chain(env::split_paths(&path))
            .chain(iter::once(PathBuf::from("/usr/sbin")))
            .map(|directory| directory.join(name))
            .find(|file| is_executable(file))
            .ok_or_else(|| {
                format!(
                    "{name} is in no directory of PATH: install it, or say where it is with {flag}"
                )
            })
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_program_must_be_executable() {
        let found = NATS_SERVER.find(Some("/bin/false".as_ref()));
        assert_eq!(found, Ok(PathBuf::from("/bin/false")));
        for path in ["/nowhere/at/all", "/etc/passwd", "/etc"] {
            let error = NATS_SERVER.find(Some(path.as_ref())).expect_err("it is none");
            assert!(error.starts_with(path) && error.contains("--nats-server"), "{error}");
        }
    }
}

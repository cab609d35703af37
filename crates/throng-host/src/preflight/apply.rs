//! Changing what is too low.

use std::io;

use super::Preflight;
use super::check::Setting;
use crate::sysctl;

/// A setting that was to be changed, and what came of it.
#[derive(Debug)]
pub struct Applied {
    /// What it was and was to be.
    pub setting: Setting,
    /// Whether it now is.
    pub outcome: Result<(), ApplyError>,
}

/// Why a setting was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Only root may, and this is not root, or root of a container.
    #[error("not permitted; run `sudo {0}` (in a container: on its host)")]
    NotPermitted(String),
    /// `/proc/sys` is not to be written to.
    #[error("{0} is read-only here; run `{1}` on the host of the container")]
    ReadOnly(&'static str, String),
    /// The kernel refused it.
    #[error("the kernel refused it: {0}")]
    Refused(io::Error),
    /// Somebody else changed it since it was looked at; what they set was left alone.
    #[error("it was changed by somebody else to {0:?}, and is left alone")]
    ChangedMeanwhile(String),
    /// It was written, and reads otherwise.
    #[error("it was set, and reads {0:?}")]
    NotTaken(String),
}

/// Changes every kernel setting that is too low, in order, and reads each back.
///
/// Nothing is ever lowered, and a setting that is no longer as it was found is left alone. One that
/// cannot be changed does not keep the others from being tried. What is set holds until the machine
/// starts again.
pub fn apply(preflight: &Preflight) -> Vec<Applied> {
    let changes = preflight.checks.iter().filter_map(|check| check.change());
    changes
        .map(|setting| Applied {
            setting: setting.clone(),
            outcome: change(setting, sysctl::read, sysctl::set),
        })
        .collect()
}

fn change(
    setting: &Setting,
    read: impl Fn(&str) -> Option<String>,
    set: impl Fn(&str, &str) -> io::Result<()>,
) -> Result<(), ApplyError> {
    let now = || plain(&read(setting.name).unwrap_or_default());
    let before = now();
    if before != plain(&setting.found) {
        return Err(ApplyError::ChangedMeanwhile(before));
    }
    set(setting.name, &setting.value).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ApplyError::NotPermitted(setting.command()),
        io::ErrorKind::ReadOnlyFilesystem => ApplyError::ReadOnly("/proc/sys", setting.command()),
        _ => ApplyError::Refused(error),
    })?;
    let after = now();
    if after == plain(&setting.value) { Ok(()) } else { Err(ApplyError::NotTaken(after)) }
}

/// The kernel separates numbers with tabs, people with spaces.
fn plain(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn setting() -> Setting {
        Setting { name: "net.ipv4.tcp_mem", found: "1 2 3".to_owned(), value: "4 5 6".to_owned() }
    }

    fn changed(before: &str, takes: impl Fn(&str) -> io::Result<String>) -> Result<(), ApplyError> {
        let kernel = RefCell::new(before.to_owned());
        let set = |_: &str, value: &str| {
            *kernel.borrow_mut() = takes(value)?;
            Ok(())
        };
        change(&setting(), |_| Some(kernel.borrow().clone()), set)
    }

    #[test]
    fn what_is_set_is_read_back() {
        let with_tabs = |value: &str| Ok(value.replace(' ', "\t"));
        assert!(changed("1\t2\t3", with_tabs).is_ok());
        let error = changed("1 2 3", |_| Ok("4 5 5".to_owned())).expect_err("not taken");
        assert_eq!(error.to_string(), "it was set, and reads \"4 5 5\"");
    }

    #[test]
    fn what_somebody_else_set_is_left_alone() {
        let error = changed("9 9 9", |_| panic!("it was written")).expect_err("left alone");
        assert!(matches!(error, ApplyError::ChangedMeanwhile(now) if now == "9 9 9"));
    }

    #[test]
    fn without_the_right_to_the_command_is_told() {
        let refused = |kind: io::ErrorKind| changed("1 2 3", move |_| Err(kind.into()));
        let error = refused(io::ErrorKind::PermissionDenied).expect_err("refused").to_string();
        assert!(error.contains("sudo sysctl -w net.ipv4.tcp_mem=\"4 5 6\""), "{error}");
        let error = refused(io::ErrorKind::ReadOnlyFilesystem).expect_err("refused").to_string();
        assert!(error.starts_with("/proc/sys is read-only"), "{error}");
        let error = refused(io::ErrorKind::InvalidInput).expect_err("refused").to_string();
        assert!(error.starts_with("the kernel refused it"), "{error}");
    }
}

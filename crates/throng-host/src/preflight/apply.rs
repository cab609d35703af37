//! Raises kernel settings that are too low.

use std::io;

use super::Preflight;
use super::check::Setting;
use crate::sysctl;

/// The result of an attempt to change a setting.
#[derive(Debug)]
pub struct Applied {
    /// The setting with its old and its requested value.
    pub setting: Setting,
    /// Whether the setting has the requested value.
    pub outcome: Result<(), ApplyError>,
}

/// Why a setting was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The process lacks the privilege: it is not root, or root of a container.
    #[error("not permitted; run `sudo {0}` (in a container: on its host)")]
    NotPermitted(String),
    /// `/proc/sys` is mounted read-only.
    #[error("{0} is read-only here; run `{1}` on the host of the container")]
    ReadOnly(&'static str, String),
    /// The kernel rejected the value.
    #[error("the kernel refused it: {0}")]
    Refused(io::Error),
    /// Another program changed it after the check; its value is kept.
    #[error("another program changed it to {0:?}; it was left unchanged")]
    ChangedMeanwhile(String),
    /// The kernel accepted the value, but reports another one.
    #[error("it was set, but the kernel reports {0:?}")]
    NotTaken(String),
}

/// Raises every kernel setting that is too low, in order, and reads each one back.
///
/// Never lowers a setting, and skips one that has changed since the check. Continues after errors.
/// The changes last until the next reboot.
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

/// Normalizes white space: the kernel separates numbers with tabs.
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
    fn a_changed_setting_is_read_back() {
        let with_tabs = |value: &str| Ok(value.replace(' ', "\t"));
        assert!(changed("1\t2\t3", with_tabs).is_ok());
        let error = changed("1 2 3", |_| Ok("4 5 5".to_owned())).expect_err("not taken");
        assert_eq!(error.to_string(), "it was set, but the kernel reports \"4 5 5\"");
    }

    #[test]
    fn a_setting_changed_by_another_program_is_kept() {
        let error = changed("9 9 9", |_| panic!("it was written")).expect_err("left alone");
        assert!(matches!(error, ApplyError::ChangedMeanwhile(now) if now == "9 9 9"));
    }

    #[test]
    fn an_error_names_the_command_or_the_reason() {
        let refused = |kind: io::ErrorKind| changed("1 2 3", move |_| Err(kind.into()));
        let error = refused(io::ErrorKind::PermissionDenied).expect_err("refused").to_string();
        assert!(error.contains("sudo sysctl -w net.ipv4.tcp_mem=\"4 5 6\""), "{error}");
        let error = refused(io::ErrorKind::ReadOnlyFilesystem).expect_err("refused").to_string();
        assert!(error.starts_with("/proc/sys is read-only"), "{error}");
        let error = refused(io::ErrorKind::InvalidInput).expect_err("refused").to_string();
        assert!(error.starts_with("the kernel refused it"), "{error}");
    }
}

//! The settings as a file for `/etc/sysctl.d`, so that they hold after the next start.

use std::fmt::Write as _;

use throng_machine::preflight::Preflight;

use super::Arguments;

/// Every setting that was looked at, with a value that is enough: what is here, or more.
///
/// All of them, not only what is too low now: what was changed by hand would else be forgotten.
pub(super) fn text(arguments: &Arguments, found: &Preflight) -> String {
    let mut text = format!("# Kernel settings for {}.\n", subject(arguments));
    let _ = writeln!(text, "# Made by: {} --sysctl-file", arguments.command());
    for check in &found.checks {
        let Some(setting) = &check.setting else { continue };
        // An empty value is what the kernel starts with.
        if !setting.value.is_empty() {
            let _ = writeln!(text, "{} = {}", setting.name, setting.value);
        }
    }
    text
}

fn subject(arguments: &Arguments) -> String {
    format!("{} connections, role {}", arguments.connections, arguments.role.word())
}

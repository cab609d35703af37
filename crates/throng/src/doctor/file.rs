//! The settings as a file for `/etc/sysctl.d`, so that they hold after the next start.

use std::fmt::Write as _;

use throng_host::preflight::{Preflight, Setting};

use super::Arguments;

/// The settings that must or should change. Those that are enough already stand in comments: a file
/// that is written again on a machine that has read it still shows what they are.
pub(super) fn text(arguments: &Arguments, connections: u32, found: &Preflight) -> String {
    let role = arguments.role.word();
    let mut text = format!("# Kernel settings for {connections} connections, role {role}.\n");
    let _ = writeln!(text, "# Made by: {} --sysctl-file", arguments.command(connections));
    // An empty value is what the kernel starts with.
    let settings = found.checks.iter().filter_map(|check| check.setting.as_ref());
    let settings: Vec<&Setting> = settings.filter(|setting| !setting.value.is_empty()).collect();
    let (short, enough): (Vec<&Setting>, Vec<_>) =
        settings.into_iter().partition(|setting| setting.is_short());
    if short.is_empty() {
        text.push_str("# Nothing has to change.\n");
    }
    for Setting { name, value, .. } in short {
        let _ = writeln!(text, "{name} = {value}");
    }
    for Setting { name, value, .. } in enough {
        let _ = writeln!(text, "# enough already: {name} = {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use throng_host::preflight::{Room, Wanted};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn file(room: &Room) -> String {
        let line = Line::try_parse_from(["doctor", "-n", "1k"]).expect("valid");
        text(&line.arguments, 1000, &room.check(&Wanted::server(1000)))
    }

    #[test]
    fn has_what_must_change_and_nothing_else() {
        let head = "# Kernel settings for 1000 connections, role server.\n\
                    # Made by: throng doctor --connections 1k --sysctl-file\n";
        let room = |somaxconn| Room {
            somaxconn: Some(somaxconn),
            files_max: Some(2_466_177),
            ..Room::default()
        };
        assert_eq!(
            file(&room(64)),
            format!("{head}net.core.somaxconn = 1024\n# enough already: fs.file-max = 2466177\n")
        );
        let enough = file(&room(4096));
        assert!(enough.starts_with(&format!("{head}# Nothing has to change.\n")), "{enough}");
        assert!(enough.lines().all(|line| line.starts_with('#')), "{enough}");
    }
}

//! A man page of a command, from its definition.

use std::io;

use clap::Command;
use clap_mangen::Man;

/// Where settings are, for the pages of commands that read them.
const FILES: &str = "\
.SH FILES
.TP
\\fI./throng.toml\\fR
Settings, if the file exists and \\fB\\-\\-config\\fR names no other one
.TP
\\fI/etc/throng.toml\\fR
Settings of the service, as the packages install it
";

/// The name of a command's page: `throng-serve`. The command is built.
pub(super) fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The page of a command, whose parents have pages of these names.
pub(super) fn page(command: &Command, parents: &[&str]) -> io::Result<String> {
    let man = Man::new(command.clone()).source(concat!("throng ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend(synopsis(command).into_bytes());
    man.render_description_section(&mut page)?;
    let subcommands: Vec<&Command> =
        command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
    if !subcommands.is_empty() {
        page.extend(b".SH COMMANDS\n");
        for one in &subcommands {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            let entry = format!(".TP\n\\fB{}\\fR(1)\n{}\n", escaped(name(one)), escaped(&about));
            page.extend(entry.into_bytes());
        }
    }
    man.render_options_section(&mut page)?;
    page.extend(notes(command).into_bytes());
    if command.get_arguments().any(|argument| argument.get_id() == "config") {
        page.extend(FILES.as_bytes());
    }
    page.extend(see_also(parents, &subcommands).into_bytes());
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// How the command is called: all of its options are in their own section.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(|line| escaped(line.trim()));
    format!(".SH SYNOPSIS\n{}\n", lines.collect::<Vec<_>>().join("\n.br\n"))
}

/// The text after the options in the help. Indented lines stay as they are.
fn notes(command: &Command) -> String {
    let text = command.get_after_long_help().or_else(|| command.get_after_help());
    let Some(text) = text.map(ToString::to_string) else {
        return String::new();
    };
    let (mut page, mut is_literal, mut section) = (String::new(), false, "");
    for line in text.lines() {
        let begins = if line == "Examples:" { "EXAMPLES" } else { "NOTES" };
        if section.is_empty() || (begins == "EXAMPLES" && section != begins) {
            page += if std::mem::take(&mut is_literal) { ".fi\n" } else { "" };
            page += &format!(".SH {begins}\n");
            section = begins;
        }
        if line == "Examples:" {
            continue;
        }
        let is_indented = line.starts_with(' ');
        if is_indented != is_literal && !line.is_empty() {
            page += if is_indented { ".nf\n" } else { ".fi\n.PP\n" };
            is_literal = is_indented;
        }
        if line.is_empty() && !is_literal {
            page += ".PP\n";
        } else {
            page += &format!("{}\n", escaped(line));
        }
    }
    page + if is_literal { ".fi\n" } else { "" }
}

fn see_also(parents: &[&str], subcommands: &[&Command]) -> String {
    let names = parents.iter().copied().chain(subcommands.iter().map(|one| name(one)));
    let names: Vec<_> = names.map(|name| format!("\\fB{}\\fR(1)", escaped(name))).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(".SH \"SEE ALSO\"\n{}\n", names.join(", "))
}

/// A line of text as roff shows it.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    /// The page of a command `serve` with an option, notes and an example, and of its sibling.
    fn page_of(name: &str) -> String {
        let config = Arg::new("config").long("config").help("A file");
        let serve = Command::new("serve").about("Run it").arg(config).after_help(
            "A note.\n\nExamples:\n  Quietly:\n    throng serve > /dev/null\n\nThe end.",
        );
        let tail =
            Command::new("tail").override_usage("throng tail A\n       throng tail --user B");
        let mut all = crate::built(Command::new("throng").subcommands([serve, tail]));
        let command = all.find_subcommand_mut(name).unwrap();
        page(command, &["throng"]).unwrap()
    }

    #[test]
    fn a_page_has_the_sections_that_readers_look_for() {
        let serve = page_of("serve");
        let order = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "NOTES", "EXAMPLES", "FILES"];
        let places = order.map(|title| serve.find(&format!(".SH {title}\n")));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
        assert!(serve.contains(".SH SYNOPSIS\nthrong serve [OPTIONS]\n.ie"), "{serve}");
        assert!(serve.ends_with(".SH \"SEE ALSO\"\n\\fBthrong\\fR(1)\n"), "{serve}");
        assert!(!serve.contains("EXTRA"));
        assert_eq!(serve.matches(".nf\n").count(), serve.matches(".fi\n").count());
        let tail = page_of("tail");
        assert!(tail.contains("throng tail A\n.br\nthrong tail \\-\\-user B"), "{tail}");
        assert!(!tail.contains(".SH FILES"));
    }

    #[test]
    fn text_is_no_markup() {
        assert_eq!(escaped(r".a\b --c 'd'"), r"\&.a\eb \-\-c \(aqd\(aq");
    }
}

//! `throng key`: makes a key for an application.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use throng_access::Scope;
use throng_access::pattern::Pattern;
use throng_access::server_key::{KeyHash, generate};
use throng_core::name::Kind;
use throng_units::paint::{Ink, Paint};

use crate::access::{NAME_BYTES_MAX, is_key_name, pattern};
use crate::terminal;

const EXAMPLES: &str = "\
Prints the key to standard output, once: the server stores only its hash. The table for throng.toml,
which contains the hash, goes to standard error.

Examples:
  throng key
  throng key --name billing --scopes publish --users '*'
  throng key --name monitoring --scopes administration
  throng key --name app 2>> throng.toml | docker secret create throng-key -
  throng key --hash < key-file";

/// Arguments of `throng key`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Name of the key in the log
    #[arg(long, default_value = "app", value_parser = name)]
    name: String,

    /// Scopes of the key, comma-separated: publish, history, presence, subscribe, erase, edit,
    /// state, end, update, create, listing, subscriptions, administration
    #[arg(long, value_name = "SCOPE,…", value_delimiter = ',', value_parser = scope)]
    #[arg(default_value = "publish,history,presence")]
    scopes: Vec<Scope>,

    /// Channel patterns to restrict the key to, comma-separated
    #[arg(long, value_name = "PATTERN,…", value_delimiter = ',', value_parser = channel_pattern)]
    channels: Vec<String>,

    /// User patterns to restrict the key to, comma-separated
    #[arg(long, value_name = "PATTERN,…", value_delimiter = ',', value_parser = user_pattern)]
    users: Vec<String>,

    /// Create no key; print the table for the key on standard input or in THRONG_KEY
    #[arg(long)]
    hash: bool,
}

fn name(text: &str) -> Result<String, String> {
    if is_key_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!("a name is 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_`, `.` and `/`"))
}

fn scope(word: &str) -> Result<Scope, String> {
    let words = Scope::ALL.map(Scope::word).join(", ");
    Scope::from_word(word).ok_or_else(|| format!("this is none of {words}"))
}

fn channel_pattern(text: &str) -> Result<String, String> {
    checked_pattern(Kind::Channel, text)
}

fn user_pattern(text: &str) -> Result<String, String> {
    checked_pattern(Kind::User, text)
}

fn checked_pattern(kind: Kind, text: &str) -> Result<String, String> {
    let read = pattern("a server key", kind, text);
    read.map(|pattern: Pattern| pattern.text().to_owned()).map_err(|error| error.to_string())
}

pub(crate) fn key(arguments: &Arguments) -> Result<()> {
    if arguments.hash {
        let hash = KeyHash::of(given_key()?.trim())?;
        return Ok(terminal::print(&table(arguments, hash))?);
    }
    let key = generate()?;
    let hash = KeyHash::of(&key)?;
    let (out, notes) = (Paint::on(&io::stdout()), Paint::on(&io::stderr()));
    terminal::print(&format!("{}\n", out.ink(Ink::GOOD, &key)))?;
    let note = |text: &str| eprint_line(&notes.ink(Ink::Dim, text).to_string());
    if io::stderr().is_terminal() {
        eprint_line("");
        note("# Give the key to your application, which sends it as `Authorization: Bearer KEY`.");
        note("# It is not shown again. Add this to throng.toml, and send SIGHUP to the server;");
        note("# its first key needs a restart:");
    }
    eprint_line(&format!("\n{}", table(arguments, hash).trim_end()));
    Ok(())
}

/// The key in the variable, or else on standard input.
fn given_key() -> Result<String> {
    if let Ok(key) = std::env::var("THRONG_KEY") {
        return Ok(key);
    }
    if io::stdin().is_terminal() {
        terminal::print_note("type or paste the key, then press Enter and Ctrl-D");
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text).context("cannot read standard input")?;
    if text.trim().is_empty() {
        bail!("there is no key on standard input, and none in THRONG_KEY");
    }
    Ok(text)
}

fn eprint_line(text: &str) {
    use io::Write as _;
    let _ = writeln!(io::stderr(), "{text}");
}

/// The table of a key in `throng.toml`.
fn table(arguments: &Arguments, hash: KeyHash) -> String {
    let Arguments { name, scopes, channels, users, .. } = arguments;
    let scopes: Vec<String> = scopes.iter().map(|scope| scope.word().to_owned()).collect();
    let mut table = format!("[[server-keys]]\nname = \"{name}\"\nhash = \"{hash}\"\n");
    let lists = [("scopes", &scopes), ("channels", channels), ("users", users)];
    for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        let _ = writeln!(table, "{key} = {}", toml::Value::from(list.clone()));
    }
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::access::AccessSettings;
    use crate::settings::read_text;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn read(words: &[&str]) -> Result<Arguments, String> {
        let words = std::iter::once(&"key").chain(words);
        Line::try_parse_from(words).map(|line| line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn the_help_names_every_scope() {
        let help = <Line as clap::CommandFactory>::command().render_long_help().to_string();
        let all = Scope::ALL.map(Scope::word).join(", ");
        assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(&all), "{help}");
    }

    #[test]
    fn the_table_is_one_of_the_settings() {
        let key = generate().unwrap();
        for words in [
            &[][..],
            &["--name", "a/b", "--scopes", "publish,administration"],
            &["--channels", "rooms/*,it's \"one\"", "--users", "*"],
        ] {
            let table = table(&read(words).unwrap(), KeyHash::of(&key).unwrap());
            assert!(!table.contains(&key));
            let access = AccessSettings::load(&read_text(&table).unwrap()).unwrap();
            assert!(access.server_keys.find(&key).is_ok(), "{table}");
        }
    }

    #[test]
    fn bad_arguments_are_refused() {
        for words in [
            ["--name", "a b"],
            ["--name", ""],
            ["--scopes", "all"],
            ["--channels", "private/{user}"],
            ["--users", ""],
        ] {
            assert!(read(&words).is_err(), "{words:?}");
        }
    }
}

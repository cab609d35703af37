//! Settings from `throng.toml`.
//!
//! Every error names the file and the line, and says what is accepted. Keys are checked before
//! values are read: serde answers a misspelt key with a list of all keys, this module with the one
//! that was meant.

use std::ops::Range;
use std::path::Path;

use throng_settings::Document;
use throng_units::suggest::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::callout_tables::CALLOUTS;
use super::certificate_tables::CERTIFICATES;
use super::channels::KEYS as CHANNEL_KEYS;
use super::key_tables::{SERVER_KEYS, TOKEN_KEYS};
use super::table::{Options, SettingsError, names};

/// The file that is read, if it exists, when none is named.
const DEFAULT_FILE: &str = "throng.toml";

/// The tables that may stand in the file several times, and the keys of each.
const LISTS: [(&str, &[&str]); 5] = [
    ("channels", CHANNEL_KEYS),
    ("token-keys", TOKEN_KEYS),
    ("server-keys", SERVER_KEYS),
    ("certificates", CERTIFICATES),
    ("callouts", CALLOUTS),
];

/// Reads the file `named`, which must exist, or else the default one, which may be missing.
pub(super) fn find_and_read(named: Option<&Path>) -> Result<Options, SettingsError> {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    if named.is_none() && !path.exists() {
        return Ok(Options::default());
    }
    read_document(&Document::read(path).map_err(|error| SettingsError(error.0))?)
}

/// The absolute path of the file that is read: the one `named`, or the default one, if it exists.
pub(crate) fn in_use(named: Option<&Path>) -> Option<String> {
    let path = std::fs::canonicalize(named.unwrap_or(Path::new(DEFAULT_FILE))).ok()?;
    Some(path.display().to_string())
}

/// Reads settings from `text`. `name` is the file's name for error messages.
#[cfg(test)]
pub(super) fn read(name: &str, text: &str) -> Result<Options, SettingsError> {
    read_document(&Document { name: name.to_owned(), text: text.to_owned() })
}

fn read_document(document: &Document) -> Result<Options, SettingsError> {
    let source = Source(document);
    let table = document.parse().map_err(|(place, sentence)| {
        // An explanation of the line would quote a secret.
        let has_secret = document.line(place).to_ascii_lowercase().contains("secret");
        let quiet = "a secret is a text in quotation marks";
        source.at(&(place..place), if has_secret { quiet } else { &sentence })
    })?;
    source.check_keys(table.get_ref())?;
    let options = toml::from_str::<Options>(&document.text).map_err(|error| {
        let key = error.span().and_then(|span| key_at(table.get_ref(), span.start));
        source.refuse(&error, key.as_deref())
    })?;
    Ok(options.placed(Path::new(&document.name)))
}

/// The key whose value stands at `place`.
fn key_at(table: &DeTable<'_>, place: usize) -> Option<String> {
    let holds_place = |value: &Spanned<DeValue<'_>>| value.span().contains(&place);
    let (key, value) = table.iter().find(|(_, value)| holds_place(value)).or_else(|| {
        // The span of a table is only its header, so search the contents of every table.
        table.iter().find(|(_, value)| inner_tables(value).any(|t| key_at(t, place).is_some()))
    })?;
    let inner = inner_tables(value).find_map(|table| key_at(table, place));
    Some(inner.unwrap_or_else(|| key.get_ref().to_string()))
}

fn inner_tables<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> impl Iterator<Item = &'a DeTable<'i>> {
    let items = value.get_ref().as_array().into_iter().flat_map(|list| list.iter());
    value.get_ref().as_table().into_iter().chain(items.filter_map(|item| item.get_ref().as_table()))
}

/// The file, whose errors have a place.
struct Source<'a>(&'a Document);

impl Source<'_> {
    /// Adds the place of the error, and the key with the rejected value.
    fn refuse(&self, error: &toml::de::Error, key: Option<&str>) -> SettingsError {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let message = key.map_or(message.clone(), |key| format!("{key}: {message}"));
        match error.span() {
            Some(span) => self.at(&span, &message),
            None => SettingsError(format!("{}: {message}", self.0.name)),
        }
    }

    fn at(&self, span: &Range<usize>, message: &str) -> SettingsError {
        SettingsError(self.0.at(span.start, message))
    }

    fn check_keys(&self, table: &DeTable<'_>) -> Result<(), SettingsError> {
        let keys: Vec<String> = names().into_iter().map(|names| names.key).collect();
        let lists = LISTS.map(|(list, _)| list);
        let keys: Vec<&str> = keys.iter().map(String::as_str).chain(lists).collect();
        for (key, value) in table {
            let is_table = |table: &str| keys.iter().any(|known| in_table(table, known).is_some());
            match (key.get_ref().as_ref(), value.get_ref()) {
                (name, DeValue::Array(items)) if lists.contains(&name) => {
                    self.check_list(name, items.iter())?;
                }
                (name, DeValue::Table(inner)) if is_table(name) => {
                    self.check_table(name, inner, &keys)?;
                }
                (name, _) if is_table(name) || lists.contains(&name) => {
                    return Err(self.at(&key.span(), &misplaced(name, value.get_ref())));
                }
                (name, _) if !name.contains('.') && keys.contains(&name) => {}
                (name, _) => {
                    let tables = keys.iter().filter_map(|known| known.split_once('.'));
                    let known = keys.iter().copied().chain(tables.map(|(table, _)| table));
                    return Err(self.unknown(key, name, known));
                }
            }
        }
        Ok(())
    }

    fn check_table(
        &self,
        table: &str,
        inner: &DeTable<'_>,
        keys: &[&str],
    ) -> Result<(), SettingsError> {
        for key in inner.keys() {
            let of_table = keys.iter().filter_map(|known| in_table(table, known));
            if !of_table.clone().any(|known| known == key.get_ref()) {
                return Err(self.unknown(key, key.get_ref(), of_table));
            }
        }
        Ok(())
    }

    fn check_list<'a>(
        &self,
        list: &str,
        items: impl Iterator<Item = &'a Spanned<DeValue<'a>>>,
    ) -> Result<(), SettingsError> {
        let known = LISTS.iter().find(|(name, _)| *name == list).map_or(&[][..], |(_, keys)| keys);
        for item in items {
            let Some(table) = item.get_ref().as_table() else {
                return Err(self.at(&item.span(), &misplaced(list, item.get_ref())));
            };
            for key in table.keys() {
                if !known.contains(&key.get_ref().as_ref()) {
                    return Err(self.unknown(key, key.get_ref(), known.iter().copied()));
                }
            }
        }
        Ok(())
    }

    fn unknown<'a>(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        name: &str,
        candidates: impl IntoIterator<Item = &'a str>,
    ) -> SettingsError {
        let hint = elsewhere(name).unwrap_or_else(|| match nearest(name, candidates) {
            Some(meant) => match meant.split_once('.') {
                Some((table, key)) => format!("did you mean {key:?} in the table [{table}]?"),
                None => format!("did you mean {meant:?}?"),
            },
            None => "`throng serve --help` lists all settings".to_owned(),
        });
        self.at(&key.span(), &format!("unknown key {name:?}; {hint}"))
    }
}

/// Where a key belongs that stands where it is not known. In TOML each key is of the table whose
/// header it follows, also behind an empty line.
fn elsewhere(name: &str) -> Option<String> {
    let keys = names();
    let mut keys = keys.iter().map(|names| names.key.as_str());
    if keys.clone().any(|key| key == name) && !name.contains('.') {
        return Some("it belongs to no table, so move it above the first one".into());
    }
    if keys.any(|key| key.split_once('.').is_some_and(|(_, key)| key == name)) {
        return None;
    }
    let (list, _) = LISTS.iter().find(|(_, keys)| keys.contains(&name))?;
    Some(format!("it belongs in a table that begins with [[{list}]]"))
}

/// The error for a table of the settings that is written as something else.
fn misplaced(name: &str, value: &DeValue<'_>) -> String {
    let is = if value.is_table() { "a single table" } else { "a single value" };
    if LISTS.iter().any(|(list, _)| *list == name) {
        return format!("`{name}` is not {is}; begin each table with [[{name}]]");
    }
    format!("`{name}` is not {is}; begin a table with [{name}]")
}

/// The part of `known` after the table's name, if it is a key of `table`.
fn in_table<'a>(table: &str, known: &'a str) -> Option<&'a str> {
    known.strip_prefix(table)?.strip_prefix('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        read("throng.toml", text).map(|_| "it was accepted").unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_place_and_a_suggestion() {
        for (text, expected) in [
            ("\n\nlisen = 1", "line 3, column 1: unknown key \"lisen\"; did you mean \"listen\"?"),
            (
                "log = 'info'\nhistory-messages = 1",
                "line 2, column 1: unknown key \"history-messages\"; \
                 did you mean \"messages\" in the table [history]?",
            ),
            (
                "[histroy]\nmessages = 1",
                "line 1, column 2: unknown key \"histroy\"; did you mean \"history\"?",
            ),
            (
                "[history]\nmesages = 1",
                "line 2, column 1: unknown key \"mesages\"; did you mean \"messages\"?",
            ),
            (
                "[[channels]]\nmatch = '*'\n  lag-polcy = 'skip'",
                "line 3, column 3: unknown key \"lag-polcy\"; did you mean \"lag-policy\"?",
            ),
            (
                "[tls]\ncertificate = 'a'",
                "line 1, column 2: unknown key \"tls\"; `throng serve --help` lists all settings",
            ),
            (
                "durable = true",
                "line 1, column 1: unknown key \"durable\"; it belongs in a table that begins \
                 with [[channels]]",
            ),
            (
                "[[channels]]\nmatch = '*'\n\ndata = '/d'",
                "line 4, column 1: unknown key \"data\"; it belongs to no table, so move it above \
                 the first one",
            ),
            (
                "history = 5",
                "line 1, column 1: `history` is not a single value; begin a table with [history]",
            ),
            (
                "'history.messages' = 5",
                "line 1, column 1: unknown key \"history.messages\"; \
                 did you mean \"messages\" in the table [history]?",
            ),
        ] {
            assert_eq!(refusal(text), format!("throng.toml, {expected}"), "{text}");
        }
    }

    #[test]
    fn a_bad_value_is_reported_with_its_place_and_what_is_accepted() {
        for (text, expected) in [
            (
                "welcome = true\nheartbeat = -25",
                "line 2, column 13: heartbeat: \"-25\" is not a time, like \"25s\",",
            ),
            (
                "listen = '127.0.0.1'",
                "line 1, column 10: listen: \"127.0.0.1\" has no port; add it, like",
            ),
            (
                "[[channels]]\nmatch = '*'\nbytes = '4 apples'",
                "line 3, column 9: bytes: \"4 apples\" is not a size, like",
            ),
            ("[history]\nmessages = [1]", "line 2, column 12: messages: [1] is not a whole number"),
            (
                "workers = -1",
                "line 1, column 11: workers: \"-1\" is not a whole number of at least 1",
            ),
            ("welcome = 'so'", "line 1, column 11: welcome: \"so\" is not true or false"),
            (
                "channels = 1",
                "line 1, column 1: `channels` is not a single value; begin each table with \
                 [[channels]]",
            ),
            (
                "[channels]\nmatch = 'a'",
                "line 1, column 2: `channels` is not a single table; begin each table with \
                 [[channels]]",
            ),
            ("log = 'info'\nlog = 'warn'", "line 2, column 1: `log` is set a second time"),
            ("ä = ", "line 1, column 1: \"ä\" is not a key"),
            (
                "welcome = true\nlisten = 127.0.0.1:80",
                "line 2, column 10: the value of `listen` needs quotation marks: listen = \
                 \"127.0.0.1:80\"",
            ),
            ("[history\nmessages = 1", "line 1, column 1: the name of the table is not closed"),
        ] {
            let refusal = refusal(text);
            let expected = format!("throng.toml, {expected}");
            assert!(refusal.starts_with(&expected), "{text}: {refusal}");
            assert!(!refusal.contains('\n'), "{refusal}");
        }
    }

    #[test]
    fn no_error_quotes_a_secret() {
        for text in [
            "[[token-keys]]\nsecret = hunter2",
            "[[token-keys]]\nsecret: hunter2",
            "[[token-keys]]\nsecret = 'hunter2",
            "[[token-keys]]\nsecret = 'a'\nsecret = 'hunter2'",
            "[[token-keys]]\nsecrets = hunter2",
            "[[token-keys]]\nsecrets = 'hunter2'",
            "token-keys = [{ secret = hunter2 }]",
            "[[server-keys]]\nsecret = 'hunter2'",
            "secret = 'hunter2'",
        ] {
            let refusal = refusal(text);
            assert!(refusal.starts_with("throng.toml, line "), "{text}: {refusal}");
            assert!(!refusal.contains("hunter2"), "{text}: {refusal}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let text = "revocations-file = 'revoked'\n[[token-keys]]\nsecret-file = 's'";
        let settings = read("/etc/throng.toml", text).unwrap().resolve();
        assert_eq!(settings.revocations_file.to_string(), "/etc/revoked");
        let key = &settings.token_keys[0];
        assert_eq!(key.secret_file.as_deref(), Some(Path::new("/etc/s")));
        assert_eq!(key.at, "/etc/throng.toml, [[token-keys]] number 1");
    }

    #[test]
    fn a_named_file_must_exist() {
        let error = find_and_read(Some(Path::new("no/such/throng.toml"))).unwrap_err();
        assert_eq!(error.to_string(), "there is no file no/such/throng.toml");
    }
}

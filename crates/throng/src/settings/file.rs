//! Settings from `throng.toml`.
//!
//! Every error names the file and the line, and says what is accepted, or which key was meant.

use std::path::Path;

use throng_settings::{Document, Reader};

use super::table::{Options, Settings, SettingsError};

/// The file that is read, if it exists, when none is named.
const DEFAULT_FILE: &str = "throng.toml";

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
    let refuse = |place, message: &str| SettingsError(document.at(place, message));
    let table = document.parse().map_err(|(place, sentence)| {
        // An explanation of the line would quote a secret.
        let has_secret = document.line(place).to_ascii_lowercase().contains("secret");
        let quiet = "a secret is a text in quotation marks";
        refuse(place, if has_secret { quiet } else { &sentence })
    })?;
    let path = Path::new(&document.name);
    let reader =
        Reader::new(Settings::known(String::new()), path.parent().unwrap_or(Path::new("")))
            .with_help("`throng serve --help` lists all settings");
    let options = Options::read(&reader.section(table.get_ref(), &Settings::keys()));
    match reader.errors().first() {
        Some((place, message)) => Err(refuse(*place, message)),
        None => Ok(options.placed(path)),
    }
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
                "[per-user]\nbogus = 1",
                "line 2, column 1: unknown key \"bogus\"; known here are \
                 max-connections, connect-rate, max-subscriptions, publish-rate, \
                 publish-byte-rate, read-byte-rate",
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

//! An application: its id, its keys with their secrets, and its names on this server.
//!
//! The names of an application are those of the server with its prefix before them: its channel
//! `news` is `shop/news`, its user `ann` is `shop/ann`. No name of the protocol contains a slash,
//! and the prefix is one segment, so that the names of different applications differ, and what
//! stands before the first slash tells whose a name is.

use std::fmt;

use crate::channel::NAME_BYTES_MAX;
use crate::signature::Signer;

/// The longest prefix, with its slash, in bytes. A name of the server has at most 255.
pub const PREFIX_BYTES_MAX: usize = 255 - NAME_BYTES_MAX;

/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 64;

/// The shortest secret, in bytes: whoever can guess it is the application.
const SECRET_BYTES_MIN: usize = 16;

/// The most keys of an application, of which it uses one, and two while it changes.
pub const KEYS_MAX: usize = 8;

/// Why no application can be so: the predicate of a sentence about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppError {
    #[error("has an id that is not 1 to 20 digits, which the libraries demand")]
    Id,
    #[error("has a key that is not 1 to {KEY_BYTES_MAX} letters, digits, `-` or `_`")]
    Key,
    #[error(
        "has a secret of fewer than {SECRET_BYTES_MIN} bytes; `openssl rand -hex 10` makes one"
    )]
    Secret,
    #[error("has more than {KEYS_MAX} keys")]
    Keys,
    #[error("has the same key twice")]
    KeyTwice,
    #[error(
        "has a prefix that is not a name and a slash, such as \"shop/\", with at most \
         {PREFIX_BYTES_MAX} bytes and without `*`, spaces and control characters"
    )]
    Prefix,
}

/// A key of an application, with the secret that signs for it.
pub struct AppKey {
    name: Box<str>,
    signer: Signer,
    is_enabled: bool,
}

impl AppKey {
    /// The public key, which everybody may know.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Signs and verifies with its secret.
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// True if clients and requests may show it.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }
}

/// An application.
pub struct App {
    id: Box<str>,
    /// At least one.
    keys: Vec<AppKey>,
    prefix: Box<str>,
    shows_history: bool,
}

impl App {
    /// An application with one key, whose names on this server begin with `prefix`.
    ///
    /// # Errors
    ///
    /// See [`AppError`].
    pub fn new(id: &str, key: &str, secret: &[u8], prefix: &str) -> Result<App, AppError> {
        if !(1..=20).contains(&id.len()) || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AppError::Id);
        }
        let segment = prefix.strip_suffix('/').filter(|_| prefix.len() <= PREFIX_BYTES_MAX);
        let is_name = |segment: &str| {
            let is_odd = |letter: char| letter.is_control() || " */{}".contains(letter);
            !matches!(segment, "" | "." | "..") && !segment.contains(is_odd)
        };
        if !segment.is_some_and(is_name) {
            return Err(AppError::Prefix);
        }
        let app =
            App { id: id.into(), keys: Vec::new(), prefix: prefix.into(), shows_history: false };
        app.with_key(key, secret, true)
    }

    /// The same application with one more key.
    ///
    /// # Errors
    ///
    /// See [`AppError`].
    pub fn with_key(mut self, key: &str, secret: &[u8], is_enabled: bool) -> Result<App, AppError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) || !key.bytes().all(is_plain) {
            return Err(AppError::Key);
        }
        if secret.len() < SECRET_BYTES_MIN {
            return Err(AppError::Secret);
        }
        if self.key(key).is_some() {
            return Err(AppError::KeyTwice);
        }
        if self.keys.len() == KEYS_MAX {
            return Err(AppError::Keys);
        }
        self.keys.push(AppKey { name: key.into(), signer: Signer::new(secret), is_enabled });
        Ok(self)
    }

    /// The same application, whose clients may get earlier events or not.
    #[must_use]
    pub fn with_history(self, shows_history: bool) -> App {
        App { shows_history, ..self }
    }

    /// True if its clients may ask for earlier events.
    pub fn shows_history(&self) -> bool {
        self.shows_history
    }

    /// The id, which the paths of its HTTP API have.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its keys. The first is the one with which the server signs.
    pub fn keys(&self) -> &[AppKey] {
        &self.keys
    }

    /// The key with this name.
    pub fn key(&self, name: &str) -> Option<&AppKey> {
        self.keys.iter().find(|key| *key.name == *name)
    }

    /// The beginning of its names on this server.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The server's name of what the application calls `name`.
    pub fn own(&self, name: &str) -> String {
        [&*self.prefix, name].concat()
    }

    /// The application's name of what the server calls `name`; `None` if it is not the
    /// application's.
    pub fn shown<'n>(&self, name: &'n str) -> Option<&'n str> {
        name.strip_prefix(&*self.prefix)
    }

    /// True if `auth`, `KEY:SIGNATURE`, is this application's signature of a text. Any of its keys
    /// may sign, whichever the client shows: pages live longer than keys.
    pub fn has_signed(&self, text: &str, auth: &str) -> bool {
        let Some((name, signature)) = auth.split_once(':') else { return false };
        let key = self.key(name).filter(|key| key.is_enabled);
        key.is_some_and(|key| key.signer.verifies(text, signature))
    }
}

/// Shows no secret.
impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("id", &self.id).field("prefix", &self.prefix).finish()
    }
}

/// The prefix and the application's own name of what the server calls `name`. Without a slash
/// there is no prefix.
pub fn split_prefix(name: &str) -> (&str, &str) {
    name.split_at(name.find('/').map_or(0, |slash| slash + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::tests::SECRET;

    fn app(id: &str, key: &str, secret: &str, prefix: &str) -> Result<App, AppError> {
        App::new(id, key, secret.as_bytes(), prefix)
    }

    #[test]
    fn an_application_has_names_of_its_own() {
        let app = app("3", "278d425bdf160c739803", SECRET, "shop/").unwrap();
        assert_eq!(app.own("news"), "shop/news");
        assert_eq!((app.shown("shop/news"), app.shown("shops/news")), (Some("news"), None));
        assert_eq!(split_prefix("shop/a/b"), ("shop/", "a/b"));
        assert_eq!(split_prefix("news"), ("", "news"));
        let signature = "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4";
        let text = "1234.1234:private-foobar";
        assert!(app.has_signed(text, &format!("278d425bdf160c739803:{signature}")));
        for auth in ["", ":", signature, "278d425bdf160c739803", "278d425bdf160c739803:"] {
            assert!(!app.has_signed(text, auth), "{auth}");
        }
        assert!(!app.has_signed(text, &format!("another:{signature}")));
        assert_eq!((app.keys().len(), app.keys()[0].name()), (1, "278d425bdf160c739803"));
        assert_eq!(format!("{app:?}"), r#"App { id: "3", prefix: "shop/" }"#);
    }

    #[test]
    fn each_enabled_key_signs_with_its_own_secret() {
        let (newer, older) = ("7ad3773142a6692b25b8", "0123456789abcdef");
        let app = app("3", "new", newer, "shop/").unwrap();
        let app = app.with_key("old", older.as_bytes(), true).unwrap();
        let app = app.with_key("gone", older.as_bytes(), false).unwrap();
        let auth = |key: &str, secret: &str| {
            format!("{key}:{}", Signer::new(secret.as_bytes()).sign("text"))
        };
        for (key, secret, has_signed) in [
            ("new", newer, true),
            ("old", older, true),
            ("new", older, false),
            ("old", newer, false),
            ("gone", older, false),
            ("none", older, false),
        ] {
            assert_eq!(app.has_signed("text", &auth(key, secret)), has_signed, "{key} {secret}");
        }
        let twice = app.with_key("old", newer.as_bytes(), true);
        assert_eq!(twice.err(), Some(AppError::KeyTwice));
        let many = |count: usize| {
            let one = App::new("1", "0", newer.as_bytes(), "a/");
            let key = |app: App, nth: usize| app.with_key(&nth.to_string(), newer.as_bytes(), true);
            (1..count).try_fold(one.unwrap(), key).err()
        };
        assert_eq!((many(KEYS_MAX), many(KEYS_MAX + 1)), (None, Some(AppError::Keys)));
    }

    #[test]
    fn what_no_application_can_have_is_refused() {
        let error = |id, key, secret, prefix| app(id, key, secret, prefix).err();
        let longest = format!("{}/", "x".repeat(PREFIX_BYTES_MAX - 1));
        assert_eq!(error("1", "a", SECRET, &longest), None);
        let (long_id, long_key) = ("1".repeat(21), "k".repeat(KEY_BYTES_MAX + 1));
        for id in ["", "a", "1a", "-1", &long_id] {
            assert_eq!(error(id, "a", SECRET, "a/"), Some(AppError::Id), "{id}");
        }
        for key in ["", "a b", "a/b", "é", &long_key] {
            assert_eq!(error("1", key, SECRET, "a/"), Some(AppError::Key), "{key}");
        }
        assert_eq!(error("1", "a", "hunter2", "a/"), Some(AppError::Secret));
        let long = format!("x{longest}");
        for prefix in ["", "/", "a", "a/b/", "./", "../", "a*/", "a b/", "a\n/", "{user}/", &long] {
            assert_eq!(error("1", "a", SECRET, prefix), Some(AppError::Prefix), "{prefix}");
        }
    }
}

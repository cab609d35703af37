//! An application: its id, key and secret, and its names on this server.
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
    #[error(
        "has a prefix that is not a name and a slash, such as \"shop/\", with at most \
         {PREFIX_BYTES_MAX} bytes and without `*`, spaces and control characters"
    )]
    Prefix,
}

/// An application.
pub struct App {
    id: Box<str>,
    key: Box<str>,
    signer: Signer,
    prefix: Box<str>,
}

impl App {
    /// An application whose names on this server begin with `prefix`.
    ///
    /// # Errors
    ///
    /// See [`AppError`].
    pub fn new(id: &str, key: &str, secret: &[u8], prefix: &str) -> Result<App, AppError> {
        if !(1..=20).contains(&id.len()) || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AppError::Id);
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) || !key.bytes().all(is_plain) {
            return Err(AppError::Key);
        }
        if secret.len() < SECRET_BYTES_MIN {
            return Err(AppError::Secret);
        }
        let segment = prefix.strip_suffix('/').filter(|_| prefix.len() <= PREFIX_BYTES_MAX);
        let is_name = |segment: &str| {
            let is_odd = |letter: char| letter.is_control() || " */{}".contains(letter);
            !matches!(segment, "" | "." | "..") && !segment.contains(is_odd)
        };
        if !segment.is_some_and(is_name) {
            return Err(AppError::Prefix);
        }
        let signer = Signer::new(secret);
        Ok(App { id: id.into(), key: key.into(), signer, prefix: prefix.into() })
    }

    /// The id, which the paths of its HTTP API have.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The public key, which everybody may know.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Signs and verifies with the secret.
    pub fn signer(&self) -> &Signer {
        &self.signer
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

    /// True if `auth`, `KEY:SIGNATURE`, is this application's signature of a text.
    pub fn has_signed(&self, text: &str, auth: &str) -> bool {
        let signature = auth.strip_prefix(&*self.key).and_then(|rest| rest.strip_prefix(':'));
        signature.is_some_and(|signature| self.signer.verifies(text, signature))
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
        assert_eq!(format!("{app:?}"), r#"App { id: "3", prefix: "shop/" }"#);
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

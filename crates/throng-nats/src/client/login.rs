//! Logins, and the files that hold them.

use std::fmt;

use super::nkey::{SeedError, UserKey};
use crate::protocol::encoder::ConnectOptions;

const JWT_BEGIN: &str = "-----BEGIN NATS USER JWT-----";
const SEED_BEGIN: &str = "-----BEGIN USER NKEY SEED-----";

/// A login. No secret of it is ever printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Login {
    /// Nobody: the server asks for nothing.
    #[default]
    Anonymous,
    User {
        user: String,
        password: String,
    },
    Token(String),
    /// A key that the servers know.
    Nkey(UserKey),
    /// A key, with its account's statement.
    Credentials {
        /// The account's signed statement: the user's permissions, and until when they hold.
        jwt: String,
        key: UserKey,
    },
}

/// An error in the text of a login. None quotes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// There is nothing.
    #[error("is empty: it has USER:PASSWORD, a token, the seed of an nkey, or a .creds file")]
    Empty,
    /// A file of credentials that ends early, or has something else in it.
    #[error(
        "is not a whole .creds file: it has a user JWT and the seed of an nkey, each between its \
         lines; make it again (nsc generate creds)"
    )]
    Credentials,
    /// A key that cannot be read.
    #[error("cannot be used: {0}")]
    Seed(#[from] SeedError),
}

impl Login {
    /// Reads what a file has: `USER:PASSWORD`, the seed of an nkey, the JWT and the seed of a
    /// `.creds` file, or else a token.
    ///
    /// # Errors
    ///
    /// [`LoginError`], which follows the name of the file.
    pub fn parse(text: &str) -> Result<Login, LoginError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(LoginError::Empty);
        }
        if text.contains(JWT_BEGIN) {
            let jwt = between(text, JWT_BEGIN).ok_or(LoginError::Credentials)?;
            let seed = between(text, SEED_BEGIN).ok_or(LoginError::Credentials)?;
            let key = UserKey::from_seed(seed)?;
            return Ok(Login::Credentials { jwt: jwt.to_owned(), key });
        }
        if text.contains(SEED_BEGIN) {
            let seed = between(text, SEED_BEGIN).ok_or(LoginError::Credentials)?;
            return Ok(Login::Nkey(UserKey::from_seed(seed)?));
        }
        if looks_like_a_seed(text) {
            return Ok(Login::Nkey(UserKey::from_seed(text)?));
        }
        Ok(match text.split_once(':') {
            Some((user, password)) => {
                Login::User { user: user.to_owned(), password: password.to_owned() }
            }
            None => Login::Token(text.to_owned()),
        })
    }

    /// The kind of login, in a word or two.
    pub fn kind(&self) -> &'static str {
        match self {
            Login::Anonymous => "none",
            Login::User { .. } => "user and password",
            Login::Token(_) => "token",
            Login::Nkey(_) => "nkey",
            Login::Credentials { .. } => "JWT and nkey",
        }
    }

    /// True if the server has to send a challenge.
    pub(super) fn is_signed(&self) -> bool {
        matches!(self, Login::Nkey(_) | Login::Credentials { .. })
    }

    /// The fields of the introduction. `nonce` is the server's challenge.
    pub(super) fn connect<'a>(&'a self, name: &'a str, nonce: &str) -> ConnectOptions<'a> {
        let connect = ConnectOptions::new(name);
        match self {
            Login::Anonymous => connect,
            Login::User { user, password } => {
                ConnectOptions { user: Some(user), pass: Some(password), ..connect }
            }
            Login::Token(token) => ConnectOptions { auth_token: Some(token), ..connect },
            Login::Nkey(key) => {
                ConnectOptions { nkey: Some(key.public()), sig: Some(key.sign(nonce)), ..connect }
            }
            Login::Credentials { jwt, key } => {
                ConnectOptions { jwt: Some(jwt), sig: Some(key.sign(nonce)), ..connect }
            }
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.kind())
    }
}

/// A user's seed has 58 letters and digits of base32, which hardly any token has.
fn looks_like_a_seed(text: &str) -> bool {
    let is_base32 = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
    text.len() == 58 && text.starts_with('S') && text.bytes().all(is_base32)
}

/// The line between `begin` and the line of its end.
fn between<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    let mut lines = rest.lines().map(str::trim).filter(|line| !line.is_empty());
    let inner = lines.next().filter(|line| !line.starts_with('-'))?;
    lines.next()?.starts_with("-----").then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::super::nkey::tests::seed;
    use super::*;

    const USER: u8 = 20 << 3;

    #[test]
    fn a_login_is_one_of_four() {
        let user = Login::User { user: "ann".into(), password: "a:b".into() };
        assert_eq!(Login::parse("ann:a:b\n"), Ok(user));
        assert_eq!(Login::parse(" s3cret\n"), Ok(Login::Token("s3cret".into())));
        assert_eq!(Login::parse("\n"), Err(LoginError::Empty));
        let seed = seed([3; 32], USER);
        let key = UserKey::from_seed(&seed).expect("it is a seed");
        assert_eq!(Login::parse(&format!("{seed}\n")), Ok(Login::Nkey(key.clone())));
        let alone = format!("{SEED_BEGIN}\n{seed}\n------END USER NKEY SEED------\n");
        assert_eq!(Login::parse(&alone), Ok(Login::Nkey(key.clone())));
        let whole = format!(
            "{JWT_BEGIN}\r\ney.J.w\r\n------END NATS USER JWT------\r\n\n*** IMPORTANT ***\n{alone}"
        );
        assert_eq!(Login::parse(&whole), Ok(Login::Credentials { jwt: "ey.J.w".into(), key }));
        for cut in [&whole[..60], &whole[..whole.len() - 40], JWT_BEGIN] {
            assert_eq!(Login::parse(cut), Err(LoginError::Credentials), "{cut}");
        }
        let damaged = Login::parse(&whole.replace(&seed[20..24], "7777"));
        assert_eq!(damaged, Err(LoginError::Seed(SeedError::Damaged)));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let seed = seed([5; 32], USER);
        for text in ["ann:s3cret", "s3cret", &seed] {
            let login = Login::parse(text).expect("it is a login");
            let printed = format!("{login:?}");
            assert!(!printed.contains("s3cret") && !printed.contains(&seed), "{printed}");
        }
        let damaged = seed.replace(&seed[30..33], "222");
        let error = Login::parse(&damaged).expect_err("it is damaged").to_string();
        assert!(!error.contains(&damaged[4..20]), "{error}");
    }

    #[test]
    fn a_signature_goes_with_what_names_the_user() {
        let key = UserKey::from_seed(&seed([3; 32], USER)).expect("it is a seed");
        let nkey = Login::Nkey(key.clone());
        let connect = nkey.connect("n", "abc");
        assert_eq!((connect.nkey, connect.jwt), (Some(key.public()), None));
        assert_eq!(connect.sig, Some(key.sign("abc")));
        let login = Login::Credentials { jwt: "j".into(), key: key.clone() };
        let connect = login.connect("n", "abc");
        assert_eq!((connect.nkey, connect.jwt), (None, Some("j")));
        assert_eq!(connect.sig, Some(key.sign("abc")));
    }
}

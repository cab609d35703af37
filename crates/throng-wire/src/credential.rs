//! Credentials: the token or the key that a request shows.
//!
//! | place | on |
//! |---|---|
//! | `Authorization: Bearer TOKEN` | every request |
//! | `?token=TOKEN` | a `GET` that subscribes: an `EventSource` can set no header |
//! | the sub-protocol `throng.token.TOKEN` | a WebSocket: a page can set no other header of one |
//! | a cookie, whose name is a setting | every request, by the rules of [`check_cookie`] |
//! | the command `auth` of `throng.v1` | a connection whose token is to be replaced |
//!
//! Nothing is verified here. A credential is at most [`TOKEN_BYTES_MAX`] visible ASCII characters.
//!
//! # Invariants
//!
//! * No error and no debug output contains a credential or a part of one.
//! * A request has at most one credential: of two different ones the client could not know which
//!   counts, and a proxy could have checked the other. Only of the cookie there may be two, both of
//!   which the browser has from the application: the valid one counts.

mod cookie;
mod find;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::{fmt, iter};

use crate::error::{ErrorCode, ErrorResponse};

pub use cookie::{CookieRequest, check_certificate, check_cookie};
pub use find::{check_scheme, of_request, of_subscription};

/// The longest token or key. A request head has at most 16 KiB unless the settings say otherwise.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;

/// How a server key begins. No token does.
pub const SERVER_KEY_PREFIX: &str = "throng_key_";

/// Where a credential stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The header `Authorization`, with the scheme `Bearer`.
    Header,
    /// An item of `Sec-WebSocket-Protocol`.
    Subprotocol,
    /// The parameter `token`.
    Query,
    /// A cookie. A browser sends it with every request, whatever page makes it.
    Cookie,
    /// The command `auth`. It is alone there.
    Command,
}

impl Place {
    /// Its name in errors.
    fn name(self) -> &'static str {
        match self {
            Place::Header => "`Authorization`",
            Place::Subprotocol => "`Sec-WebSocket-Protocol`",
            Place::Query => "`?token=`",
            Place::Cookie => "`Cookie`",
            Place::Command => "`auth`",
        }
    }
}

/// The token or key of a request, not verified yet.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential<'a> {
    text: Cow<'a, str>,
    place: Place,
    /// The text of a second cookie of the same name.
    other_cookie: Option<Cow<'a, str>>,
}

impl<'a> Credential<'a> {
    /// The token or key itself. It must not reach logs, metrics or errors.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text of a second cookie of the same name.
    pub fn other_cookie(&self) -> Option<&str> {
        self.other_cookie.as_deref()
    }

    /// [`Credential::text`] and [`Credential::other_cookie`].
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        iter::once(self.text()).chain(self.other_cookie())
    }

    /// Where it stands. Where the same credential stands in several places, the first of
    /// [`Place`] counts.
    pub fn place(&self) -> Place {
        self.place
    }

    fn new(text: Cow<'a, str>, place: Place) -> Result<Credential<'a>, ErrorResponse> {
        check(&text)?;
        Ok(Credential { text, place, other_cookie: None })
    }

    /// Takes another cookie of the same name.
    fn add_cookie(&mut self, cookie: Credential<'a>) -> Result<(), ErrorResponse> {
        if self.texts().all(|text| text != cookie.text) {
            if self.other_cookie.is_some() {
                let message = "the request has more than two different cookies for its token";
                return Err(ErrorResponse::new(ErrorCode::InvalidToken, message));
            }
            self.other_cookie = Some(cookie.text);
        }
        Ok(())
    }
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Credential");
        debug.field("place", &self.place).finish_non_exhaustive()
    }
}

/// The token of a command, not verified yet.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

impl Token {
    /// A token of a command, if it can be one.
    pub fn new(text: &str) -> Result<Token, ErrorResponse> {
        check(text)?;
        Ok(Token(text.into()))
    }

    /// The token itself. It must not reach logs, metrics or errors.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The same, as the credential of the command.
    pub fn credential(&self) -> Credential<'_> {
        let text = Cow::Borrowed(self.text());
        Credential { text, place: Place::Command, other_cookie: None }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(..)")
    }
}

fn check(text: &str) -> Result<(), ErrorResponse> {
    let invalid = |message| Err(ErrorResponse::new(ErrorCode::InvalidToken, message));
    if text.is_empty() {
        return invalid("the token is empty");
    }
    if text.len() > TOKEN_BYTES_MAX {
        return invalid("the token is longer than 8 KiB");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return invalid("the token contains a character that no token has");
    }
    Ok(())
}

const _: () = assert!(TOKEN_BYTES_MAX == 8 << 10, "the sentence names the limit");

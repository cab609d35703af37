//! Interface to a decider outside of the server, such as the application. It identifies clients
//! without a credential, confirms clients with a token, and names the headers that it needs.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use throng_core::Body;
use throng_core::later::{Answer, Later};
use throng_wire::{ErrorCode, ErrorResponse, Labels};

use crate::token::Identity;

/// The most bytes of passed headers, names included. A question that waits keeps them.
const PASSED_BYTES_MAX: usize = 8 << 10;

/// The most names of headers that one endpoint may list.
pub const PASSED_NAMES_MAX: usize = 16;

/// The headers that a browser sends by itself, also with requests that a foreign page makes: it
/// remembers the password of HTTP authentication as it does cookies.
const AMBIENT: [&str; 2] = ["cookie", "authorization"];

/// The identity of a client, or the error that it gets.
pub type ConnectVerdict = Result<Arc<Identity>, ErrorResponse>;

/// Decides who a client is that shows neither a token nor a server key, and perhaps whether to let
/// in one with a token. Of that one it can deny or narrow what the token grants, and not change the
/// user.
pub trait Connect: fmt::Debug + Send + Sync {
    /// The identity by an earlier answer that still holds, without asking.
    fn known(&self, newcomer: Newcomer<'_>) -> Option<Arc<Identity>>;

    /// Asks who the client is. Must not wait, as a policy must not.
    fn who(
        &self,
        newcomer: Newcomer<'_>,
        later: Later<'_, ConnectVerdict>,
    ) -> Answer<ConnectVerdict>;

    /// True if it is asked about clients with a token as well.
    fn decides_tokens(&self) -> bool;

    /// True if an earlier answer still holds: it may have ended or have been revoked since.
    ///
    /// # Errors
    ///
    /// The error for the client, if not.
    fn recheck(&self, identity: &Identity, now_s: u64) -> Result<(), ErrorResponse>;

    /// True if a client that shows this header is asked about because of it, and a browser sends
    /// it by itself with requests that a foreign page makes.
    fn passes_ambient(&self, headers: &PassedHeaders) -> bool;

    /// True if browsers of pages elsewhere may be told to send cookies.
    fn passes_cookies(&self) -> bool;
}

/// A client that connects or sends a request.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer<'a> {
    pub transport: &'static str,
    /// The rest of its request.
    pub details: Details<'a>,
    /// Its token, after it was verified; `None` if it shows no credential.
    pub token: Option<ShownToken<'a>>,
}

/// A verified token of a client that is asked about.
#[derive(Clone, Copy)]
pub struct ShownToken<'a> {
    pub identity: &'a Arc<Identity>,
    /// The token itself, which must not reach logs, metrics or errors.
    pub text: &'a str,
}

/// Does not show the token.
impl fmt::Debug for ShownToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShownToken").field("user", &self.identity.user()).finish_non_exhaustive()
    }
}

/// The parts of a client's request, besides a credential, that are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Details<'a> {
    /// The client's address, if it is known and those who decide need it.
    pub address: Option<IpAddr>,
    /// Its headers; `None` where no request is at hand, such as for a command on a WebSocket.
    pub headers: Option<&'a PassedHeaders>,
    /// The content of a publication, if the policy [reads](crate::Access::reads_content) it.
    pub content: Option<Draft<'a>>,
}

/// The content of a message that is not published yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draft<'a> {
    pub body: &'a Body,
    /// The body's content type; `None` for the usual one of its kind.
    pub content_type: Option<&'a str>,
    /// The event and the tags, which the message keeps whatever becomes of its body.
    pub labels: &'a Labels,
}

/// Selects the parts of requests that are passed on to the decider.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Passed {
    /// The names of the headers, in lower case.
    pub headers: Box<[Box<str>]>,
    /// True if those who decide need the client's address: to pass it on, or because questions of
    /// an address are limited.
    pub address: bool,
    /// True if commands of a connection are decided about by its user, so that workers keep the
    /// names of users.
    pub users: bool,
}

impl Passed {
    /// The headers of a request that are passed on. `values` gives all values of a header. A header
    /// that comes several times is joined as HTTP says (RFC 9110 section 5.3, and RFC 9113 section
    /// 8.2.3 for cookies); bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    ///
    /// They have more than 8 KiB.
    pub fn pick<'h, V: Iterator<Item = &'h [u8]>>(
        &self,
        values: impl Fn(&str) -> V,
    ) -> Result<PassedHeaders, ErrorResponse> {
        let (mut picked, mut bytes) = (Vec::new(), 0);
        for name in &self.headers {
            let mut text: Option<String> = None;
            for value in values(name) {
                bytes += name.len() + value.len();
                if bytes > PASSED_BYTES_MAX {
                    let message = "the headers that the application is asked about have more \
                                   than 8 KiB";
                    return Err(ErrorResponse::new(ErrorCode::HeadTooLarge, message));
                }
                let value = String::from_utf8_lossy(value);
                text = Some(match text {
                    None => value.into_owned(),
                    Some(before) if **name == *"cookie" => format!("{before}; {value}"),
                    Some(before) => format!("{before}, {value}"),
                });
            }
            picked.extend(text.map(|text| (name.clone(), text.into_boxed_str())));
        }
        Ok(PassedHeaders(picked))
    }
}

const _: () = assert!(PASSED_BYTES_MAX == 8 << 10, "the sentence names the limit");

/// Headers of one request that are passed on.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PassedHeaders(Vec<(Box<str>, Box<str>)>);

impl PassedHeaders {
    /// Names, in lower case, and values, which must not reach logs, metrics or errors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Keeps what a browser sends by itself only if it `counts` for this request: whoever decides
    /// must not take a foreign page for the user.
    pub(crate) fn keep_ambient_if(&mut self, counts: impl FnOnce() -> bool) {
        let is_ambient = |name: &str| AMBIENT.contains(&name);
        if self.iter().any(|(name, _)| is_ambient(name)) && !counts() {
            self.0.retain(|(name, _)| !is_ambient(name));
        }
    }

    /// True if the request has this header, and it is passed on.
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|(known, _)| known == name)
    }
}

/// Does not show the values.
impl fmt::Debug for PassedHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(names: &[&str], request: &[(&str, &[u8])]) -> Result<PassedHeaders, ErrorResponse> {
        let names = names.iter().map(|&name| name.into()).collect();
        let passed = Passed { headers: names, ..Passed::default() };
        passed.pick(|wanted| {
            let of_name = request.iter().filter(move |(name, _)| *name == wanted);
            of_name.map(|(_, value)| *value).collect::<Vec<_>>().into_iter()
        })
    }

    #[test]
    fn only_listed_headers_are_passed_on() {
        let request: [(&str, &[u8]); 5] = [
            ("cookie", b"a=1"),
            ("x-key", b"one"),
            ("authorization", b"Bearer secret"),
            ("cookie", b"b=2"),
            ("x-key", b"tw\xff"),
        ];
        let picked = pick(&["x-key", "cookie", "absent"], &request).unwrap();
        let expected = [("x-key", "one, tw\u{fffd}"), ("cookie", "a=1; b=2")];
        assert_eq!(picked.iter().collect::<Vec<_>>(), expected);
        assert!(picked.has("cookie") && !picked.has("authorization"));
        assert_eq!(format!("{picked:?}"), r#"["x-key", "cookie"]"#);
    }

    #[test]
    fn passed_headers_are_bounded() {
        let most = vec![b'x'; PASSED_BYTES_MAX - 1];
        assert!(pick(&["a"], &[("a", &most)]).is_ok());
        assert!(pick(&["a"], &[("b", &[b'x'; 2 * PASSED_BYTES_MAX])]).is_ok());
        let error = pick(&["a"], &[("a", &most), ("a", b"")]).unwrap_err();
        assert_eq!(error.code, ErrorCode::HeadTooLarge);
    }
}

//! The table of error codes.

use std::fmt;

use super::Retry;
use crate::websocket::close_code;

/// Declares [`ErrorCode`]. A row gives a code's name, its HTTP status and its default message, then
/// what only some codes have: a close code, a retry.
macro_rules! error_codes {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident $name:literal $status:literal $message:literal
        $(, close $close:ident)? $(, retry $retry:expr)?;
    )*) => {
        /// Why a request, a command or a line of a batch is refused. Clients may rely on the name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ErrorCode { $($(#[doc = $doc])+ $variant,)* }

        impl ErrorCode {
            /// All codes, in the order of their status.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            const fn row(self) -> Row {
                match self {
                    $(ErrorCode::$variant => {
                        Row::new($name, $status, $message)
                            $(.closing(close_code::$close))?
                            $(.retried($retry))?
                    })*
                }
            }
        }
    };
}

/// The table's row of one code.
struct Row {
    name: &'static str,
    status: u16,
    message: &'static str,
    close_code: Option<u16>,
    retry: Option<Retry>,
}

impl Row {
    const fn new(name: &'static str, status: u16, message: &'static str) -> Row {
        Row { name, status, message, close_code: None, retry: None }
    }

    const fn closing(self, close_code: u16) -> Row {
        Row { close_code: Some(close_code), ..self }
    }

    const fn retried(self, retry: Retry) -> Row {
        Row { retry: Some(retry), ..self }
    }
}

error_codes! {
    /// A malformed request head or command.
    BadRequest "bad_request" 400 "the request is malformed", close POLICY_VIOLATION;
    /// Lengths that contradict each other or are no lengths; a body that ends early.
    BadLength "bad_length" 400 "the length of the request body is malformed";
    /// A name that no channel or user can have.
    BadName "bad_name" 400 "the name of the channel or user is malformed";
    /// Something in place of a message id, or the wrong number of ids.
    BadId "bad_id" 400 "the message id is malformed";
    /// An unknown, repeated or invalid parameter of a query, or an invalid header.
    BadParameter "bad_parameter" 400 "a parameter of the request is invalid";
    /// More channels than one connection may follow.
    TooManyChannels "too_many_channels" 400 "one connection cannot follow this many channels";
    /// A JSON body, line or command that is not JSON.
    BadJson "bad_json" 400 "this is not JSON";
    /// Text that is not UTF-8.
    BadUtf8 "bad_utf8" 400 "the text is not UTF-8", close INVALID_PAYLOAD;
    /// An invalid WebSocket handshake.
    BadHandshake "bad_handshake" 400 "the WebSocket handshake is malformed";
    /// A compressed WebSocket message that does not inflate by itself.
    BadCompression "bad_compression" 400
        "a compressed message does not inflate by itself; connect with ?compression=none",
        close BAD_COMPRESSION;
    /// A request that needs a token or a key and has neither.
    Unauthorized "unauthorized" 401 "this needs a token", close UNAUTHORIZED;
    /// A token or key that is malformed, forged, or not for this server.
    InvalidToken "invalid_token" 401 "the token is not valid", close UNAUTHORIZED;
    /// A token after its expiry.
    TokenExpired "token_expired" 401 "the token has expired", close EXPIRED;
    /// A token that was revoked.
    TokenRevoked "token_revoked" 401 "the token is revoked", close REVOKED;
    /// A page whose origin may not use the server.
    OriginRefused "origin_refused" 403 "pages of this origin may not use this server";
    /// A `Host` under which the server does not answer.
    HostRefused "host_refused" 403 "this server does not answer under this host name";
    /// A request through a proxy to a server that is for its machine only.
    ForwardedRefused "forwarded_refused" 403 "this server does not answer through a proxy";
    /// An action that the settings or the client's token do not allow.
    Forbidden "forbidden" 403 "this is not allowed", close POLICY_VIOLATION;
    /// A path that does not exist.
    NotFound "not_found" 404 "there is nothing at this path";
    /// A channel that has to be created before it is used.
    NotCreated "not_created" 404
        "nobody has created the channel, which its rule requires", close POLICY_VIOLATION;
    /// A method that the path does not allow.
    MethodNotAllowed "method_not_allowed" 405 "this path does not allow this method";
    /// A head, body or message that did not arrive within its timeout.
    TooSlow "too_slow" 408 "the request did not arrive in time", close TIMEOUT;
    /// On `throng.v1`: a second subscription to the same channel.
    AlreadySubscribed "already_subscribed" 409 "this connection follows the channel already";
    /// On `throng.v1`: no subscription to end.
    NotSubscribed "not_subscribed" 409 "this connection does not follow the channel";
    /// A message for a channel that has ended.
    Closed "closed" 409 "the channel has ended: it takes no more messages", close NORMAL;
    /// The creation of a channel that has other properties.
    AlreadyCreated "already_created" 409 "the channel was created with other properties";
    /// A change whose condition does not hold: another one came first.
    Conflict "conflict" 412 "this has changed meanwhile";
    /// A message or batch over its limit.
    TooLarge "too_large" 413 "the message is too large", close MESSAGE_TOO_BIG;
    /// A request line over the limit of the head.
    UriTooLong "uri_too_long" 414 "the request line is too long";
    /// A message of another content type than its channel has.
    OtherType "other_type" 415 "the channel takes messages of its own content type only",
        close POLICY_VIOLATION;
    /// A transport that needs an upgrade which the request does not ask for.
    UpgradeRequired "upgrade_required" 426 "a WebSocket needs an upgrade to version 13";
    /// More than an address, a user or a key may have or do at a time.
    TooManyRequests "too_many_requests" 429 "this is more than one client may do at a time",
        close LIMIT, retry Retry::LIMIT;
    /// Headers over the limit of the head, or too many of them.
    HeadTooLarge "head_too_large" 431 "the request line and headers are too large";
    /// A transfer coding other than `chunked`.
    NotImplemented "not_implemented" 501
        "the only transfer coding that the server understands is `chunked`";
    /// No capacity for another subscriber.
    Full "full" 503
        "the server accepts no more subscribers for now; publishing and reading still work",
        close TRY_AGAIN_LATER, retry Retry::FULL;
    /// More work than the server keeps up with.
    Busy "busy" 503 "the server does not keep up with requests; try again later",
        close TRY_AGAIN_LATER, retry Retry::BUSY;
    /// The journal of the channel's messages cannot be reached. Nothing was published.
    Unavailable "unavailable" 503
        "the journal of the channel cannot be reached; try again later",
        close TRY_AGAIN_LATER, retry Retry::BUSY;
    /// The server is shutting down.
    Draining "draining" 503 "the server is shutting down; another one will take over",
        close SERVICE_RESTART, retry Retry::DrainWindow;
    /// A publication whose outcome did not become known in time.
    OutcomeUnknown "outcome_unknown" 504
        "it is not known whether this is published; repeat it with its idempotency key",
        close TRY_AGAIN_LATER;
    /// A version of HTTP that the server does not speak.
    BadVersion "bad_version" 505 "this server speaks HTTP/1.0 and HTTP/1.1";
    /// A revocation or message for which there is no room, in memory or on the disk.
    NotStored "not_stored" 507 "the server could not store this";
}

impl ErrorCode {
    /// The code in bodies, error frames, logs and metrics.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The HTTP status; for a code that only `throng.v1` uses, the one that HTTP would use.
    pub const fn status(self) -> u16 {
        self.row().status
    }

    /// The code that closes a WebSocket for this error; `None` for errors that no open WebSocket
    /// is closed for.
    pub const fn close_code(self) -> Option<u16> {
        self.row().close_code
    }

    /// The close code of a WebSocket that is opened only to say why its subscription is refused,
    /// because a page cannot read the status; `None` if the status is the response.
    pub const fn subscription_close_code(self) -> Option<u16> {
        match self {
            // The connection is closed, not a single frame refused.
            ErrorCode::Forbidden => Some(close_code::FORBIDDEN),
            _ if self.status() == 401 || self.retry().is_some() => self.close_code(),
            _ => None,
        }
    }

    /// The header `WWW-Authenticate` of the response (RFC 6750, section 3). A request without
    /// credentials gets no `error`.
    pub const fn challenge(self) -> Option<&'static str> {
        match self {
            ErrorCode::Unauthorized => Some("Bearer"),
            _ if self.status() == 401 => Some("Bearer error=\"invalid_token\""),
            _ => None,
        }
    }

    /// When the client may try again; `None` if trying again does not help.
    pub const fn retry(self) -> Option<Retry> {
        self.row().retry
    }

    /// The message, where the place of the error knows no better one.
    pub const fn message(self) -> &'static str {
        self.row().message
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = include_str!("../../../../docs/reference/http.md");

    /// The rows of the reference's table of errors, as cells. The header comes first.
    fn documented() -> Vec<Vec<&'static str>> {
        let (_, section) = REFERENCE.split_once("\n## Errors\n").expect("the section on errors");
        let table = section.lines().skip_while(|line| !line.starts_with('|'));
        let rows = table.take_while(|line| line.starts_with('|'));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
    }

    fn row(code: ErrorCode) -> Vec<String> {
        let retry = match code.retry() {
            None => String::new(),
            Some(Retry::Within { min_ms, max_ms }) => {
                format!("{} to {} s", min_ms / 1000, max_ms / 1000)
            }
            Some(Retry::DrainWindow) => "`drain-window`, or less for few clients".into(),
        };
        let close_code = code.close_code().map(|code| code.to_string()).unwrap_or_default();
        vec![format!("`{}`", code.name()), code.status().to_string(), close_code, retry]
    }

    #[test]
    fn the_reference_has_the_same_table() {
        let documented = documented();
        assert_eq!(documented[0][..4], ["code", "status", "WebSocket close", "`Retry-After`"]);
        let documented: Vec<_> = documented[2..].iter().map(|cells| &cells[..4]).collect();
        let declared: Vec<_> = ErrorCode::ALL.iter().map(|&code| row(code)).collect();
        assert_eq!(documented, declared);
    }

    #[test]
    fn every_429_and_503_and_nothing_else_may_be_retried() {
        for code in ErrorCode::ALL {
            assert_eq!(code.retry().is_some(), matches!(code.status(), 429 | 503), "{code}");
        }
    }

    #[test]
    fn a_subscription_is_closed_for_what_its_page_must_know() {
        for &code in ErrorCode::ALL {
            let is_for_credentials = matches!(code.status(), 401) || code == ErrorCode::Forbidden;
            let is_closed = is_for_credentials || code.retry().is_some();
            assert_eq!(code.subscription_close_code().is_some(), is_closed, "{code}");
            assert_eq!(code.challenge().is_some(), code.status() == 401, "{code}");
        }
    }

    #[test]
    fn each_code_is_in_its_own_place() {
        for (index, code) in ErrorCode::ALL.iter().enumerate() {
            assert_eq!(*code as usize, index, "{code}");
        }
        assert!(ErrorCode::ALL.is_sorted_by_key(|code| code.status()));
    }
}

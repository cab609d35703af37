//! Encoder of a client's operations.

use std::io::Write as _;

use serde::Serialize;

/// How a client introduces itself. Fields that the server does not ask for are left out. It has no
/// `Debug`, because it has secrets.
#[derive(Clone, Serialize)]
pub(crate) struct ConnectOptions<'a> {
    /// True if the server confirms each operation, which nothing here waits for.
    pub(crate) verbose: bool,
    /// True if the server checks the syntax of subjects more strictly.
    pub(crate) pedantic: bool,
    /// True if messages may carry headers.
    pub(crate) headers: bool,
    /// True if a request that nobody listens for is answered with status 503.
    pub(crate) no_responders: bool,
    /// True if the client gets its own publications, if it subscribes to them. The stream's answers
    /// and republications come from the server in any case.
    pub(crate) echo: bool,
    /// The version of the protocol; 1 has INFO at any time.
    pub(crate) protocol: u8,
    /// The language of the client.
    pub(crate) lang: &'a str,
    /// The version of the client.
    pub(crate) version: &'a str,
    /// The name that the server's monitoring shows.
    pub(crate) name: &'a str,
    /// The user to log in as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pass: Option<&'a str>,
    /// The token to log in with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auth_token: Option<&'a str>,
    /// The public key of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nkey: Option<String>,
    /// The account's signed statement about the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jwt: Option<&'a str>,
    /// The signature of the server's challenge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sig: Option<String>,
}

impl<'a> ConnectOptions<'a> {
    /// A client with this name that does not log in.
    pub(crate) fn new(name: &'a str) -> ConnectOptions<'a> {
        ConnectOptions {
            verbose: false,
            pedantic: false,
            headers: true,
            no_responders: true,
            echo: false,
            protocol: 1,
            lang: "rust",
            version: env!("CARGO_PKG_VERSION"),
            name,
            user: None,
            pass: None,
            auth_token: None,
            nkey: None,
            jwt: None,
            sig: None,
        }
    }
}

/// True if a subject can be written: neither empty nor with anything that would end it.
fn is_subject(subject: &str) -> bool {
    !subject.is_empty() && subject.bytes().all(|byte| byte > b' ' && byte != 0x7f)
}

/// Appends CONNECT, the introduction.
pub(crate) fn connect(out: &mut Vec<u8>, connect: &ConnectOptions<'_>) {
    out.extend_from_slice(b"CONNECT ");
    // Writing a struct of texts to memory does not fail.
    let _ = serde_json::to_writer(&mut *out, connect);
    out.extend_from_slice(b"\r\n");
}

/// Appends SUB, a subscription.
pub fn subscribe(out: &mut Vec<u8>, subject: &str, sid: u64) {
    debug_assert!(is_subject(subject));
    let _ = write!(out, "SUB {subject} {sid}\r\n");
}

/// Appends UNSUB, its end.
pub fn unsubscribe(out: &mut Vec<u8>, sid: u64) {
    let _ = write!(out, "UNSUB {sid}\r\n");
}

/// Appends PUB, or HPUB if there are headers.
pub fn publish(
    out: &mut Vec<u8>,
    subject: &str,
    reply: Option<&str>,
    headers: &[u8],
    payload: &[u8],
) {
    debug_assert!(is_subject(subject) && reply.is_none_or(is_subject));
    out.extend_from_slice(if headers.is_empty() { b"PUB " } else { b"HPUB " });
    for token in [Some(subject), reply].into_iter().flatten() {
        out.extend_from_slice(token.as_bytes());
        out.push(b' ');
    }
    if !headers.is_empty() {
        let _ = write!(out, "{} ", headers.len());
    }
    let _ = write!(out, "{}\r\n", headers.len() + payload.len());
    out.extend_from_slice(headers);
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// Appends PING, a question.
pub fn ping(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PING\r\n");
}

/// Appends PONG, its answer.
pub fn pong(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PONG\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_look_as_the_protocol_says() {
        let mut out = Vec::new();
        subscribe(&mut out, "a.b", 7);
        unsubscribe(&mut out, 7);
        publish(&mut out, "a", None, b"", b"xy");
        publish(&mut out, "a", Some("r.1"), b"NATS/1.0\r\n\r\n", b"");
        ping(&mut out);
        pong(&mut out);
        let expected = "SUB a.b 7\r\nUNSUB 7\r\nPUB a 2\r\nxy\r\n\
            HPUB a r.1 12 12\r\nNATS/1.0\r\n\r\n\r\nPING\r\nPONG\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
        out.clear();
        connect(&mut out, &ConnectOptions { user: Some("u\r\n"), ..ConnectOptions::new("n") });
        let text = String::from_utf8_lossy(&out);
        assert!(
            text.starts_with("CONNECT {\"verbose\":false") && text.ends_with("}\r\n"),
            "{text}"
        );
        assert_eq!(text.matches("\r\n").count(), 1);
    }
}

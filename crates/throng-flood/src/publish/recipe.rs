//! How a message becomes the bytes of a publish: what all publishing connections share.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use crate::plan::{PublishBy, Target};
use crate::template::{Template, Values};

/// Where and how a run publishes.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The target, for connections that are made like a subscriber's.
    pub target: Target,
    /// The run, as it is in the marks.
    pub run: u32,
    /// Where to connect: all addresses of the host, the first that works is taken.
    pub addresses: Vec<SocketAddr>,
    /// Requests under way on a connection, at most.
    pub pipeline: usize,
    /// A connect, a handshake and an answer may take so long each.
    pub timeout: Duration,
    /// The client number of the first publishing connection that is made like a subscriber's:
    /// behind those of the subscribers.
    pub first_client: usize,
    /// See [`PublishTarget::refused`](crate::plan::PublishTarget::refused).
    pub refused: Option<String>,
    /// The form of a publish.
    pub by: PublishBy,
}

/// An `http://` or `ws://` URL, cut into what a request needs.
#[derive(Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// `host` or `host:port`, as it goes into the `Host` header.
    pub authority: &'a str,
    /// Without brackets.
    pub host: &'a str,
    /// 80 unless given.
    pub port: u16,
    /// From the slash on; `/` if there is nothing.
    pub path: &'a str,
}

impl<'a> Place<'a> {
    /// Cuts a URL; `None` if it is not one that can be reached without TLS.
    pub fn of(url: &'a str) -> Option<Place<'a>> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("ws://"))?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (host, port) = match authority.rsplit_once(':') {
            // Colons in brackets belong to an IPv6 address.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_whole = !host.is_empty() && (path.is_empty() || path.starts_with('/'));
        let path = if path.is_empty() { "/" } else { path };
        is_whole.then_some(Place { authority, host, port, path })
    }
}

impl Recipe {
    /// Appends the request that publishes `payload` to a stream; nothing if the URL is none.
    pub fn write_request(&self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let PublishBy::Http { method, url, headers, body } = &self.by else { return };
        let values = Values { run: self.run, stream, payload, ..Values::default() };
        let url = url.rendered(&values);
        let Some(place) = Place::of(&url) else { return };
        // Writing to a `Vec` cannot fail, here and below.
        let _ = write!(out, "{method} {} HTTP/1.1\r\n", place.path);
        if !has_header(headers, "host") {
            let _ = write!(out, "Host: {}\r\n", place.authority);
        }
        if !has_header(headers, "content-type") {
            out.extend_from_slice(b"Content-Type: text/plain\r\n");
        }
        for (name, value) in headers {
            let _ = write!(out, "{name}: ");
            value.render(&values, out);
            out.extend_from_slice(b"\r\n");
        }
        // The body's length goes before it and is known after it: five digits' room is left and
        // the body moved only if that does not fit, which no usual message does.
        let mut rendered = Vec::with_capacity(body.text().len() + payload.len());
        body.render(&values, &mut rendered);
        let _ = write!(out, "Content-Length: {}\r\n\r\n", rendered.len());
        out.extend_from_slice(&rendered);
    }

    /// Appends the text of the frame that publishes `payload` to a stream.
    pub fn write_frame_text(&self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let PublishBy::WebSocket { frame } = &self.by else { return };
        frame.render(&Values { run: self.run, stream, payload, ..Values::default() }, out);
    }
}

fn has_header(headers: &[(String, Template)], name: &str) -> bool {
    headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_cut_into_places() {
        let place = |authority, host, port, path| Some(Place { authority, host, port, path });
        for (url, expected) in [
            ("http://a.test:81/c/x?y=1", place("a.test:81", "a.test", 81, "/c/x?y=1")),
            ("ws://a.test", place("a.test", "a.test", 80, "/")),
            ("http://[::1]:8080/", place("[::1]:8080", "::1", 8080, "/")),
            ("http://[::1]", place("[::1]", "::1", 80, "/")),
            ("https://a.test/", None),
            ("http://:80/", None),
            ("http://a.test:x/", None),
            ("http://a.test?x", None),
            ("", None),
        ] {
            assert_eq!(Place::of(url), expected, "{url}");
        }
    }
}

//! The bytes that subscribe a client: the request, and the hello messages of a WebSocket.

use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};

use memchr::memmem::Finder;
use throng_wire::websocket::{Opcode, accept_key, write_masked_frame};

use super::error::ClientPoolError;
use super::resume::IdKind;
use crate::failure::Failure;
use crate::plan::{Node, Subscribed, Target, Transport};
use crate::protocol::http::ResponseHead;
use crate::protocol::refusal;
use crate::protocol::url::Place;
use crate::template::{Placeholder, Template, TemplateValues};

/// A fixed key. A server only has to answer with the matching accept value.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// The mask of all frames. Nothing needs to be hidden from proxies, and zeros cost nothing.
pub(crate) const MASK: [u8; 4] = [0; 4];

/// Context from one message to the next would have to be kept for each client.
const NOT_COMPRESSED: &str = "the server does not compress messages, each by itself";

/// The requests of clients, and the answers that they expect.
#[derive(Debug)]
pub(crate) struct Requests {
    transport: Transport,
    head: RequestHead,
    hello: Vec<Template>,
    /// True if it offers that the server compresses messages.
    pub(super) deflate: bool,
    /// The accept value of [`KEY`].
    accept: String,
    /// The text in the message that confirms a subscription; `None` if the response head confirms
    /// it.
    pub(crate) joined_by: Option<Finder<'static>>,
    /// True if each stream of a client is subscribed, and confirmed, by itself.
    subscribes_each: bool,
    /// Texts in messages without a mark that reject the client.
    refused_by: Vec<String>,
    /// Messages of application-level pings, with the frames that answer them.
    pings: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Requests {
    pub(crate) fn new(target: &Target) -> Requests {
        let mut fixed = String::new();
        match target.transport {
            Transport::WebSocket => {
                fixed.push_str("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: ");
                fixed.extend([KEY, "\r\nSec-WebSocket-Version: 13\r\n"]);
                if target.deflate {
                    fixed.push_str("Sec-WebSocket-Extensions: permessage-deflate; ");
                    fixed.push_str("server_no_context_takeover; client_no_context_takeover\r\n");
                }
            }
            Transport::Sse if !has(&target.headers, "accept") => {
                fixed.push_str("Accept: text/event-stream\r\n");
            }
            Transport::Sse | Transport::Stream | Transport::LongPoll => {}
        }
        let subprotocol = target.subprotocol.clone().into_iter();
        let subprotocol = subprotocol.map(|value| ("Sec-WebSocket-Protocol".to_owned(), value));
        let joined_by = match &target.subscribed {
            Subscribed::Handshake => None,
            Subscribed::Message(text) => Some(Finder::new(text).into_owned()),
        };
        let pings = target.pings.iter().map(|ping| {
            let mut frame = Vec::new();
            write_masked_frame(&mut frame, Opcode::Text, ping.answer.as_bytes(), MASK);
            (ping.ask.clone().into_bytes(), frame)
        });
        Requests {
            transport: target.transport,
            head: RequestHead {
                method: "GET".to_owned(),
                url: target.url.clone(),
                headers: subprotocol.chain(target.headers.clone()).collect(),
                fixed,
            },
            hello: target.hello.clone(),
            deflate: target.deflate,
            accept: String::from_utf8_lossy(&accept_key(KEY.as_bytes())).into_owned(),
            joined_by,
            subscribes_each: target.hello.iter().any(names_one_stream),
            refused_by: target.refused.clone(),
            pings: pings.collect(),
        }
    }

    /// Checks the head of a response that opens a WebSocket.
    pub(crate) fn check_accept(&self, head: &ResponseHead<'_>) -> Result<(), Failure> {
        if head.header("sec-websocket-accept") != Some(&*self.accept) {
            return Err(Failure::Handshake("Sec-WebSocket-Accept is wrong"));
        }
        let accepted = head.header("sec-websocket-extensions");
        if self.deflate && !accepted.is_some_and(is_without_context) {
            return Err(Failure::Handshake(NOT_COMPRESSED));
        }
        Ok(())
    }

    /// How many subscriptions a message confirms, of those that a client with so many streams
    /// waits for.
    pub(super) fn confirmed(&self, message: &[u8], streams: usize) -> (usize, usize) {
        let expected = if self.subscribes_each { streams.max(1) } else { 1 };
        let joined_by = self.joined_by.as_ref();
        (joined_by.map_or(expected, |text| text.find_iter(message).count()), expected)
    }

    /// Fails if a message rejects the client.
    pub(crate) fn check_refusal(&self, message: &[u8]) -> Result<(), Failure> {
        let mut refused_by = self.refused_by.iter();
        refused_by.find_map(|text| refusal::containing(message, text)).map_or(Ok(()), Err)
    }

    pub(super) fn has_pings(&self) -> bool {
        !self.pings.is_empty()
    }

    /// The frames that answer the pings of a protocol. Some servers send several messages, pings
    /// among them, as the lines of one.
    pub(crate) fn answers(&self, message: &[u8]) -> Vec<&[u8]> {
        let answer_to = |line: &[u8]| {
            let ping = self.pings.iter().find(|(ask, _)| ask == line);
            ping.map(|(_, answer)| &answer[..])
        };
        match answer_to(message) {
            Some(answer) => vec![answer],
            None => message.split(|&byte| byte == b'\n').filter_map(answer_to).collect(),
        }
    }

    /// Appends the request of a client, which resumes after the id `resume`.
    pub(crate) fn write(
        &self,
        values: &TemplateValues<'_>,
        resume: Option<(IdKind, &[u8])>,
        to: &mut Vec<u8>,
    ) {
        self.head.write(values, resume, to);
        to.extend_from_slice(b"\r\n");
    }

    /// Appends the hello messages as frames. A message with `{stream}` in it is sent once for each
    /// stream that the client follows.
    pub(crate) fn write_hello(&self, values: &TemplateValues<'_>, to: &mut Vec<u8>) {
        if self.transport != Transport::WebSocket {
            return;
        }
        for hello in &self.hello {
            if values.streams.is_empty() || !names_one_stream(hello) {
                write_masked_frame(to, Opcode::Text, hello.rendered(values).as_bytes(), MASK);
                continue;
            }
            for &stream in values.streams {
                let text = hello.rendered(&TemplateValues { stream, ..*values });
                write_masked_frame(to, Opcode::Text, text.as_bytes(), MASK);
            }
        }
    }
}

/// The head of a request, for each client or each message.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) method: String,
    pub(super) url: Template,
    pub(super) headers: Vec<(String, Template)>,
    /// Further headers, which are always the same.
    pub(super) fixed: String,
}

impl RequestHead {
    /// Appends all of it but the empty line at its end.
    pub(super) fn write(
        &self,
        values: &TemplateValues<'_>,
        resume: Option<(IdKind, &[u8])>,
        to: &mut Vec<u8>,
    ) {
        let url = self.url.rendered(values);
        let place = url.split_once("://").map_or(&*url, |(_, place)| place);
        let place = place.split('#').next().unwrap_or_default();
        let path = place.find(['/', '?']).unwrap_or(place.len());
        let (authority, path) = place.split_at(path);
        let slash = if path.starts_with('/') { "" } else { "/" };
        // Writing to a `Vec` cannot fail.
        let _ = write!(to, "{} {slash}{path}", self.method);
        if let Some((IdKind::Since, id)) = resume {
            to.extend_from_slice(if path.contains('?') { b"&since=" } else { b"?since=" });
            write_query_value(id, to);
        }
        to.extend_from_slice(b" HTTP/1.1\r\n");
        if !has(&self.headers, "host") {
            write_header("Host", authority.as_bytes(), to);
        }
        to.extend_from_slice(self.fixed.as_bytes());
        for (name, value) in &self.headers {
            to.extend_from_slice(name.as_bytes());
            to.extend_from_slice(b": ");
            value.render(values, to);
            to.extend_from_slice(b"\r\n");
        }
        match resume {
            Some((IdKind::LastEventId, id)) => write_header("Last-Event-ID", id, to),
            Some((IdKind::Headers, lines)) => to.extend_from_slice(lines),
            Some((IdKind::Since, _)) | None => {}
        }
    }
}

/// True if there is a header of this name.
pub(super) fn has(headers: &[(String, Template)], name: &str) -> bool {
    headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name))
}

/// True if the server compresses each message by itself.
fn is_without_context(accepted: &str) -> bool {
    let mut parts = accepted.split(';').map(str::trim);
    parts.next() == Some("permessage-deflate")
        && parts.any(|parameter| parameter == "server_no_context_takeover")
}

fn names_one_stream(template: &Template) -> bool {
    template.has(Placeholder::Stream) && !template.text().contains("{streams:")
}

fn write_header(name: &str, value: &[u8], to: &mut Vec<u8>) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        to.extend_from_slice(part);
    }
}

/// Percent-encodes the bytes that would end a value in a query.
fn write_query_value(value: &[u8], to: &mut Vec<u8>) {
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~,:;!*()/@$".contains(&byte) {
            to.push(byte);
        } else {
            to.push(b'%');
            to.push(b"0123456789ABCDEF"[usize::from(byte >> 4)]);
            to.push(b"0123456789ABCDEF"[usize::from(byte & 15)]);
        }
    }
}

/// The nodes to connect to, each with all its addresses: the URL's, then one for each further port
/// and each further node. If the URL names no port and there are others, it has none of its own.
pub(super) fn resolve(
    url: &str,
    ports: &[u16],
    nodes: &[Node],
) -> Result<Vec<Vec<SocketAddr>>, ClientPoolError> {
    let refuse = |reason| ClientPoolError(format!("the target {url:?} cannot be loaded: {reason}"));
    let Place { host, port, default_port } = Place::of(url).map_err(refuse)?;
    let port = port.or(if ports.is_empty() { Some(default_port) } else { None });
    let further = ports.iter().copied().filter(|&further| Some(further) != port);
    let ports = port.into_iter().chain(further).map(|port| look_up(host, port));
    ports.chain(nodes.iter().map(|node| look_up(&node.host, node.port))).collect()
}

/// The addresses of a host, at least one.
pub(super) fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, ClientPoolError> {
    let found = (host, port).to_socket_addrs().map(Vec::from_iter);
    let found = found.map_err(|error| error.to_string());
    found
        .and_then(
            |all| if all.is_empty() { Err("the answer is empty".to_owned()) } else { Ok(all) },
        )
        .map_err(|reason| ClientPoolError(format!("the host {host:?} has no address: {reason}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Streams, TlsSettings};

    pub(crate) fn target(transport: Transport, url: &str) -> Target {
        Target {
            transport,
            url: Template::parse(url).expect("a template"),
            ports: Vec::new(),
            nodes: Vec::new(),
            failover: Vec::new(),
            headers: Vec::new(),
            subprotocol: None,
            deflate: false,
            hello: Vec::new(),
            subscribed: Subscribed::Handshake,
            refused: Vec::new(),
            pings: Vec::new(),
            handshake_timeout: Duration::from_secs(10),
            publish: None,
            streams: Streams::One,
            streams_each: 1,
            tls: TlsSettings::default(),
        }
    }

    fn request(target: &Target, resume: Option<(IdKind, &[u8])>) -> String {
        let mut request = Vec::new();
        let values = TemplateValues { client: 17, ..TemplateValues::default() };
        Requests::new(target).write(&values, resume, &mut request);
        String::from_utf8(request).expect("text")
    }

    #[test]
    fn requests_name_the_client() {
        let target = target(Transport::Stream, "http://h:81/u{i}?a=b#c");
        assert_eq!(request(&target, None), "GET /u17?a=b HTTP/1.1\r\nHost: h:81\r\n\r\n");
        let since = request(&target, Some((IdKind::Since, b"e-1,e 2")));
        assert!(since.starts_with("GET /u17?a=b&since=e-1,e%202 HTTP/1.1\r\n"), "{since}");
    }

    #[test]
    fn headers_can_be_overridden() {
        let mut target = target(Transport::Sse, "http://h");
        assert_eq!(
            request(&target, Some((IdKind::LastEventId, b"7"))),
            "GET / HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\nLast-Event-ID: 7\r\n\r\n"
        );
        let own = |name: &str| (name.to_owned(), Template::parse("x{i}").expect("a template"));
        target.headers = vec![own("host"), own("Accept")];
        assert_eq!(request(&target, None), "GET / HTTP/1.1\r\nhost: x17\r\nAccept: x17\r\n\r\n");
    }

    #[test]
    fn a_hello_is_sent_for_each_stream() {
        let mut target = target(Transport::WebSocket, "ws://h/");
        let template = |text| Template::parse(text).expect("a template");
        target.hello = vec![template("hi"), template("s{stream}"), template("{streams:,}")];
        let mut frames = Vec::new();
        let values = TemplateValues { stream: 4, streams: &[4, 5], ..TemplateValues::default() };
        Requests::new(&target).write_hello(&values, &mut frames);
        let text = |text: &str| {
            let head = [0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
            [&head[..], text.as_bytes()].concat()
        };
        assert_eq!(frames, [text("hi"), text("s4"), text("s5"), text("4,5")].concat());
    }

    #[test]
    fn targets_are_resolved_or_refused() {
        let nodes = ["127.0.0.2:81", "[::1]:9"].map(|node| node.parse().expect("a node"));
        let all = resolve("ws://127.0.0.1:81/x", &[82, 81], &nodes).expect("addresses");
        let all: Vec<_> = all.concat().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["127.0.0.1:81", "127.0.0.1:82", "127.0.0.2:81", "[::1]:9"]);
        let resolve =
            |url: &str, ports: &[u16]| Ok::<_, ClientPoolError>(resolve(url, ports, &[])?.concat());
        assert_eq!(resolve("http://127.0.0.1", &[82, 81]).expect("addresses").len(), 2);
        assert_eq!(resolve("http://[::1]", &[]).expect("an address")[0].to_string(), "[::1]:80");
        let tls = resolve("wss://127.0.0.1", &[]).expect("an address");
        assert_eq!(tls[0].to_string(), "127.0.0.1:443");
        for bad in ["gopher://h", "h:80", "http://h:99999/", "http://no such host/"] {
            assert!(resolve(bad, &[]).is_err(), "{bad}");
        }
    }
}

//! The bytes that publish a message.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::clients::request::Requests;
use crate::plan::{PublishBy, Streams};
use crate::protocol::url::HttpUrl;
use crate::template::{Template, TemplateValues};
use crate::tls::TlsTarget;

/// Builds the requests of a run; all publishing connections share it.
#[derive(Debug)]
pub(crate) struct RequestBuilder {
    /// For connections that open like a subscriber's.
    pub requests: Requests,
    /// The streams of the subscribers.
    pub streams: Streams,
    /// The number of the run, for the marks.
    pub run: u32,
    /// The addresses of each node; connects try those of their node in turn.
    pub nodes: Vec<Vec<SocketAddr>>,
    /// Requests in flight on a connection, at most.
    pub pipeline: usize,
    /// The time limit of a connect, of a handshake and of a response.
    pub timeout: Duration,
    /// The client number of the first publishing connection that opens like a subscriber's; above
    /// the numbers of the subscribers.
    pub first_client: usize,
    /// A text in responses that reject a message; see
    /// [`PublishTarget::refused`](crate::plan::PublishTarget::refused).
    pub refused: Option<String>,
    /// How a message is published.
    pub by: PublishBy,
    /// How connections shake hands; `None` without TLS.
    pub tls: Option<Arc<TlsTarget>>,
}

impl RequestBuilder {
    /// Appends the request that publishes `payload` to a stream; nothing if the URL is invalid.
    pub(crate) fn write_request(&self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let PublishBy::Http { method, url, headers, body } = &self.by else { return };
        let values = TemplateValues { run: self.run, stream, payload, ..TemplateValues::default() };
        let url = url.rendered(&values);
        let Some(place) = HttpUrl::parse(&url) else { return };
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
        // Content-Length precedes the body and is known only after rendering it.
        let mut rendered = Vec::with_capacity(body.text().len() + payload.len());
        body.render(&values, &mut rendered);
        let _ = write!(out, "Content-Length: {}\r\n\r\n", rendered.len());
        out.extend_from_slice(&rendered);
    }

    /// Appends the text of the frame that publishes `payload` to a stream.
    pub(crate) fn write_frame_text(&self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let PublishBy::WebSocket { frame } = &self.by else { return };
        frame.render(
            &TemplateValues { run: self.run, stream, payload, ..TemplateValues::default() },
            out,
        );
    }
}

fn has_header(headers: &[(String, Template)], name: &str) -> bool {
    headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name))
}

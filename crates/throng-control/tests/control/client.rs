//! A client that sees every byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// How long a test waits before it fails: longer than any operation takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    stream: TcpStream,
    /// Bytes read from the socket that belong to the next response.
    unread: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, unread: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends bytes; the server may have closed the connection already.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    pub(crate) fn send_byte_by_byte(&mut self, bytes: impl AsRef<[u8]>) {
        for byte in bytes.as_ref() {
            self.send([*byte]);
        }
    }

    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    pub(crate) fn answer(&mut self) -> Answer {
        self.answer_with(true)
    }

    /// Reads the next response, which belongs to a `HEAD` and has no body.
    pub(crate) fn answer_to_head(&mut self) -> Answer {
        self.answer_with(false)
    }

    fn answer_with(&mut self, has_body: bool) -> Answer {
        let end = loop {
            match self.unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.read_more(),
            }
        };
        let head = String::from_utf8(self.unread.drain(..end).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let field = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        assert!(status == 100 || head.contains("\r\nDate: "), "{head}");
        let mut answer = Answer { status, fields: lines.map(field).collect(), body: Vec::new() };
        let length = answer.field("content-length").map_or(0, |value| value.parse().unwrap());
        if has_body && !matches!(status, 100 | 204 | 304) {
            while self.unread.len() < length {
                self.read_more();
            }
            answer.body = self.unread.drain(..length).collect();
        }
        answer
    }

    fn read_more(&mut self) {
        let mut bytes = [0; 4096];
        let read = self.stream.read(&mut bytes).unwrap();
        assert!(read > 0, "ended after {:?}", String::from_utf8_lossy(&self.unread));
        self.unread.extend_from_slice(&bytes[..read]);
    }

    /// Waits until the server closes the connection, and expects no byte before.
    pub(crate) fn expect_end(&mut self) {
        assert_eq!(self.rest(), "");
    }

    /// Reads everything until the server closes the connection.
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8(self.rest_bytes()).unwrap()
    }

    pub(crate) fn rest_bytes(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.unread);
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
        bytes
    }

    pub(crate) fn read_exact(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            self.read_more();
        }
        self.unread.drain(..count).collect()
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(field, _)| field == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert_eq!(found.next(), None, "{name} is repeated");
        value
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.field("content-type"), Some("application/json"), "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Expects an error response in the form of the reference. Returns its status and code.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let json = self.json();
        let message = json["message"].as_str().unwrap();
        assert!(message.len() > 10 && !message.contains('\n'), "{message:?}");
        assert_eq!(json.as_object().unwrap().len(), 2);
        assert_eq!(self.field("retry-after").is_some(), matches!(self.status, 429 | 503));
        assert_eq!(self.field("cache-control"), Some("no-store"));
        (self.status, json["error"].as_str().unwrap().to_owned())
    }

    #[track_caller]
    pub(crate) fn expect_refusal(&self, status: u16, code: &str) {
        assert_eq!(self.refusal(), (status, code.to_owned()), "{self:?}");
    }

    /// True if it is the last response of the connection.
    pub(crate) fn closes(&self) -> bool {
        self.field("connection") == Some("close")
    }
}

/// A request without a body; `fields` are whole lines.
pub(crate) fn request(method: &str, target: &str, fields: &[&str]) -> String {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!("{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}\r\n")
}

pub(crate) fn get(target: &str) -> String {
    request("GET", target, &[])
}

/// A request without a body for the host `host`.
pub(crate) fn get_from(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

pub(crate) fn post(target: &str, fields: &[&str], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = format!("Content-Length: {}", body.len());
    let head = request("POST", target, &[fields, &[&length]].concat());
    [head.as_bytes(), body].concat()
}

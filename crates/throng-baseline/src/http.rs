//! A small HTTP/1.1 client: publishing and `/health` over blocking sockets, and the parser that
//! the non-blocking publishers share.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// An answer must come within this.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// More than any answer that the probe asks for.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;

/// The end of a response's head.
pub const HEAD_END: &[u8] = b"\r\n\r\n";

/// A connection to the server, kept alive.
pub struct Http {
    stream: TcpStream,
    /// Received and not yet given out.
    received: Vec<u8>,
}

impl Http {
    /// Connects to `port` of 127.0.0.1.
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("cannot connect to port {port}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends requests, several in a row if they are pipelined.
    pub fn send(&mut self, requests: &[u8]) -> Result<()> {
        self.stream.write_all(requests).context("cannot send a request")
    }

    /// Waits for the next answer and requires it to be a success.
    pub fn expect_success(&mut self) -> Result<()> {
        loop {
            if let Some(response) = parse_response(&self.received)? {
                let success = (200..300).contains(&response.status);
                let text = String::from_utf8_lossy(&self.received[..response.bytes]).into_owned();
                self.received.drain(..response.bytes);
                ensure!(success, "the server answered: {text}");
                return Ok(());
            }
            ensure!(self.received.len() < RESPONSE_BYTES_MAX, "an answer does not end");
            let mut part = [0; 16 * 1024];
            match self.stream.read(&mut part).context("no answer came")? {
                0 => bail!("the server closed the connection instead of answering"),
                bytes => self.received.extend_from_slice(&part[..bytes]),
            }
        }
    }
}

/// A GET request.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").into_bytes()
}

/// A POST request.
pub fn post(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// A whole response at the start of what was received.
#[derive(Debug, PartialEq)]
pub struct Response {
    /// Its status code.
    pub status: u16,
    /// Its length, head and body.
    pub bytes: usize,
}

/// The response that `received` starts with; `None` if it is not there yet.
pub fn parse_response(received: &[u8]) -> Result<Option<Response>> {
    let Some(head_bytes) = find(received, HEAD_END).map(|at| at + HEAD_END.len()) else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&received[..head_bytes]).context("a head is not text")?;
    let status = status(head).with_context(|| format!("no status in {head:?}"))?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.with_context(|| format!("no Content-Length in {head:?}"))?;
    let bytes = head_bytes.saturating_add(length);
    Ok((received.len() >= bytes).then_some(Response { status, bytes }))
}

/// The status code of a head.
pub fn status(head: &str) -> Option<u16> {
    head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// Where `part` first occurs.
pub fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n";

    #[test]
    fn a_response_is_whole_only_with_its_last_byte() {
        let whole_bytes = find(TWO, b"okHTTP").expect("end of the first") + 2;
        for bytes in 0..whole_bytes {
            assert_eq!(parse_response(&TWO[..bytes]).expect("valid"), None, "{bytes} bytes");
        }
        let whole = Some(Response { status: 201, bytes: whole_bytes });
        assert_eq!(parse_response(TWO).expect("valid"), whole);
    }

    #[test]
    fn a_response_without_length_or_status_is_refused() {
        assert!(parse_response(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse_response(b"SMTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(parse_response(b"HTTP/1.1 2").expect("incomplete").is_none());
    }

    #[test]
    fn a_post_names_its_length() {
        let request = post("/channels/a", "text/plain", b"hello");
        assert!(request.ends_with(b"Content-Length: 5\r\n\r\nhello"));
    }
}

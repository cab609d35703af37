//! A small HTTP/1.1 client: requests over a blocking socket, and a parser of responses that the
//! non-blocking publishers share.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The maximum time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The end of a head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A connection that is kept alive.
pub(crate) struct Http {
    stream: TcpStream,
    /// Bytes of responses that were not returned yet.
    received: Vec<u8>,
}

impl Http {
    /// Connects to `port` of 127.0.0.1.
    pub(crate) fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("cannot connect to port {port}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends one request, or several pipelined ones.
    pub(crate) fn send(&mut self, requests: &[u8]) -> Result<()> {
        self.stream.write_all(requests).context("cannot send a request")
    }

    /// Waits for the next response. An error if its status is not 2xx.
    pub(crate) fn expect_success(&mut self) -> Result<()> {
        let response = loop {
            if let Some(response) = parse_response(&self.received)? {
                break response;
            }
            let mut part = [0; 16 * 1024];
            let bytes = self.stream.read(&mut part).context("no response")?;
            ensure!(bytes > 0, "the server closed the connection without a response");
            self.received.extend_from_slice(&part[..bytes]);
        };
        let text: Vec<u8> = self.received.drain(..response.bytes).collect();
        let is_success = (200..300).contains(&response.status);
        ensure!(is_success, "the server answered: {}", String::from_utf8_lossy(&text));
        Ok(())
    }
}

/// A GET request.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").into_bytes()
}

/// A POST request.
pub(crate) fn post(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// The length of a complete head, with its end.
pub(crate) fn head_bytes(received: &[u8]) -> Option<usize> {
    let end = received.windows(HEAD_END.len()).position(|window| window == HEAD_END)?;
    Some(end + HEAD_END.len())
}

/// The status code of a head.
pub(crate) fn status(head: &str) -> Option<u16> {
    head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// A complete response.
#[derive(Debug, PartialEq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The length of head and body.
    pub(crate) bytes: usize,
}

/// The response at the start of `received`; `None` if it is incomplete. An error without a status
/// or a Content-Length.
pub(crate) fn parse_response(received: &[u8]) -> Result<Option<Response>> {
    let Some(head_bytes) = head_bytes(received) else { return Ok(None) };
    let head = std::str::from_utf8(&received[..head_bytes]).context("a head is not UTF-8")?;
    let status = status(head).with_context(|| format!("no status in {head:?}"))?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.with_context(|| format!("no Content-Length in {head:?}"))?;
    let bytes = head_bytes.saturating_add(length);
    Ok((received.len() >= bytes).then_some(Response { status, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_with_its_last_byte() {
        let two = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n";
        let bytes = 45;
        for part in 0..bytes {
            assert_eq!(parse_response(&two[..part]).expect("valid"), None, "{part} bytes");
        }
        let response = parse_response(two).expect("valid");
        assert_eq!(response, Some(Response { status: 201, bytes }));
    }

    #[test]
    fn a_response_without_length_or_status_is_an_error() {
        assert!(parse_response(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse_response(b"SMTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err());
    }
}

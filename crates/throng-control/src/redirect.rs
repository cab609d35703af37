//! The listener that sends clients from http to https.
//!
//! It reads one request head and answers it with `308 Permanent Redirect`, which keeps method and
//! body. It serves nothing, so what reaches it in plain text is a client's first request only.

use std::io;
use std::pin::pin;
use std::time::Duration;

use http::StatusCode;
use http::uri::Authority;
use throng_wire::head::{self, Limits, Parsed};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Maximum number of connections. Each lasts for one answer; beyond the maximum, further ones wait
/// in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;

/// How long to wait before the next attempt after a connection could not be accepted. The process
/// is short of descriptors or memory, which lasts.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Size of the first read. Most request heads fit.
const FIRST_BYTES: usize = 2 << 10;

/// How the redirect answers.
#[derive(Debug, Clone, Copy)]
pub struct Redirect {
    /// The port for https, as clients reach it.
    pub port: u16,
    /// Maximum size of a request head.
    pub max_head_bytes: usize,
    /// How long a connection may take, from its first byte to the answer.
    pub timeout: Duration,
}

impl Redirect {
    /// Serves a listener in nonblocking mode until `stop` is over. Then it accepts no more, and
    /// returns when the connections that it has have been answered.
    pub async fn serve(self, listener: std::net::TcpListener, stop: impl Future<Output = ()>) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot serve the redirect to https"),
        };
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                    match accepted {
                        Ok((stream, _)) => drop(connections.spawn(self.answer(stream))),
                        Err(_) => sleep(ERROR_PAUSE).await,
                    }
                }
            }
        }
        // The next process may listen on the same socket.
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    async fn answer(self, mut stream: TcpStream) {
        let answering = async {
            let mut bytes = Vec::with_capacity(FIRST_BYTES);
            loop {
                if stream.read_buf(&mut bytes).await? == 0 {
                    return Ok(());
                }
                if let Some(answer) = self.answer_to(&bytes) {
                    stream.write_all(&answer).await?;
                    return stream.shutdown().await;
                }
            }
        };
        // The client may be gone, or slow: there is nothing to tell it.
        let _: Result<io::Result<()>, _> = timeout(self.timeout, answering).await;
    }

    /// The answer to the request that begins `bytes`; `None` while its head is incomplete.
    fn answer_to(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let head = match head::parse(bytes, Limits { max_head_bytes: self.max_head_bytes }) {
            Ok(Parsed::Incomplete) => return None,
            Ok(Parsed::Complete { head, .. }) => head,
            Err(error) => return Some(refusal(&error)),
        };
        let target = bytes.trim_ascii_start().split(|byte| *byte == b' ').nth(1);
        let target = target.filter(|target| target.starts_with(b"/"));
        let target = target.filter(|target| target.iter().all(u8::is_ascii_graphic));
        let host = head.host().and_then(|host| host.parse::<Authority>().ok());
        let (Some(target), Some(host)) = (target, host) else {
            let message = "this port redirects to https, and the request names no host and path";
            return Some(refusal(&ErrorResponse::new(ErrorCode::BadRequest, message)));
        };
        let port = if self.port == 443 { String::new() } else { format!(":{}", self.port) };
        let mut answer =
            format!("HTTP/1.1 308 Permanent Redirect\r\nLocation: https://{}{port}", host.host())
                .into_bytes();
        answer.extend_from_slice(target);
        answer.extend_from_slice(b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        Some(answer)
    }
}

fn refusal(error: &ErrorResponse) -> Vec<u8> {
    let body = error.body();
    let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::BAD_REQUEST);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(port: u16, request: &str) -> Option<String> {
        let redirect = Redirect { port, max_head_bytes: 1000, timeout: Duration::from_secs(1) };
        let answer = redirect.answer_to(request.as_bytes())?;
        Some(String::from_utf8(answer).unwrap())
    }

    fn location(port: u16, request: &str) -> String {
        let answer = answer(port, request).unwrap();
        assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
        let line = answer.lines().find_map(|line| line.strip_prefix("Location: "));
        line.unwrap().to_owned()
    }

    #[test]
    fn host_and_target_stay_as_they_are_and_the_port_changes() {
        let get = |target, host| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for (port, host, target, expected) in [
            (443, "a.example", "/", "https://a.example/"),
            (443, "a.example:80", "/channels/a?wait=1", "https://a.example/channels/a?wait=1"),
            (8443, "a.example:8080", "/x", "https://a.example:8443/x"),
            (8443, "[::1]:8080", "/", "https://[::1]:8443/"),
        ] {
            assert_eq!(location(port, &get(target, host)), expected);
        }
        assert_eq!(
            location(443, "POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 9\r\n\r\n"),
            "https://b/a"
        );
    }

    #[test]
    fn a_head_is_awaited() {
        assert_eq!(answer(443, "GET / HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(answer(443, ""), None);
    }

    #[test]
    fn what_names_no_host_and_path_is_refused() {
        for request in [
            "GET / HTTP/1.0\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "\x16\x03\x01\x02\x00\x01\r\n\r\n",
        ] {
            let answer = answer(443, request).unwrap();
            assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{request:?}: {answer}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(1000));
        assert!(answer(443, &long).unwrap().starts_with("HTTP/1.1 4"));
    }
}

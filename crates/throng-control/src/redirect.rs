//! The listener that sends clients from http to https.
//!
//! It reads one request head and answers it with `308 Permanent Redirect`, which keeps method and
//! body. It serves nothing, so what reaches it in plain text is a client's first request only.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::uri::Authority;
use throng_wire::head::{self, Limits, Parsed};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{sleep, timeout};

use crate::metrics::{MetricSource, OtherMetric, OtherValue};

/// Maximum number of connections. Each lasts for one answer.
const CONNECTIONS_MAX: usize = 256;

/// Maximum number of connections of one address. Beyond it, and beyond [`CONNECTIONS_MAX`], a new
/// connection takes the place of the oldest one that has sent nothing, of the address or of all; if
/// each has sent something, it is closed.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 32;

/// How long to wait before the next attempt after a connection could not be accepted. The process
/// is short of descriptors or memory, which lasts.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Size of the first read. Most request heads fit.
const FIRST_BYTES: usize = 2 << 10;

/// Connections that were ended without an answer.
#[derive(Debug, Default)]
pub struct RedirectCounts {
    /// Gave way to another connection, having sent nothing.
    gave_way: AtomicU64,
    /// Closed at the accept.
    refused: AtomicU64,
}

impl MetricSource for RedirectCounts {
    fn metrics(&self) -> Vec<OtherMetric> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = vec![("gave_way", count(&self.gave_way)), ("refused", count(&self.refused))];
        vec![OtherMetric {
            name: "redirect_connections_ended_total",
            help: "Connections to `redirect-http` that were ended without an answer because too \
                   many were open, by what became of them.",
            value: OtherValue::CountersBy("outcome", counts),
        }]
    }
}

/// The connections that are open, the oldest first.
#[derive(Debug, Default)]
struct Held {
    list: Vec<RedirectConnection>,
    counts: Arc<RedirectCounts>,
}

#[derive(Debug)]
struct RedirectConnection {
    network: Network,
    is_silent: Arc<AtomicBool>,
    task: AbortHandle,
}

/// The unit of the limit per address: of IPv6 the /64, because one host has all addresses of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network(IpAddr);

impl Network {
    fn of(address: IpAddr) -> Network {
        Network(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }
}

impl Held {
    /// Makes room for one more connection, of this address. Returns whether there is some.
    fn makes_room(&mut self, network: Network) -> bool {
        let own = self.list.iter().filter(|held| held.network == network).count();
        let has_room = if own >= CONNECTIONS_PER_ADDRESS_MAX {
            self.end_silent(|held| held.network == network)
        } else {
            self.list.len() < CONNECTIONS_MAX || self.end_silent(|_| true)
        };
        if !has_room {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Ends the oldest of these connections that has sent nothing.
    fn end_silent(&mut self, is_one: impl Fn(&RedirectConnection) -> bool) -> bool {
        let is_silent =
            |held: &RedirectConnection| held.is_silent.load(Ordering::Relaxed) && is_one(held);
        let Some(at) = self.list.iter().position(is_silent) else { return false };
        self.list.remove(at).task.abort();
        self.counts.gave_way.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn forget(&mut self, id: Id) {
        self.list.retain(|held| held.task.id() != id);
    }
}

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
    pub async fn serve(
        self,
        listener: std::net::TcpListener,
        counts: Arc<RedirectCounts>,
        stop: impl Future<Output = ()>,
    ) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot serve the redirect to https"),
        };
        let (mut connections, mut held) = (JoinSet::new(), Held { list: Vec::new(), counts });
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(ended) = connections.join_next_with_id() => {
                    held.forget(ended.map_or_else(|error| error.id(), |(id, ())| id));
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let network = Network::of(peer.ip());
                        if held.makes_room(network) {
                            let is_silent = Arc::new(AtomicBool::new(true));
                            let answer = self.answer(stream, Arc::clone(&is_silent));
                            let task = connections.spawn(answer);
                            held.list.push(RedirectConnection { network, is_silent, task });
                        }
                    }
                    Err(_) => sleep(ERROR_PAUSE).await,
                },
            }
        }
        // The next process may listen on the same socket.
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    async fn answer(self, mut stream: TcpStream, is_silent: Arc<AtomicBool>) {
        let answering = async {
            let mut bytes = Vec::with_capacity(FIRST_BYTES);
            loop {
                if stream.read_buf(&mut bytes).await? == 0 {
                    return Ok(());
                }
                is_silent.store(false, Ordering::Relaxed);
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

    #[tokio::test]
    async fn silent_connections_keep_nobody_out() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let redirect =
            Redirect { port: 443, max_head_bytes: 1000, timeout: Duration::from_secs(600) };
        let serving =
            tokio::spawn(redirect.serve(listener, Arc::default(), async { drop(stopped.await) }));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in 0..3 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
        }
        drop((silent, stop));
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn one_address_has_a_share_and_silent_connections_give_way() {
        let mut held = Held::default();
        let network = |last| Network::of(IpAddr::from([192, 0, 2, last]));
        let add = |held: &mut Held, network, silent: bool| {
            let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
            held.list.push(RedirectConnection {
                network,
                is_silent: Arc::new(silent.into()),
                task,
            });
        };
        for _ in 0..CONNECTIONS_PER_ADDRESS_MAX {
            assert!(held.makes_room(network(1)));
            add(&mut held, network(1), false);
        }
        assert!(!held.makes_room(network(1)), "each has sent something");
        let counted = |held: &Held| {
            let RedirectCounts { gave_way, refused } = &*held.counts;
            (gave_way.load(Ordering::Relaxed), refused.load(Ordering::Relaxed))
        };
        assert_eq!(counted(&held), (0, 1));
        assert!(held.makes_room(network(2)));
        for at in held.list.len()..CONNECTIONS_MAX {
            add(&mut held, network(3 + (at / 20) as u8), true);
        }
        assert!(held.makes_room(network(2)), "in place of a silent one");
        assert_eq!((held.list.len(), counted(&held)), (CONNECTIONS_MAX - 1, (1, 1)));
        let other = Network::of("2001:db8::1".parse().unwrap());
        assert_eq!(other, Network::of("2001:db8::2".parse().unwrap()));
        held.list.iter().for_each(|held| held.task.abort());
    }

    #[test]
    fn a_head_is_awaited() {
        assert_eq!(answer(443, "GET / HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(answer(443, ""), None);
    }

    #[test]
    fn a_request_without_host_or_path_is_refused() {
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

//! Connects one after another, with good tokens and with bad ones.
//!
//! Figures, in milliseconds of the server's processor per connect: `good`, `bad`, and `limited`:
//! more bad ones than an address may show.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};
use throng_flood::ResponseHead;

use crate::context::{Abort, Context};
use crate::file::Run;
use crate::keys::Keys;

/// Connects of each kind, at most: their ports are used again only after a minute.
const CONNECTS: usize = 8_000;

/// Threads that connect.
const THREADS: usize = 4;

/// Time limit of a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long the server may still work after the last connect is closed.
const SETTLE: Duration = Duration::from_millis(500);

/// Connects from each address, where the limit of bad tokens from an address must not be reached.
const PER_ADDRESS: usize = 5;

/// How connects are made, and the statuses of their responses.
struct Connects {
    is_good: bool,
    per_address: usize,
    statuses: &'static [u16],
}

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let connects = context.size.connections.min(CONNECTS);
    let good = Connects { is_good: true, per_address: PER_ADDRESS, statuses: &[200] };
    let bad = Connects { is_good: false, statuses: &[401], ..good };
    // An event stream that may come back has the status 200.
    let limited = Connects { per_address: usize::MAX, statuses: &[401, 200], ..bad };
    for (name, kind) in [("good", good), ("bad", bad), ("limited", limited)] {
        context.serve(run)?;
        let ms = measure(context, connects, &kind)?;
        context.give([(name, ms)]);
    }
    Ok(())
}

/// Requests for an endless stream, each with a token of its own.
fn requests(keys: &Keys, number: usize, is_good: bool) -> Vec<String> {
    let token = |user: usize| {
        let user = format!("user-{user}");
        if is_good { keys.token(&user) } else { keys.forged_token(&user) }
    };
    let request = |user| {
        format!(
            "GET /channels/everyone HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\
             Authorization: Bearer {}\r\n\r\n",
            token(user)
        )
    };
    (0..number).map(request).collect()
}

/// The server's processor time per connect, in milliseconds.
fn measure(
    context: &mut Context<'_>,
    connects: usize,
    kind: &Connects,
) -> Result<Option<f64>, Abort> {
    let keys = context.directory()?.keys.as_ref();
    let requests = keys.map(|keys| requests(keys, connects, kind.is_good)).unwrap_or_default();
    let url = context.url();
    let server = url.strip_prefix("http://").and_then(|server| server.parse().ok());
    let server: SocketAddrV4 = server.ok_or_else(|| format!("{url}: no address"))?;
    let before_s = context.cpu_s();
    let per_thread = requests.len().div_ceil(THREADS).max(1);
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let threads: Vec<_> = requests
            .chunks(per_thread)
            .enumerate()
            .map(|(thread, part)| {
                scope.spawn(move || {
                    part.iter().enumerate().try_for_each(|(number, request)| {
                        let source = address((thread * per_thread + number) / kind.per_address);
                        send(server, source, request, kind.statuses)
                    })
                })
            })
            .collect();
        let panicked = || Err("a client panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    for result in results {
        result?;
    }
    context.check()?;
    thread::sleep(SETTLE);
    let used_s = before_s.zip(context.cpu_s()).map(|(before, after)| after - before);
    Ok(used_s.map(|seconds| seconds * 1e3 / connects.max(1) as f64))
}

/// An address of loopback for each number: 127.0.0.1 and those after it.
fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + (number as u32 & 0xffff))
}

/// Connects from an address of this machine.
fn connect(server: SocketAddrV4, source: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(source, 0))?;
    rustix::net::connect(&socket, &server)?;
    Ok(TcpStream::from(socket))
}

/// Sends a request, and closes when the head of the response is there.
fn send(
    server: SocketAddrV4,
    source: Ipv4Addr,
    request: &str,
    statuses: &[u16],
) -> Result<(), String> {
    let fault = |error: io::Error| format!("a connect failed: {error}");
    let mut stream = connect(server, source).map_err(fault)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(fault)?;
    stream.write_all(request.as_bytes()).map_err(fault)?;
    let (mut head, mut part) = (Vec::new(), [0; 2048]);
    loop {
        if let Some(found) = ResponseHead::parse(&head)? {
            let is_right = statuses.contains(&found.status);
            let unexpected = || format!("an unexpected response: status {}", found.status);
            return is_right.then_some(()).ok_or_else(unexpected);
        }
        match stream.read(&mut part).map_err(fault)? {
            0 => return Err("a response is missing".to_owned()),
            bytes => head.extend_from_slice(&part[..bytes]),
        }
    }
}

//! The raw loop: it sends a message to each connection, and does nothing else.
//!
//! It runs as a child process. [`raw_process`](crate::raw_process) sends it commands on standard
//! input, one a line, and reads its answers:
//!
//! | standard output | when |
//! |---|---|
//! | `listening HEALTH PORT PORT …` | the listeners are open: for `/health`, and for each thread |
//! | `accepted` | all connections are accepted |
//! | `sent CPU_NS ELAPSED_NS BLOCKED` | the answer to `send` |
//!
//! `send BYTES` on standard input makes each thread send one WebSocket frame with a payload of
//! that many bytes to each of its connections. `ELAPSED_NS` is from reading the command to the last
//! thread's last send. The process ends with its standard input, between two commands.
//!
//! Each thread has a private descriptor table. It registers its connections with an epoll instance
//! that it never waits on: the connections of a server are registered, which costs the kernel
//! memory and time.

use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, sockopt};
use rustix::time::{ClockId, clock_gettime};

use crate::workers::Workers;
use crate::{frame, net};

/// The response to `GET /health`.
const HEALTH_RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";

/// One sending thread.
struct Sender {
    listener: OwnedFd,
    port: u16,
    epoll: OwnedFd,
    connections: Vec<OwnedFd>,
}

/// The sends of one thread in a round.
struct Sent {
    cpu_ns: u64,
    elapsed_ns: u64,
    /// How often a socket was full.
    blocked: u64,
}

/// Runs until standard input ends.
pub(crate) fn run(threads: usize, connections: usize) -> Result<()> {
    let senders = Workers::start(threads, "send", Sender::new)?;
    let ports = senders.ask(|_| |sender: &mut Sender| Ok(sender.port.to_string())).wait()?;
    print(&format!("listening {} {}", serve_health()?, ports.join(" ")))?;
    let accept = |index| {
        let share = share(connections, index, threads);
        move |sender: &mut Sender| sender.accept(share)
    };
    senders.ask(accept).wait()?;
    print("accepted")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Some(bytes) = line.strip_prefix("send ").and_then(|bytes| bytes.parse().ok()) else {
            bail!("{line:?} is not a command");
        };
        let message: Arc<[u8]> = frame::text(&frame::payload(bytes)).into();
        let started = Instant::now();
        let send = |_| {
            let message = Arc::clone(&message);
            move |sender: &mut Sender| sender.send(&message, started)
        };
        let sent = senders.ask(send).wait()?;
        let cpu_ns: u64 = sent.iter().map(|sent| sent.cpu_ns).sum();
        let elapsed_ns = sent.iter().map(|sent| sent.elapsed_ns).max().unwrap_or_default();
        let blocked: u64 = sent.iter().map(|sent| sent.blocked).sum();
        print(&format!("sent {cpu_ns} {elapsed_ns} {blocked}"))?;
    }
    Ok(())
}

/// The number of connections of a thread: connection `i` belongs to thread `i % of`.
pub(crate) fn share(connections: usize, index: usize, of: usize) -> usize {
    connections / of + usize::from(index < connections % of)
}

fn print(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

impl Sender {
    fn new() -> Result<Self> {
        let (listener, port) = net::listener().context("cannot listen")?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { listener, port, epoll, connections: Vec::new() })
    }

    /// Accepts `share` connections.
    fn accept(&mut self, share: usize) -> Result<()> {
        self.connections.reserve(share);
        for position in 0..share {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let connection =
                rustix::net::accept_with(&self.listener, flags).context("cannot accept")?;
            sockopt::set_tcp_nodelay(&connection, true)?;
            net::register(&self.epoll, &connection, position, epoll::EventFlags::IN)?;
            self.connections.push(connection);
        }
        Ok(())
    }

    /// Sends `message` to each connection.
    fn send(&self, message: &[u8], started: Instant) -> Result<Sent> {
        let before_ns = thread_cpu_ns();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut blocked = 0;
        for connection in &self.connections {
            loop {
                match rustix::net::send(connection, message, flags) {
                    Ok(sent) if sent == message.len() => break,
                    Ok(sent) => bail!("only {sent} of {} bytes were taken", message.len()),
                    Err(Errno::AGAIN) => {
                        blocked += 1;
                        rustix::thread::sched_yield();
                    }
                    Err(error) => return Err(error).context("cannot send"),
                }
            }
        }
        let cpu_ns = thread_cpu_ns().saturating_sub(before_ns);
        let elapsed_ns = u64::try_from(started.elapsed().as_nanos())?;
        Ok(Sent { cpu_ns, elapsed_ns, blocked })
    }
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // A thread's CPU time is neither negative nor longer than 500 years.
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}

/// Answers requests on another port, with a thread for each connection: the minimum cost of an HTTP
/// response while the loop sends.
fn serve_health() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_health(stream));
        }
    });
    Ok(port)
}

/// Each read is one request, because a request fits one segment.
fn answer_health(mut stream: std::net::TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut request = [0; 2048];
    while let Ok(1..) = stream.read(&mut request) {
        if stream.write_all(HEALTH_RESPONSE).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (connections, of) in [(15_000, 2), (7, 3), (2, 5)] {
            let total: usize = (0..of).map(|index| share(connections, index, of)).sum();
            assert_eq!(total, connections);
        }
        assert_eq!(share(7, 0, 3), 3);
        assert_eq!(share(7, 2, 3), 2);
    }
}

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
//! thread's last send. The process ends with its standard input.
//!
//! Each thread has a private descriptor table. It registers its connections with an epoll instance
//! that it never waits on: the connections of a server are registered, which costs the kernel
//! memory and time.

use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, sockopt};
use rustix::time::{ClockId, clock_gettime};
use throng_host::private_table;

use crate::{frame, net};

/// The response to `GET /health`.
const HEALTH_RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";

/// The answer of a sending thread.
enum Answer {
    Listening { index: usize, port: u16 },
    Accepted,
    Sent { cpu_ns: u64, elapsed_ns: u64, blocked: u64 },
    Failed(String),
}

/// A message to send, and when its command was read.
#[derive(Clone)]
struct Round {
    message: Arc<[u8]>,
    started: Instant,
}

/// Runs until standard input ends.
pub(crate) fn run(threads: usize, connections: usize) -> Result<()> {
    let (answers, answered) = channel();
    let mut senders = Vec::with_capacity(threads);
    for index in 0..threads {
        let share = share(connections, index, threads);
        let (commands, commanded) = channel();
        let answers = answers.clone();
        private_table::spawn(format!("send-{index}"), move |unshared| {
            let outcome = unshared
                .context("cannot unshare the descriptor table")
                .and_then(|()| send_loop(index, share, &commanded, &answers));
            if let Err(error) = outcome {
                // Fails only while the process ends.
                let _ = answers.send(Answer::Failed(format!("{error:#}")));
            }
        })?;
        senders.push(commands);
    }
    // This thread reads standard input, and must notice its end at any time.
    std::thread::spawn(move || {
        let outcome = report(&answered, threads);
        if let Err(error) = outcome {
            let _ = writeln!(io::stderr(), "raw-server: {error:#}");
        }
        std::process::exit(1);
    });
    drive(&senders)
}

/// The number of connections of a thread: connection `i` belongs to thread `i % of`.
pub(crate) fn share(connections: usize, index: usize, of: usize) -> usize {
    connections / of + usize::from(index < connections % of)
}

/// Sends each command to all threads.
fn drive(senders: &[Sender<Round>]) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Some(bytes) = line.strip_prefix("send ").and_then(|bytes| bytes.parse().ok()) else {
            bail!("{line:?} is not a command");
        };
        let message = frame::text(&frame::payload(bytes)).into();
        let round = Round { message, started: Instant::now() };
        for sender in senders {
            sender.send(round.clone()).context("a sending thread has ended")?;
        }
    }
    Ok(())
}

/// Writes the answers of all threads as one line each.
fn report(answered: &Receiver<Answer>, threads: usize) -> Result<()> {
    let health_port = serve_health()?;
    let mut ports = vec![0; threads];
    collect(answered, threads, |answer| {
        if let Answer::Listening { index, port } = answer {
            ports[index] = port;
        }
    })?;
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    print(&format!("listening {health_port} {}", ports.join(" ")))?;
    collect(answered, threads, |_| ())?;
    print("accepted")?;
    loop {
        let (mut cpu_total_ns, mut last_ns, mut blocked_total) = (0, 0, 0);
        collect(answered, threads, |answer| {
            if let Answer::Sent { cpu_ns, elapsed_ns, blocked } = answer {
                cpu_total_ns += cpu_ns;
                blocked_total += blocked;
                last_ns = last_ns.max(elapsed_ns);
            }
        })?;
        print(&format!("sent {cpu_total_ns} {last_ns} {blocked_total}"))?;
    }
}

/// Takes one answer from each thread.
fn collect(
    answered: &Receiver<Answer>,
    threads: usize,
    mut each: impl FnMut(Answer),
) -> Result<()> {
    for _ in 0..threads {
        match answered.recv().context("all sending threads have ended")? {
            Answer::Failed(error) => bail!("a sending thread failed: {error}"),
            answer => each(answer),
        }
    }
    Ok(())
}

fn print(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// One sending thread: listen, accept its share, then send on command.
fn send_loop(
    index: usize,
    share: usize,
    commanded: &Receiver<Round>,
    answers: &Sender<Answer>,
) -> Result<()> {
    let (listener, port) = net::listener().context("cannot listen")?;
    answers.send(Answer::Listening { index, port })?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections = Vec::with_capacity(share);
    for position in 0..share {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let connection = rustix::net::accept_with(&listener, flags).context("cannot accept")?;
        sockopt::set_tcp_nodelay(&connection, true)?;
        net::register(&epoll, &connection, position, epoll::EventFlags::IN)?;
        connections.push(connection);
    }
    answers.send(Answer::Accepted)?;
    for round in commanded {
        let before_ns = thread_cpu_ns();
        let blocked = send_to_all(&connections, &round.message)?;
        let cpu_ns = thread_cpu_ns().saturating_sub(before_ns);
        let elapsed_ns = u64::try_from(round.started.elapsed().as_nanos())?;
        answers.send(Answer::Sent { cpu_ns, elapsed_ns, blocked })?;
    }
    Ok(())
}

/// Sends `message` to each connection. Returns how often a socket was full.
fn send_to_all(connections: &[OwnedFd], message: &[u8]) -> Result<u64> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut blocked = 0;
    for connection in connections {
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
    Ok(blocked)
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

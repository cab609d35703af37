//! The raw loop: the least that a push server can do, as a yardstick for this kernel.
//!
//! It answers each WebSocket handshake with the same bytes, without reading the request, and sends
//! the body of each POST to all connections, as one frame, with one `send()` each. Nothing else: no
//! channels, no logs, no parsing. It runs as a child process, of which clients are the same as of
//! Throng.
//!
//! Each sending thread has its own port, its own descriptor table and an epoll instance: the
//! connections of a server are registered, which costs the kernel memory and time. Publishing and
//! `GET /health` have a port of their own, with a thread for each connection: the minimum cost of
//! an HTTP response while the loop sends.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::mpsc::{self, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use throng_host::environment::raise_descriptors;
use throng_host::private_table;

/// The private subcommand, followed by the number of threads.
pub(crate) const COMMAND: &str = "raw-loop";

/// Text before the address for publishing, as in the banner of the server, and in the line after it
/// before those for subscribers.
pub(crate) const LISTENING: &str = "listening on http://";
pub(crate) const SENDERS: &str = "senders on ";

/// The response to the handshakes of [`throng_flood`], whose key is that of RFC 6455.
const HANDSHAKE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// The backlog of a listener; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;

/// Events taken in one wait.
const EVENTS_MAX: usize = 512;

/// The longest message: a frame has two bytes for its length.
const MESSAGE_BYTES_MAX: usize = 65_535;

/// Event numbers that no connection has.
const WAKE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// A frame to send, and where to say how often a socket was full.
type Frame = (Arc<[u8]>, mpsc::Sender<io::Result<u64>>);

/// The way to command a sending thread.
struct Sender {
    address: SocketAddr,
    frames: mpsc::Sender<Frame>,
    wake: OwnedFd,
}

/// Runs with the arguments after [`COMMAND`]. Returns only if they are wrong, or if it fails.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let threads = arguments.next()?.to_str()?.parse().ok()?;
    let Err(error) = serve(threads);
    eprintln!("the raw loop: {error}");
    Some(ExitCode::FAILURE)
}

fn serve(threads: usize) -> io::Result<std::convert::Infallible> {
    raise_descriptors(0);
    let senders = (0..threads).map(Sender::start).collect::<io::Result<Vec<_>>>()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addresses: Vec<_> = senders.iter().map(|sender| sender.address.to_string()).collect();
    println!("{LISTENING}{}\n{SENDERS}{}", listener.local_addr()?, addresses.join(" "));
    // One message after the other.
    let senders = Arc::new(Mutex::new(senders));
    loop {
        let (stream, _) = listener.accept()?;
        let senders = Arc::clone(&senders);
        // An error means that the peer has left.
        thread::spawn(move || drop(answer(stream, &senders)));
    }
}

/// Answers the requests of a connection.
fn answer(mut stream: TcpStream, senders: &Mutex<Vec<Sender>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let (mut length, mut is_post, mut line) = (0, false, String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            is_post |= line.starts_with("POST ");
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("the message is too long"));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let text = if is_post {
            let senders = senders.lock().unwrap_or_else(PoisonError::into_inner);
            format!("{{\"blocked\":{}}}", publish(&senders, &body)?)
        } else {
            "ok".to_owned()
        };
        let length = text.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}");
        stream.write_all(head.as_bytes())?;
    }
}

/// Sends a message to all connections. Returns how often a socket was full.
fn publish(senders: &[Sender], message: &[u8]) -> io::Result<u64> {
    let frame: Arc<[u8]> = frame(message).into();
    let (reply, replies) = channel();
    for sender in senders {
        sender.frames.send((Arc::clone(&frame), reply.clone())).map_err(io::Error::other)?;
        // The count cannot overflow, because each wake-up resets it.
        rustix::io::write(&sender.wake, &1_u64.to_ne_bytes())?;
    }
    drop(reply);
    replies.into_iter().sum()
}

/// A server's text frame (RFC 6455, section 5.2).
fn frame(message: &[u8]) -> Vec<u8> {
    let length = message.len() as u16;
    let [high, low] = length.to_be_bytes();
    let head = if length <= 125 { &[0x81, low][..] } else { &[0x81, 126, high, low] };
    [head, message].concat()
}

impl Sender {
    /// Starts a sending thread, and waits until it listens.
    fn start(index: usize) -> io::Result<Sender> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Captured before the thread starts, as private descriptor tables require.
        let own = wake.try_clone()?;
        let (frames, commanded) = channel();
        let (started, start) = channel();
        private_table::spawn(format!("send-{index}"), move |unshared| {
            let listening = unshared.and_then(|()| Connections::listen(own));
            match listening {
                Err(error) => drop(started.send(Err(error))),
                Ok((mut connections, address)) => {
                    let _ = started.send(Ok(address));
                    if let Err(error) = connections.run(&commanded) {
                        eprintln!("a sending thread has ended: {error}");
                    }
                }
            }
        })?;
        let address = start.recv().map_err(io::Error::other)??;
        Ok(Sender { address, frames, wake })
    }
}

/// The connections of a sending thread.
struct Connections {
    listener: OwnedFd,
    wake: OwnedFd,
    epoll: OwnedFd,
    /// `None` once its client has left.
    connections: Vec<Option<OwnedFd>>,
}

impl Connections {
    fn listen(wake: OwnedFd) -> io::Result<(Connections, SocketAddr)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        rustix::net::listen(&listener, BACKLOG)?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&listener)?)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok((Connections { listener, wake, epoll, connections: Vec::new() }, address))
    }

    fn run(&mut self, commanded: &mpsc::Receiver<Frame>) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let data = event.data;
                match data.u64() {
                    LISTENER => self.accept()?,
                    WAKE => {
                        rustix::io::read(&self.wake, &mut [0_u8; 8])?;
                        for (frame, reply) in commanded.try_iter() {
                            // Nobody waits for it once the peer has left.
                            let _ = reply.send(self.send(&frame));
                        }
                    }
                    index => self.receive(index as usize)?,
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let connection = match rustix::net::accept_with(&self.listener, flags) {
                Ok(connection) => connection,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            sockopt::set_tcp_nodelay(&connection, true)?;
            let data = EventData::new_u64(self.connections.len() as u64);
            let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.epoll, &connection, data, flags)?;
            self.connections.push(Some(connection));
        }
    }

    /// Takes all that has arrived for a request.
    fn receive(&mut self, index: usize) -> io::Result<()> {
        let Some(connection) = &self.connections[index] else { return Ok(()) };
        match rustix::net::recv(connection, &mut [0; 2048], RecvFlags::empty()) {
            Ok((1.., _)) => drop(rustix::net::send(connection, HANDSHAKE, SendFlags::NOSIGNAL)?),
            Err(Errno::AGAIN) => {}
            Ok(_) | Err(_) => self.connections[index] = None,
        }
        Ok(())
    }

    /// Sends a frame to each connection. Returns how often a socket was full.
    fn send(&self, frame: &[u8]) -> io::Result<u64> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut blocked = 0;
        for connection in self.connections.iter().flatten() {
            loop {
                match rustix::net::send(connection, frame, flags) {
                    Ok(sent) if sent == frame.len() => break,
                    Err(Errno::AGAIN) => {
                        blocked += 1;
                        rustix::thread::sched_yield();
                    }
                    Ok(_) => return Err(io::Error::other("a part of a message was taken")),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_takes_one_byte_or_three() {
        assert_eq!((&frame(&[7; 64])[..2], frame(&[7; 64]).len()), (&[0x81, 64][..], 66));
        assert_eq!(frame(&[7; 126])[..4], [0x81, 126, 0, 126]);
        assert_eq!(frame(&[7; 1024]).len(), 1028);
    }

    #[test]
    fn a_wrong_number_of_threads_starts_nothing() {
        assert!(run([OsString::from("many")].into_iter()).is_none());
        assert!(run(std::iter::empty()).is_none());
    }
}

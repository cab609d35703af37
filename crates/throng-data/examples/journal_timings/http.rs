//! Publishers over HTTP: each connection has one request under way, and sends the next one when it
//! is answered. One thread serves them all, so that they leave the processors to the server.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::epoll;
use rustix::event::epoll::{CreateFlags, EventData, EventFlags};

use crate::{BODY, Failure, ROUND_TIME, Round};

/// Events of one wait.
const EVENTS: usize = 64;

/// No answer is longer.
const ANSWER_BYTES: usize = 64 << 10;

struct Publisher {
    socket: TcpStream,
    request: Vec<u8>,
    sent: Instant,
    answer: Vec<u8>,
}

/// A request that publishes `batch` messages to inboxes of its own.
fn request(server: SocketAddr, publisher: usize, batch: usize) -> Vec<u8> {
    let (path, body) = if batch == 1 {
        (format!("/users/user-{publisher}"), BODY.to_owned())
    } else {
        let line = |n| {
            let (user, data) = (publisher * batch + n, BODY.replace('"', "\\\""));
            format!("{{\"user\":\"user-{user}\",\"data\":\"{data}\"}}\n")
        };
        ("/publish".to_owned(), (0..batch).map(line).collect())
    };
    let bytes = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: {server}\r\nContent-Length: {bytes}\r\n\r\n{body}")
        .into()
}

/// The whole answer, if it is there: whether all messages of the request were published.
fn outcome(answer: &[u8], batch: usize) -> Option<Result<(), Failure>> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    if body.len() < length.unwrap_or(usize::MAX) {
        return None;
    }
    let is_published = body.matches("\"id\":").count() == batch;
    Some(if is_published { Ok(()) } else { Err(format!("refused: {text}").into()) })
}

impl Publisher {
    fn send(&mut self) -> Result<(), Failure> {
        (self.sent, self.answer) = (Instant::now(), Vec::new());
        // A request fits into the buffers of the socket.
        Ok(self.socket.write_all(&self.request)?)
    }

    /// Reads what is there. Returns whether the request is answered.
    fn receive(&mut self, batch: usize) -> Result<bool, Failure> {
        let mut bytes = [0; ANSWER_BYTES];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err("the server has closed a connection".into()),
                Ok(count) => self.answer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            // Nothing comes behind a whole answer: to find that out would cost a system call.
            if let Some(outcome) = outcome(&self.answer, batch) {
                return outcome.map(|()| true);
            }
        }
    }
}

/// Publishes to a server for a round.
pub(crate) fn round(server: SocketAddr, publishers: usize, batch: usize) -> Result<Round, Failure> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let connect = |publisher: usize| -> Result<Publisher, Failure> {
        let socket = TcpStream::connect(server)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        epoll::add(&epoll, &socket, EventData::new_u64(publisher as u64), EventFlags::IN)?;
        let request = request(server, publisher, batch);
        Ok(Publisher { socket, request, sent: Instant::now(), answer: Vec::new() })
    };
    let mut all = (0..publishers).map(connect).collect::<Result<Vec<_>, _>>()?;
    let (begin, mut waits) = (Instant::now(), Vec::new());
    let mut events = Vec::with_capacity(EVENTS);
    all.iter_mut().try_for_each(Publisher::send)?;
    let mut under_way = publishers;
    while under_way > 0 {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let publisher = &mut all[event.data.u64() as usize];
            if !publisher.receive(batch)? {
                continue;
            }
            waits.push(publisher.sent.elapsed());
            if begin.elapsed() < ROUND_TIME {
                publisher.send()?;
            } else {
                under_way -= 1;
            }
        }
    }
    let per_s = (waits.len() * batch) as f64 / begin.elapsed().as_secs_f64();
    Ok(Round { per_s, waits })
}

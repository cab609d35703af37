//! Publishes per second: kept-alive connections on one thread, each sending its next POST when the
//! answer to the last has come. Every POST goes to a channel of its own, which nobody follows.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::session::Session;
use crate::ledger::{Ledger, Side};
use crate::settings::{Settings, progress};
use crate::{frame, http, net};

const CONNECTIONS: usize = 64;

const PAYLOAD_BYTES: usize = 64;

/// All publishes of a run must be answered within this.
const DEADLINE: Duration = Duration::from_secs(60);

const WAIT_STEP: Duration = Duration::from_millis(100);

const RECEIVE_BYTES: usize = 16 * 1024;

/// Publishes to warm up: this part of those that count.
const WARM_UP_PART: usize = 20;

struct Publisher {
    socket: OwnedFd,
    received: Vec<u8>,
}

struct Publishers {
    epoll: OwnedFd,
    publishers: Vec<Publisher>,
    payload: Vec<u8>,
    /// Number of the next channel.
    next: usize,
    /// No channel from this number on.
    end: usize,
    answered: usize,
}

/// Measures `settings.repeats` times.
pub fn measure(settings: &Settings, ledger: &mut Ledger) -> Result<()> {
    for run in 0..settings.repeats {
        progress(&format!("publish {} of {}", run + 1, settings.repeats));
        let session = Session::start(settings, Side::Throng, "0")?;
        let mut publishers = Publishers::connect(session.server.health_port())?;
        publishers.publish(settings.publishes.div_ceil(WARM_UP_PART))?;
        let before_ns = session.server.cpu_ns()?;
        let took = publishers.publish(settings.publishes)?;
        let used_ns = session.server.cpu_ns()?.saturating_sub(before_ns);
        let publishes = settings.publishes as f64;
        ledger.add("publish_rate", Side::Throng, publishes / took.as_secs_f64());
        ledger.add("publish_cpu", Side::Throng, used_ns as f64 / 1e3 / publishes);
    }
    Ok(())
}

impl Publishers {
    fn connect(port: u16) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut publishers = Vec::with_capacity(CONNECTIONS);
        for index in 0..CONNECTIONS {
            let socket = net::start_connect(net::source_address(index), port)?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            net::register(&epoll, &socket, index, EventFlags::IN)?;
            publishers.push(Publisher { socket, received: Vec::new() });
        }
        let payload = frame::payload(PAYLOAD_BYTES);
        Ok(Self { epoll, publishers, payload, next: 0, end: 0, answered: 0 })
    }

    /// Publishes `count` messages and waits for the last answer.
    fn publish(&mut self, count: usize) -> Result<Duration> {
        self.end = self.next + count;
        let target = self.answered + count;
        let started = Instant::now();
        for index in 0..CONNECTIONS {
            self.send_next(index, started + DEADLINE)?;
        }
        let mut events = Vec::with_capacity(CONNECTIONS);
        while self.answered < target {
            if started.elapsed() > DEADLINE {
                let missing = target - self.answered;
                bail!("{missing} of {count} publishes were not answered within {DEADLINE:?}");
            }
            net::wait(&self.epoll, &mut events, WAIT_STEP)?;
            for event in &events {
                let data = event.data;
                self.receive(usize::try_from(data.u64())?, started + DEADLINE)?;
            }
        }
        Ok(started.elapsed())
    }

    fn send_next(&mut self, index: usize, deadline: Instant) -> Result<()> {
        if self.next == self.end {
            return Ok(());
        }
        let path = format!("/channels/p{}", self.next);
        self.next += 1;
        let request = http::post(&path, "text/plain", &self.payload);
        loop {
            match rustix::net::send(&self.publishers[index].socket, &request, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    ensure!(sent == request.len(), "only {sent} bytes of a request were taken");
                    return Ok(());
                }
                // Not connected yet, which happens at most once for each.
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    rustix::thread::sched_yield();
                }
                Err(error) => return Err(error).context("cannot publish"),
            }
        }
    }

    fn receive(&mut self, index: usize, deadline: Instant) -> Result<()> {
        let mut part = [0; RECEIVE_BYTES];
        loop {
            let publisher = &mut self.publishers[index];
            match rustix::net::recv(&publisher.socket, &mut part, RecvFlags::empty()) {
                Ok((0, _)) => bail!("the server closed a publisher's connection"),
                Ok((bytes, _)) => publisher.received.extend_from_slice(&part[..bytes]),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error).context("a publisher's connection failed"),
            }
            let Some(response) = http::parse_response(&publisher.received)? else { continue };
            ensure!(response.status == 201, "a publish was answered with {}", response.status);
            publisher.received.drain(..response.bytes);
            self.answered += 1;
            self.send_next(index, deadline)?;
        }
    }
}

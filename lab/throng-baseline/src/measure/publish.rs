//! Publishes per second: one thread with connections that each send their next POST after the
//! response to the last. Each POST goes to another channel, without subscribers.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::session::Session;
use crate::results::{Results, Side};
use crate::settings::{Settings, progress};
use crate::{frame, http, net};

const CONNECTIONS: usize = 64;

const PAYLOAD_BYTES: usize = 64;

/// The maximum time for the responses to all publishes of a run.
const DEADLINE: Duration = Duration::from_secs(60);

const WAIT_STEP: Duration = Duration::from_millis(100);

const RECEIVE_BYTES: usize = 16 * 1024;

/// To warm up, the number of publishes is divided by this.
const WARM_UP_PART: usize = 20;

struct Publisher {
    socket: OwnedFd,
    received: Vec<u8>,
}

struct Publishers {
    epoll: OwnedFd,
    publishers: Vec<Publisher>,
    payload: Vec<u8>,
    /// The number of the next channel.
    next: usize,
    /// All numbers are below this.
    end: usize,
    answered: usize,
}

/// Measures `settings.repeats` times.
pub(crate) fn measure(settings: &Settings, results: &mut Results) -> Result<()> {
    for run in 0..settings.repeats {
        progress(&format!("publish {} of {}", run + 1, settings.repeats));
        let session = Session::start(settings, Side::Throng, "0")?;
        let mut publishers = Publishers::connect(session.server.health_port())?;
        publishers.publish(settings.publishes.div_ceil(WARM_UP_PART))?;
        let before_ns = session.server.cpu_ns()?;
        let took = publishers.publish(settings.publishes)?;
        let used_ns = session.server.cpu_ns()?.saturating_sub(before_ns);
        let publishes = settings.publishes as f64;
        results.add("publish_rate", Side::Throng, publishes / took.as_secs_f64());
        results.add("publish_cpu", Side::Throng, used_ns as f64 / 1e3 / publishes);
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

    /// Publishes `count` messages and waits for all responses. Returns the time that it took.
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
                // The connection is not established yet.
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

//! epoll (epoll(7)), used directly.
//!
//! Connections are edge-triggered, so that a parked one never needs another call. Listener, queue
//! event and handoff socket are level-triggered, so that what a batch leaves is reported again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Events taken in one wait.
const EVENTS: usize = 256;

/// An epoll instance and the events of the last wait.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) is_readable: bool,
    /// The peer has finished sending; input may still wait to be read.
    pub(crate) is_ended: bool,
    pub(crate) is_writable: bool,
}

const CONNECTION: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Epoll { epoll, events: Vec::with_capacity(EVENTS) })
    }

    /// Reports the source in every wait while it is readable.
    pub(crate) fn add_level(&self, source: impl AsFd, token: u64) -> io::Result<()> {
        epoll::add(&self.epoll, source, EventData::new_u64(token), EventFlags::IN)?;
        Ok(())
    }

    /// Reports the connection once when it becomes readable, or when its peer goes.
    pub(crate) fn add_connection(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        match epoll::add(&self.epoll, socket, EventData::new_u64(token), CONNECTION) {
            // It is registered for writing already, which includes reading.
            Err(rustix::io::Errno::EXIST) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Also reports the connection once when it becomes writable.
    pub(crate) fn add_writable(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        let (data, flags) = (EventData::new_u64(token), CONNECTION | EventFlags::OUT);
        match epoll::modify(&self.epoll, &socket, data, flags) {
            Err(rustix::io::Errno::NOENT) => Ok(epoll::add(&self.epoll, &socket, data, flags)?),
            result => Ok(result?),
        }
    }

    pub(crate) fn remove(&self, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Waits until something is ready, at most for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        self.events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, buffer, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The event `number` of the last wait.
    pub(crate) fn ready(&self, number: usize) -> Option<Ready> {
        let event = self.events.get(number)?;
        let flags = event.flags;
        let is_failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        Some(Ready {
            token: event.data.u64(),
            is_ended: is_failed || flags.contains(EventFlags::RDHUP),
            is_readable: is_failed || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
            is_writable: is_failed || flags.contains(EventFlags::OUT),
        })
    }
}

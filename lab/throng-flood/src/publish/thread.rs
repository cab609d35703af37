//! A publishing thread: walks the schedule and runs its connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::{PublishConnection, ThreadResources};
use super::counts::PublishCounts;
use super::pace::Timer;
use super::request::RequestBuilder;
use super::schedule::Schedule;
use crate::marker::now_ns;
use crate::streams::StreamCounters;

/// Events of one wait.
const EVENTS_MAX: usize = 1024;

/// How often a thread checks for timeouts while there may be any.
const WATCH_NS: u64 = 20_000_000;

/// How far a thread looks ahead for its next message.
const AHEAD_NS: u64 = 1_000_000_000;

const WAKE: u64 = u64::MAX;
const TIME: u64 = u64::MAX - 1;

/// A command to a thread.
#[derive(Debug)]
pub(super) enum PublisherCommand {
    /// Open all connections.
    Open,
    /// Publish these messages, with payloads of this many bytes.
    Begin(Schedule, usize),
    /// Send what is due, and nothing more.
    End,
    /// Send nothing more, and give up unanswered messages.
    Abandon,
    /// End the thread.
    Stop,
}

/// The state of a thread, for its owner.
#[derive(Debug, Default)]
pub(super) struct PublisherStatus {
    /// The counts since they were last taken.
    pub counts: PublishCounts,
    /// How many commands were executed.
    pub commands: u64,
    /// Connections with a connect or handshake in progress.
    pub opening: usize,
    /// True if every message is sent and answered, or given up.
    pub is_idle: bool,
}

/// The state that a thread shares with its owner.
#[derive(Debug)]
pub(super) struct SharedStatus {
    status: Mutex<PublisherStatus>,
    /// Written to when there is a command.
    pub wake: OwnedFd,
}

impl SharedStatus {
    /// The status of a thread that is idle.
    pub(super) fn new(wake: OwnedFd) -> SharedStatus {
        SharedStatus {
            status: Mutex::new(PublisherStatus { is_idle: true, ..PublisherStatus::default() }),
            wake,
        }
    }

    /// The last status of the thread.
    pub(super) fn status(&self) -> MutexGuard<'_, PublisherStatus> {
        self.status.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The connections and streams of a thread: connection `c` of all belongs to thread `c % threads`,
/// and stream `s` uses connection `s % connections`.
#[derive(Debug, Clone, Copy)]
pub(super) struct PublisherShare {
    /// The number of the thread.
    pub thread: usize,
    /// How many threads there are.
    pub threads: usize,
    /// Connections of all threads.
    pub connections: usize,
}

impl PublisherShare {
    /// The index of a stream's connection in this thread, if it has it.
    fn connection_of(self, stream: u32) -> Option<usize> {
        let connection = stream as usize % self.connections;
        (connection % self.threads == self.thread).then_some(connection / self.threads)
    }
}

/// The messages of a phase, and how many of them the thread has handled.
struct ScheduleCursor {
    schedule: Schedule,
    next: u64,
}

/// A publishing thread.
pub(super) struct PublisherThread {
    share: PublisherShare,
    counters: Arc<StreamCounters>,
    shared: Arc<SharedStatus>,
    commands: Receiver<PublisherCommand>,
    epoll: OwnedFd,
    timer: Timer,
    connections: Vec<PublishConnection>,
    /// Connections with new messages.
    touched: Vec<usize>,
    job: Option<ScheduleCursor>,
    size: usize,
    commands_done: u64,
    counts: PublishCounts,
    watch_at_ns: u64,
}

impl PublisherThread {
    /// A thread whose connections are not open yet.
    pub(super) fn new(
        share: PublisherShare,
        builder: &Arc<RequestBuilder>,
        counters: Arc<StreamCounters>,
        shared: Arc<SharedStatus>,
        commands: Receiver<PublisherCommand>,
    ) -> io::Result<PublisherThread> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        epoll::add(&epoll, &shared.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        // PublisherSettings the timer again clears its readiness, so it is never read.
        epoll::add(&epoll, &timer, EventData::new_u64(TIME), EventFlags::IN | EventFlags::ET)?;
        let numbers = (share.thread..share.connections).step_by(share.threads);
        let connections = numbers
            .enumerate()
            .map(|(index, number)| {
                PublishConnection::new(index as u64, number, Arc::clone(builder))
            })
            .collect();
        Ok(PublisherThread {
            share,
            counters,
            shared,
            commands,
            epoll,
            timer,
            connections,
            touched: Vec::new(),
            job: None,
            size: 0,
            commands_done: 0,
            counts: PublishCounts::default(),
            watch_at_ns: 0,
        })
    }

    /// Runs until the owner ends it.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while self.execute() {
            let next_ns = self.walk();
            self.watch();
            self.publish_status();
            self.wait(next_ns, &mut events)?;
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                self.on_event(data.u64(), flags);
            }
        }
        Ok(())
    }

    /// Executes the commands. Returns false at the end.
    fn execute(&mut self) -> bool {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            match command {
                PublisherCommand::Open => self.with_each(PublishConnection::open),
                PublisherCommand::Begin(schedule, size) => {
                    self.job = Some(ScheduleCursor { schedule, next: 0 });
                    self.size = size;
                }
                PublisherCommand::End => {
                    // Sends what is due, even if the thread is late with it.
                    self.walk();
                    self.job = None;
                }
                PublisherCommand::Abandon => {
                    self.job = None;
                    self.with_each(PublishConnection::abandon);
                }
                PublisherCommand::Stop => return false,
            }
            self.commands_done += 1;
        }
    }

    /// Queues the messages that are due. Returns when the next one is.
    fn walk(&mut self) -> Option<u64> {
        let now_ns = now_ns();
        let mut next_ns = None;
        while let Some(job) = &mut self.job {
            let Some(slot) = job.schedule.slot(job.next) else {
                self.job = None;
                break;
            };
            let own = self.share.connection_of(slot.stream);
            let due_ns = match own {
                Some(_) => slot.intended_ns,
                None => slot.intended_ns.saturating_sub(AHEAD_NS),
            };
            if due_ns > now_ns {
                next_ns = Some(due_ns);
                break;
            }
            job.next += 1;
            if let Some(index) = own {
                self.with(index, |connection, thread| connection.enqueue(slot, thread));
                self.touched.push(index);
            }
        }
        for index in std::mem::take(&mut self.touched) {
            self.with(index, PublishConnection::pump);
        }
        next_ns
    }

    fn watch(&mut self) {
        let now_ns = now_ns();
        if now_ns < self.watch_at_ns {
            return;
        }
        self.with_each(|connection, thread| connection.expire(now_ns, thread));
        self.watch_at_ns = now_ns + WATCH_NS;
    }

    fn publish_status(&mut self) {
        let is_idle = self.job.is_none()
            && self.connections.iter().all(|connection| connection.open_messages() == 0);
        let mut status = self.shared.status();
        status.counts += &self.counts;
        status.commands = self.commands_done;
        status.opening =
            self.connections.iter().filter(|connection| connection.is_opening()).count();
        status.is_idle = is_idle;
        drop(status);
        self.counts = PublishCounts::default();
    }

    fn wait(&mut self, next_ns: Option<u64>, events: &mut Vec<Event>) -> io::Result<()> {
        let is_watched = self.connections.iter().any(PublishConnection::is_watched);
        let watch_ns = is_watched.then_some(self.watch_at_ns);
        if let Some(at_ns) = next_ns.into_iter().chain(watch_ns).min() {
            self.timer.set(at_ns)?;
        }
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn on_event(&mut self, data: u64, flags: EventFlags) {
        match data {
            // The value does not matter, because all commands are read.
            WAKE => drop(rustix::io::read(&self.shared.wake, &mut [0_u8; 8])),
            TIME => {}
            index => {
                // Created from an index.
                self.with(index as usize, |connection, thread| connection.on_event(flags, thread));
            }
        }
    }

    fn with(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut PublishConnection, &mut ThreadResources<'_>),
    ) {
        let mut thread = ThreadResources {
            epoll: &self.epoll,
            counters: &self.counters,
            counts: &mut self.counts,
            size: self.size,
        };
        if let Some(connection) = self.connections.get_mut(index) {
            act(connection, &mut thread);
        }
    }

    fn with_each(&mut self, mut act: impl FnMut(&mut PublishConnection, &mut ThreadResources<'_>)) {
        for index in 0..self.connections.len() {
            self.with(index, &mut act);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_has_one_connection() {
        let share = |thread| PublisherShare { thread, threads: 3, connections: 7 };
        for stream in 0..50 {
            let owners: Vec<usize> =
                (0..3).filter(|&thread| share(thread).connection_of(stream).is_some()).collect();
            let connection = stream as usize % 7;
            assert_eq!(owners, [connection % 3]);
            assert_eq!(share(owners[0]).connection_of(stream), Some(connection / 3));
        }
    }
}

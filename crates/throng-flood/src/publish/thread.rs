//! A publishing thread: walks the schedule and runs its connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::{Connection, Context};
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
pub enum Command {
    /// Open all connections.
    Open,
    /// Publish these messages, with payloads of this many bytes.
    Begin(Schedule, usize),
    /// Send what is due, and nothing more.
    End,
    /// Send nothing more, and give up unanswered messages.
    Abandon,
    /// End.
    Stop,
}

/// The state of a thread, for its owner.
#[derive(Debug, Default)]
pub struct Report {
    /// The counts since they were last taken.
    pub counts: PublishCounts,
    /// How many commands were executed.
    pub commands: u64,
    /// Connections with a connect or handshake in progress.
    pub opening: usize,
    /// Whether every message is sent and answered, or given up.
    pub is_idle: bool,
}

/// What a thread shares with its owner.
#[derive(Debug)]
pub struct Shared {
    report: Mutex<Report>,
    /// Written to when there is a command.
    pub wake: OwnedFd,
}

impl Shared {
    /// The report of a thread that is idle.
    pub fn new(wake: OwnedFd) -> Shared {
        Shared { report: Mutex::new(Report { is_idle: true, ..Report::default() }), wake }
    }

    /// The last report of the thread.
    pub fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The connections and streams of a thread: connection `c` of all belongs to thread `c % threads`,
/// and stream `s` uses connection `s % connections`.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// The number of the thread.
    pub thread: usize,
    /// How many threads there are.
    pub threads: usize,
    /// Connections of all threads.
    pub connections: usize,
}

impl Share {
    /// The index of a stream's connection in this thread, if it has it.
    fn connection_of(self, stream: u32) -> Option<usize> {
        let connection = stream as usize % self.connections;
        (connection % self.threads == self.thread).then_some(connection / self.threads)
    }
}

/// The messages of a phase, and how many of them the thread has handled.
struct Job {
    schedule: Schedule,
    next: u64,
}

/// A publishing thread.
pub struct Publisher {
    share: Share,
    counters: Arc<StreamCounters>,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    epoll: OwnedFd,
    timer: Timer,
    connections: Vec<Connection>,
    /// Connections with new messages.
    touched: Vec<usize>,
    job: Option<Job>,
    size: usize,
    commands_done: u64,
    counts: PublishCounts,
    watch_at_ns: u64,
}

impl Publisher {
    /// A thread whose connections are not open yet.
    pub fn new(
        share: Share,
        builder: &Arc<RequestBuilder>,
        counters: Arc<StreamCounters>,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
    ) -> io::Result<Publisher> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        epoll::add(&epoll, &shared.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        // PublisherSettings the timer again clears its readiness, so it is never read.
        epoll::add(&epoll, &timer, EventData::new_u64(TIME), EventFlags::IN | EventFlags::ET)?;
        let numbers = (share.thread..share.connections).step_by(share.threads);
        let connections = numbers
            .enumerate()
            .map(|(index, number)| Connection::new(index as u64, number, Arc::clone(builder)))
            .collect();
        Ok(Publisher {
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
    pub fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while self.execute() {
            let next_ns = self.walk();
            self.watch();
            self.report();
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
                Command::Open => self.with_each(Connection::open),
                Command::Begin(schedule, size) => {
                    self.job = Some(Job { schedule, next: 0 });
                    self.size = size;
                }
                Command::End => {
                    // Sends what is due, even if the thread is late with it.
                    self.walk();
                    self.job = None;
                }
                Command::Abandon => {
                    self.job = None;
                    self.with_each(Connection::abandon);
                }
                Command::Stop => return false,
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
                self.with(index, |connection, context| connection.enqueue(slot, context));
                self.touched.push(index);
            }
        }
        for index in std::mem::take(&mut self.touched) {
            self.with(index, Connection::pump);
        }
        next_ns
    }

    fn watch(&mut self) {
        let now_ns = now_ns();
        if now_ns < self.watch_at_ns {
            return;
        }
        self.with_each(|connection, context| connection.expire(now_ns, context));
        self.watch_at_ns = now_ns + WATCH_NS;
    }

    fn report(&mut self) {
        let is_idle = self.job.is_none()
            && self.connections.iter().all(|connection| connection.open_messages() == 0);
        let mut report = self.shared.report();
        report.counts.merge(&self.counts);
        report.commands = self.commands_done;
        report.opening = self.connections.iter().filter(|c| c.is_opening()).count();
        report.is_idle = is_idle;
        drop(report);
        self.counts = PublishCounts::default();
    }

    fn wait(&mut self, next_ns: Option<u64>, events: &mut Vec<Event>) -> io::Result<()> {
        let is_watched = self.connections.iter().any(Connection::is_watched);
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
                self.with(index as usize, |connection, context| {
                    connection.on_event(flags, context)
                });
            }
        }
    }

    fn with(&mut self, index: usize, act: impl FnOnce(&mut Connection, &mut Context<'_>)) {
        let mut context = Context {
            epoll: &self.epoll,
            counters: &self.counters,
            counts: &mut self.counts,
            size: self.size,
        };
        if let Some(connection) = self.connections.get_mut(index) {
            act(connection, &mut context);
        }
    }

    fn with_each(&mut self, mut act: impl FnMut(&mut Connection, &mut Context<'_>)) {
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
        let share = |thread| Share { thread, threads: 3, connections: 7 };
        for stream in 0..50 {
            let owners: Vec<usize> =
                (0..3).filter(|&thread| share(thread).connection_of(stream).is_some()).collect();
            let connection = stream as usize % 7;
            assert_eq!(owners, [connection % 3]);
            assert_eq!(share(owners[0]).connection_of(stream), Some(connection / 3));
        }
    }
}

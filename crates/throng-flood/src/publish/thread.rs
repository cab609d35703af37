//! A publishing thread: walks the schedule, and looks after its connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::{Connection, Desk};
use super::pace::Timer;
use super::recipe::Recipe;
use super::schedule::Schedule;
use super::tally::PublishTally;
use crate::clients::Board;
use crate::marker::now_ns;

/// Events of one turn.
const EVENTS_MAX: usize = 1024;

/// While something is watched, it is looked after so often.
const WATCH_NS: u64 = 20_000_000;

/// A thread looks ahead so far for the next message that is its own.
const AHEAD_NS: u64 = 1_000_000_000;

const WAKE: u64 = u64::MAX;
const TIME: u64 = u64::MAX - 1;

/// What a thread is told.
#[derive(Debug)]
pub enum Command {
    /// Open all connections.
    Open,
    /// Publish these messages, of so many bytes.
    Begin(Schedule, usize),
    /// Send what is due, and no more.
    End,
    /// Send no more, wait for no answer.
    Abandon,
    /// End.
    Stop,
}

/// What a thread tells.
#[derive(Debug, Default)]
pub struct Report {
    /// Since it was last taken.
    pub tally: PublishTally,
    /// Commands carried out so far.
    pub commands: u64,
    /// Connections of which it is not known yet whether messages can be sent.
    pub opening: usize,
    /// Whether everything is sent and answered, or given up.
    pub is_idle: bool,
}

/// What a thread and its owner share.
#[derive(Debug)]
pub struct Shared {
    report: Mutex<Report>,
    /// Written to when there is a command.
    pub wake: OwnedFd,
}

impl Shared {
    /// A report of a thread that has nothing to do yet.
    pub fn new(wake: OwnedFd) -> Shared {
        Shared { report: Mutex::new(Report { is_idle: true, ..Report::default() }), wake }
    }

    /// What the thread told last.
    pub fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Which connections are a thread's: connection `c` of all belongs to thread `c % threads`, and
/// stream `s` goes over connection `s % connections`.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// The thread.
    pub thread: usize,
    /// Of so many.
    pub threads: usize,
    /// Connections of all threads.
    pub connections: usize,
}

impl Share {
    /// The index of the connection for a stream among those of this thread, if it is one of them.
    fn connection_of(self, stream: u32) -> Option<usize> {
        let connection = stream as usize % self.connections;
        (connection % self.threads == self.thread).then_some(connection / self.threads)
    }
}

/// A phase's messages, and how far the thread is with them.
struct Job {
    schedule: Schedule,
    next: u64,
}

/// One thread.
pub struct Publisher {
    share: Share,
    board: Arc<Board>,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    epoll: OwnedFd,
    timer: Timer,
    connections: Vec<Connection>,
    /// Connections with something new to send.
    touched: Vec<usize>,
    job: Option<Job>,
    size: usize,
    commands_done: u64,
    tally: PublishTally,
    watch_at_ns: u64,
}

impl Publisher {
    /// Nothing is opened yet.
    pub fn new(
        share: Share,
        recipe: &Arc<Recipe>,
        board: Arc<Board>,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
    ) -> io::Result<Publisher> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        epoll::add(&epoll, &shared.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        // Setting the timer anew makes it unreadable: nobody reads it.
        epoll::add(&epoll, &timer, EventData::new_u64(TIME), EventFlags::IN | EventFlags::ET)?;
        let numbers = (share.thread..share.connections).step_by(share.threads);
        let connections = numbers
            .enumerate()
            .map(|(index, number)| Connection::new(index as u64, number, Arc::clone(recipe)))
            .collect();
        Ok(Publisher {
            share,
            board,
            shared,
            commands,
            epoll,
            timer,
            connections,
            touched: Vec::new(),
            job: None,
            size: 0,
            commands_done: 0,
            tally: PublishTally::default(),
            watch_at_ns: 0,
        })
    }

    /// The thread's life.
    pub fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while self.obey() {
            let next_ns = self.walk();
            self.watch();
            self.tell();
            self.wait(next_ns, &mut events)?;
            for event in &events {
                let (data, flags) = (event.data, event.flags);
                self.on_event(data.u64(), flags);
            }
        }
        Ok(())
    }

    /// Carries out what was told; false if the end was.
    fn obey(&mut self) -> bool {
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
                    // What is due is sent, however late this thread is with it.
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

    /// Hands out the messages whose time has come; returns when it has to be done again.
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
                self.with(index, |connection, desk| connection.enqueue(slot, desk));
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
        self.with_each(|connection, desk| connection.expire(now_ns, desk));
        self.watch_at_ns = now_ns + WATCH_NS;
    }

    fn tell(&mut self) {
        let is_idle = self.job.is_none()
            && self.connections.iter().all(|connection| connection.open_messages() == 0);
        let mut report = self.shared.report();
        report.tally.merge(&self.tally);
        report.commands = self.commands_done;
        report.opening = self.connections.iter().filter(|c| c.is_opening()).count();
        report.is_idle = is_idle;
        drop(report);
        self.tally = PublishTally::default();
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
            // The value does not matter: all commands are taken.
            WAKE => drop(rustix::io::read(&self.shared.wake, &mut [0_u8; 8])),
            TIME => {}
            index => {
                // Made from an index.
                self.with(index as usize, |connection, desk| connection.on_event(flags, desk));
            }
        }
    }

    fn with(&mut self, index: usize, act: impl FnOnce(&mut Connection, &mut Desk<'_>)) {
        let mut desk = Desk {
            epoll: &self.epoll,
            board: &self.board,
            tally: &mut self.tally,
            size: self.size,
        };
        if let Some(connection) = self.connections.get_mut(index) {
            act(connection, &mut desk);
        }
    }

    fn with_each(&mut self, mut act: impl FnMut(&mut Connection, &mut Desk<'_>)) {
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

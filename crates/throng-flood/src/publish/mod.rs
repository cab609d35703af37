//! Publishing as an open loop: each message has its time before the first one is sent, and that
//! time is in its mark. A server that is slow to answer makes messages late, and what is late
//! counts against the server: latencies are from the intended time.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`schedule`] | when each message goes out, and to which stream |
//! | [`graph`] | who follows whom |
//! | [`recipe`](mod@recipe) | from a message to the bytes of a publish |
//! | `thread`, `connection` | a publishing thread and its connections |
//! | `answer`, `websocket` | what servers say to publishers |
//! | [`tally`] | what is counted |
//! | `pace`, `random` | a precise timer; random numbers by position |
//!
//! # Invariants
//!
//! * Nothing in the schedule depends on what the server does.
//! * A stream's messages go over one connection, in order.
//! * Each message that is due ends as published or as a failure with its reason.

mod answer;
mod connection;
pub mod graph;
mod pace;
pub(crate) mod random;
pub mod recipe;
pub mod schedule;
pub mod tally;
mod thread;
mod websocket;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::clients::Board;
use crate::plan::{PublishBy, Target};
use crate::template::Values;
use recipe::{Place, Recipe};
use schedule::Schedule;
use tally::PublishTally;
use thread::{Command, Publisher, Share, Shared};

/// What a thread publishes a second with room to spare: sharing two busy cores with its server, one
/// did 16,000.
const RATE_PER_THREAD: f64 = 10_000.0;

const POLL_STEP: Duration = Duration::from_millis(2);

/// Why there can be no publishers.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The plan says nothing about publishing.
    #[error("the plan does not say how to publish")]
    NoTarget,
    /// The URL is none, or needs TLS.
    #[error("{url:?} cannot be published to: it is not an http:// or ws:// address")]
    Url {
        /// As rendered for stream 0.
        url: String,
    },
    /// Name resolution failed.
    #[error("the host {host:?} to publish to has no address: {reason}")]
    Dns {
        /// As in the URL.
        host: String,
        /// In words.
        reason: String,
    },
    /// A thread could not be started.
    #[error("a publishing thread cannot be started: {0}")]
    Thread(io::Error),
}

/// What a run's publishers share with its clients.
pub struct Setting<'a> {
    /// The target.
    pub target: &'a Target,
    /// The run, as it is in the marks.
    pub run: u32,
    /// Tells clients what is published.
    pub board: Arc<Board>,
    /// The most clients there will be.
    pub clients_max: usize,
    /// The highest rate of all phases.
    pub rate_max: f64,
}

/// All publishing threads. Dropping it ends them.
pub struct Publishers {
    threads: Vec<Thread>,
    board: Arc<Board>,
    /// Commands given so far.
    commands: u64,
}

struct Thread {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    handle: Option<JoinHandle<()>>,
}

impl Publishers {
    /// Starts the threads; nothing connects yet.
    pub fn start(setting: &Setting<'_>) -> Result<Publishers, PublishError> {
        let publish = setting.target.publish.as_ref().ok_or(PublishError::NoTarget)?;
        let recipe = Arc::new(recipe(setting)?);
        let connections = publish.connections.max(1);
        let threads_wanted = (setting.rate_max / RATE_PER_THREAD).ceil().max(1.0) as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads_wanted.min(cores).min(connections);
        let threads = (0..threads)
            .map(|thread| {
                let share = Share { thread, threads, connections };
                Thread::start(share, &recipe, Arc::clone(&setting.board))
            })
            .collect::<io::Result<Vec<Thread>>>()
            .map_err(PublishError::Thread)?;
        Ok(Publishers { threads, board: Arc::clone(&setting.board), commands: 0 })
    }

    /// Opens the connections and waits until all are ready or have failed, or `timeout` has passed.
    /// If something is wrong, messages find out.
    pub fn open(&mut self, timeout: Duration) {
        self.command(|| Command::Open);
        let deadline = Instant::now() + timeout;
        while self.is_opening() && Instant::now() < deadline {
            std::thread::sleep(POLL_STEP);
        }
    }

    /// Begins to publish; messages of a schedule that is not at its end are not sent any more.
    pub fn begin(&mut self, schedule: Schedule, size: usize) {
        self.command(|| Command::Begin(schedule, size));
    }

    /// What is due by now is still sent, but nothing else.
    pub fn end(&mut self) {
        self.command(|| Command::End);
    }

    /// Gives up what is not published yet.
    pub fn abandon(&mut self) {
        self.command(|| Command::Abandon);
    }

    /// Whether everything is sent and answered, or given up.
    pub fn is_idle(&self) -> bool {
        self.threads.iter().all(|thread| {
            let report = thread.shared.report();
            report.commands == self.commands && report.is_idle
        })
    }

    /// What has happened since the last call.
    pub fn tally(&self) -> PublishTally {
        let mut tally = PublishTally::default();
        for thread in &self.threads {
            tally.merge(&std::mem::take(&mut thread.shared.report().tally));
        }
        tally
    }

    /// The last sequence of each stream, for the audit.
    pub fn sent(&self) -> Arc<[u64]> {
        sent(&self.board)
    }

    fn is_opening(&self) -> bool {
        self.threads.iter().any(|thread| {
            let report = thread.shared.report();
            report.commands < self.commands || report.opening > 0
        })
    }

    fn command(&mut self, command: impl Fn() -> Command) {
        self.commands += 1;
        for thread in &self.threads {
            thread.tell(command());
        }
    }
}

/// The last sequence of each stream of a board.
pub fn sent(board: &Board) -> Arc<[u64]> {
    (0..board.streams()).map(|stream| u64::from(board.last_published(stream))).collect()
}

impl Drop for Publishers {
    fn drop(&mut self) {
        self.command(|| Command::Stop);
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            // A thread that panicked has closed its connections while unwinding.
            let _ = handle.join();
        }
    }
}

impl Thread {
    fn start(share: Share, recipe: &Arc<Recipe>, board: Arc<Board>) -> io::Result<Thread> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared::new(wake));
        let (commands, commanded) = channel();
        let publisher = Publisher::new(share, recipe, board, Arc::clone(&shared), commanded)?;
        let name = format!("publisher-{}", share.thread);
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            // Only `epoll_wait` itself can fail here; the conductor then sees a publisher that
            // answers no command and gives it up at the phase's end.
            let _ = publisher.run();
        })?;
        Ok(Thread { commands, shared, handle: Some(handle) })
    }

    fn tell(&self, command: Command) {
        // Both fail only when the thread has ended.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }
}

fn recipe(setting: &Setting<'_>) -> Result<Recipe, PublishError> {
    let target = setting.target;
    let publish = target.publish.as_ref().ok_or(PublishError::NoTarget)?;
    let values = Values { run: setting.run, client: setting.clients_max, ..Values::default() };
    let url = match &publish.by {
        PublishBy::Http { url, .. } => url.rendered(&values),
        PublishBy::WebSocket { .. } => target.url.rendered(&values),
    };
    let Some(place) = Place::of(&url) else { return Err(PublishError::Url { url }) };
    let dns = |reason: String| PublishError::Dns { host: place.host.to_owned(), reason };
    let addresses = (place.host, place.port).to_socket_addrs();
    let addresses: Vec<_> = addresses.map_err(|error| dns(error.to_string()))?.collect();
    if addresses.is_empty() {
        return Err(dns("the name has none".to_owned()));
    }
    Ok(Recipe {
        target: target.clone(),
        run: setting.run,
        addresses,
        pipeline: publish.pipeline,
        timeout: target.handshake_timeout,
        first_client: setting.clients_max,
        refused: publish.refused.clone(),
        by: publish.by.clone(),
    })
}

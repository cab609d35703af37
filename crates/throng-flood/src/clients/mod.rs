//! The load: clients on threads with private descriptor tables, and the handle to all of them.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`board`] | what publishers and clients tell each other: published sequences, audiences |
//! | `thread` | one thread's life: commands, events, what is due |
//! | `setting`, `ledger` | what all threads share: what the plan says, and what they have seen |
//! | `client` | the parked client, at most 64 bytes |
//! | `connect`, `schedule` | ramps, storms and churn: which client is opened or closed when |
//! | `turns` | threads that open their clients one after the other |
//! | `handshake` | from the start of a connect to the response head |
//! | `receive` | what comes in: messages, pings, ends |
//! | `follow` | the streams that a client follows, and their audit |
//! | `start` | from which message on the audit counts when the publisher is elsewhere |
//! | `seen` | deliveries per publish while it is in flight |
//! | `request` | what a client sends: requests and hello messages |
//! | `resume` | the ids that clients go on with |
//! | [`sources`] | local addresses and ports |
//! | `network` | what carries the connections: sockets, or a [tunnel](throng_tunnel) |
//! | `sockets`, `late_port` | the few system calls on sockets |
//! | `packets` | what comes over a tunnel |
//!
//! # Invariants
//!
//! * A descriptor never leaves the thread that opened it.
//! * Client `i` belongs to thread `i % threads` for ever.
//! * Between two messages a client has nothing but its slab entry.

pub mod board;
mod client;
mod connect;
mod follow;
mod handshake;
mod late_port;
mod ledger;
mod network;
mod packets;
mod receive;
mod request;
mod resume;
mod schedule;
mod seen;
mod setting;
mod sockets;
pub mod sources;
mod start;
mod thread;
mod turns;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use throng_host::preflight::CLIENTS_APART;
use throng_host::private_table;

use crate::audit::Audit;
use crate::marker::now_ns;
use crate::plan::{Network, Plan};
use crate::tally::Tally;
use throng_tunnel::{Tunnel, TunnelError};

use setting::Setting;
use thread::{Command, Thread};
use turns::Turns;

pub use board::Board;
pub use client::CLIENT_BYTES_MAX;
pub use seen::PublishSeen;

/// Descriptors of a table that are not for clients, as the preflight counts them.
const RESERVED_DESCRIPTORS: usize = CLIENTS_APART as usize;

/// Below so many clients, another thread costs more than it helps.
const CLIENTS_PER_THREAD_MIN: usize = 1_000;

/// Which part of a run's clients a fleet is, if it is not alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The run, as its marks and templates name it.
    pub run: u32,
    /// The number of the first client …
    pub first: usize,
    /// … and from one to the next: with three fleets, each takes every third client of the run.
    pub step: usize,
    /// Clients of all fleets of the run together.
    pub total: usize,
    /// How much this machine's clock is ahead of the publisher's.
    pub clock_ahead_ns: i64,
}

impl Share {
    /// All of a run, with the publisher on the same machine.
    pub fn whole(run: u32, total: usize) -> Share {
        Share { run, first: 0, step: 1, total, clock_ahead_ns: 0 }
    }
}

/// Why no fleet could be started.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The target's URL cannot be used.
    #[error("the target {url:?} cannot be loaded: {reason}")]
    Url {
        /// As rendered for the first client.
        url: String,
        /// In words.
        reason: String,
    },
    /// Name resolution failed.
    #[error("the host {host:?} has no address: {reason}")]
    Dns {
        /// As in the URL.
        host: String,
        /// In words.
        reason: String,
    },
    /// A thread could not be started.
    #[error("a client thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// No tunnel can be had.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// More clients than numbers.
    #[error("{0} clients are more than can be numbered")]
    TooMany(usize),
}

/// All client threads.
pub struct Fleet {
    setting: Arc<Setting>,
    threads: Vec<Worker>,
    cores: usize,
    /// When [`busiest`](Self::busiest) was asked last, and each thread's processor time then.
    busy: Mutex<(Instant, Vec<u64>)>,
}

struct Worker {
    commands: Option<Sender<Command>>,
    wake: OwnedFd,
    handle: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts the threads; nothing connects yet. `clients_max` is the most there will ever be.
    pub fn start(plan: &Plan, clients_max: usize) -> Result<Fleet, FleetError> {
        // Two runs of one machine do not begin in the same nanosecond.
        let run = (now_ns() ^ u64::from(std::process::id()) << 16) as u32;
        Fleet::start_share(plan, clients_max, Share::whole(run, clients_max))
    }

    /// [`start`](Self::start) for a part of a run that has others.
    pub fn start_share(plan: &Plan, clients_max: usize, share: Share) -> Result<Fleet, FleetError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let descriptors = match plan.network {
            Network::Sockets => raise_descriptors(),
            Network::Tunnel => usize::MAX,
        };
        let threads = thread_count(clients_max, plan.threads, cores, descriptors);
        let capacity = clients_max.div_ceil(threads);
        u32::try_from(capacity).map_err(|_| FleetError::TooMany(clients_max))?;
        let setting = Arc::new(Setting::new(plan, share, threads)?);
        let threads = (0..threads)
            .map(|index| Worker::start(&setting, index, capacity))
            .collect::<Result<Vec<_>, _>>()?;
        let busy = Mutex::new((Instant::now(), vec![0; threads.len()]));
        Ok(Fleet { setting, threads, cores, busy })
    }

    /// Whether this process can have the network that the plan asks for.
    pub fn check_network(plan: &Plan) -> Result<(), FleetError> {
        if plan.network == Network::Sockets {
            return Ok(());
        }
        let setting = Setting::new(plan, Share::whole(0, 1), 1)?;
        setting.tunnel_targets(0).map_or(Ok(()), |targets| Ok(Tunnel::probe(targets)?))
    }

    /// The run's number: what marks and templates of publishers must say.
    pub fn run(&self) -> u32 {
        self.setting.share.run
    }

    /// What publishers tell and ask while they publish: [`Board::published`] **before** each send,
    /// [`Board::refused`] when the server did not take it. From any thread.
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.setting.board)
    }

    /// Brings the number of clients to `to`, spread over the threads, at `rate` a second over all.
    /// Returns at once. At most `in_flight` connects are under way at a time, or one a thread; for
    /// a moment twice as many when, without a rate, some threads take over from others. Clients
    /// below `to` that had failed are tried once more.
    pub fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize) {
        let count = self.threads.len();
        let together = self.cores.min(count);
        let turns = rate.is_none().then(|| Arc::new(Turns::new(together, in_flight)));
        self.tell(|index| Command::Ramp {
            to: (to + count - 1 - index) / count,
            rate,
            in_flight: in_flight / count,
            turns: turns.clone(),
        });
    }

    /// Each second `rate` clients are closed and opened again; 0 ends it.
    pub fn churn(&self, rate: f64) {
        self.tell(|_| Command::Churn { rate });
    }

    /// Closes all (with a reset) and, when all are closed, opens them again, as fast as `in_flight`
    /// allows. Those that fail come back after a pause until they are subscribed again.
    pub fn storm(&self, in_flight: usize) {
        self.tell(|_| Command::Storm { in_flight: in_flight / self.threads.len() });
    }

    /// The first `share` of the clients stops reading (true) or reads again (false).
    pub fn slow(&self, share: f64, is_slow: bool) {
        self.tell(|_| Command::Slow { share, is_slow });
    }

    /// Whether clients that fail or are closed by the server come back after a pause; at first as
    /// the plan says.
    pub fn keep(&self, is_kept: bool) {
        self.tell(|_| Command::Keep(is_kept));
    }

    /// Whether long-polls that are answered wait with asking again, so that all can be answered
    /// before the next round begins; at first they ask at once.
    pub fn hold_polls(&self, are_held: bool) {
        self.tell(|_| Command::HoldPolls(are_held));
    }

    /// The board has been told all that a publisher on another machine had published at a moment
    /// after the call before returned; `is_behind` says whether that publisher goes on. Also to be
    /// called before it begins. Returns when all clients take it into account.
    pub fn told(&self, is_behind: bool) {
        self.setting.board.set_behind(is_behind);
        self.ask(|to| Command::Told { is_behind, to });
    }

    /// What has happened since the last call: states are those of now.
    pub fn tally(&self) -> Tally {
        self.ask(Command::Tell);
        let mut ledger = self.setting.ledger.lock();
        std::mem::take(&mut ledger.tally)
    }

    /// The deliveries of each publish that is older than `age`, of all threads, ascending by
    /// stream and sequence. Each delivery is told once: of a publish that was told before, what
    /// came later. `Duration::ZERO` asks for all.
    pub fn publishes(&self, age: Duration) -> Vec<PublishSeen> {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = if age_ns == 0 { u64::MAX } else { now_ns().saturating_sub(age_ns) };
        self.publishes_until(until_ns)
    }

    /// [`publishes`](Self::publishes) that were intended until then, by the publisher's clock.
    pub fn publishes_until(&self, until_ns: u64) -> Vec<PublishSeen> {
        self.ask(Command::Carry);
        self.setting.ledger.lock().seen.take(until_ns)
    }

    /// Clients now subscribed to a stream (for `expected` at publish time).
    pub fn audience(&self, stream: u32) -> u64 {
        self.setting.board.audience(stream)
    }

    /// Compares what each client got with what was sent: `sent[stream]` is the number of the last
    /// sequence published, 0 for none (the first one is 1). Streams beyond its end had none.
    ///
    /// Connections that are over count too. When a client was closed as asked, what may have been
    /// on the way is not expected; when the server closed it, what had been published by then is.
    pub fn audit(&self, sent: Arc<[u64]>) -> Audit {
        let mut all = Audit::default();
        for audit in self.ask(|to| Command::Audit { sent: Arc::clone(&sent), to }) {
            all += audit;
        }
        all
    }

    /// Busy share of the busiest thread since the last call, or of all cores if there are more
    /// threads than cores; 0 to 1.
    pub fn busiest(&self) -> f64 {
        let now_ns = self.ask(Command::Busy);
        let mut busy = self.busy.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (last, before_ns) = std::mem::replace(&mut *busy, (Instant::now(), now_ns));
        let wall_ns = busy.0.duration_since(last).as_nanos() as f64;
        let spent = busy.1.iter().zip(&before_ns).map(|(now, before)| now.saturating_sub(*before));
        let (most, sum) = spent.fold((0, 0), |(most, sum), ns| (ns.max(most), sum + ns));
        if wall_ns == 0.0 {
            return 0.0;
        }
        (most as f64 / wall_ns).max(sum as f64 / wall_ns / self.cores as f64).min(1.0)
    }

    /// Closes all clients with a reset and ends the threads.
    pub fn stop(mut self) {
        self.end();
    }

    fn tell(&self, command: impl Fn(usize) -> Command) {
        for (index, worker) in self.threads.iter().enumerate() {
            worker.tell(command(index));
        }
    }

    /// Asks all threads at once and waits for their answers.
    fn ask<T>(&self, question: impl Fn(Sender<T>) -> Command) -> Vec<T> {
        let answers: Vec<Receiver<T>> = self
            .threads
            .iter()
            .map(|worker| {
                let (to, answer) = channel();
                worker.tell(question(to));
                answer
            })
            .collect();
        // A thread that does not answer has panicked, which `end` passes on.
        answers.iter().filter_map(|answer| answer.recv().ok()).collect()
    }

    fn end(&mut self) {
        // All are told before any is awaited, so that they close side by side.
        for worker in &mut self.threads {
            worker.commands = None;
            worker.wake();
        }
        for handle in self.threads.iter_mut().filter_map(|worker| worker.handle.take()) {
            if let Err(panic) = handle.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end();
    }
}

impl Worker {
    fn start(setting: &Arc<Setting>, index: usize, capacity: usize) -> Result<Worker, FleetError> {
        let setting = Arc::clone(setting);
        let (commands, commanded) = channel();
        let (started, start) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|error| FleetError::Thread(error.into()))?;
        // Captured before the thread begins, as private tables demand.
        let own = wake.try_clone().map_err(FleetError::Thread)?;
        let handle = private_table::spawn(format!("clients-{index}"), move |unshared| {
            let thread = unshared
                .map_err(FleetError::Thread)
                .and_then(|()| Thread::new(setting, index, capacity, own));
            match thread {
                Ok(thread) => {
                    let _ = started.send(Ok(()));
                    thread.run(&commanded);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        let handle = handle.map_err(FleetError::Thread)?;
        let gone = |gone| Err(FleetError::Thread(io::Error::other(gone)));
        start.recv().unwrap_or_else(gone)?;
        Ok(Worker { commands: Some(commands), wake, handle: Some(handle) })
    }

    fn tell(&self, command: Command) {
        // A thread that has panicked takes no commands; see `Fleet::ask`.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
        self.wake();
    }

    fn wake(&self) {
        // It cannot be full: each wake-up takes it back to 0.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// How many threads hold so many clients, each with a table of `descriptors`.
fn thread_count(clients: usize, asked: Option<usize>, cores: usize, descriptors: usize) -> usize {
    let each_max = descriptors.saturating_sub(RESERVED_DESCRIPTORS).max(1);
    let useful = cores.min(clients.div_ceil(CLIENTS_PER_THREAD_MIN));
    asked.unwrap_or(useful).max(clients.div_ceil(each_max)).max(1)
}

/// Raises this process's limit of descriptors as far as it may, and says what it is then.
fn raise_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Refused only if somebody else changes it at the same time.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(now).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;

//! The load: clients on threads with private descriptor tables, and the handle to all of them.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `thread` | a client thread: commands, timers and events |
//! | `shared` | what all threads share: settings, and the accumulator of what they measure |
//! | `client` | an idle client, at most 64 bytes |
//! | `opening`, `connect` | ramps, storms and churn: which clients are open, and when |
//! | `handshake` | from the start of a connect to the response head |
//! | `receive` | received messages, pings and closes |
//! | `follow`, `graph` | the streams that a client follows, and their audit |
//! | `start` | where the audit of a client starts if the publisher is on another machine |
//! | `deliveries` | latencies by message |
//! | `request` | the requests and hello messages of clients |
//! | `resume` | the message ids that clients resume after |
//! | [`sources`] | local addresses and ports |
//! | `network` | connections: sockets, or a [tunnel](throng_tunnel) |
//! | `sockets` | connections over kernel sockets |
//! | `packets` | packets from a tunnel |
//!
//! # Invariants
//!
//! * A descriptor never leaves the thread that opened it.
//! * Client `i` belongs to thread `i % threads` for ever.
//! * Between two messages a client has nothing but its slab entry.

mod client;
mod connect;
mod deliveries;
mod follow;
mod graph;
mod handshake;
mod network;
mod opening;
mod packets;
mod receive;
mod request;
mod resume;
mod shared;
mod sockets;
pub mod sources;
mod start;
mod thread;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use throng_host::environment::raise_descriptors;
use throng_host::preflight::CLIENTS_APART;
use throng_host::private_table;

use crate::audit::Audit;
use crate::counts::ClientCounts;
use crate::marker::now_ns;
use crate::plan::{Network, Plan};
use crate::streams::StreamCounters;
use throng_tunnel::{Tunnel, TunnelError};

use opening::RampGroups;
use shared::Shared;
use thread::{ClientThread, Command};

pub use client::CLIENT_BYTES_MAX;
pub use deliveries::PublishDeliveries;

/// Descriptors of a table that are not for clients; the same number as in the preflight.
const RESERVED_DESCRIPTORS: usize = CLIENTS_APART as usize;

/// With fewer clients than this, another thread costs more than it helps.
const CLIENTS_PER_THREAD_MIN: usize = 1_000;

/// The part of a run's clients that a pool has, if others have the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientShare {
    /// The number of the run, as in its marks and templates.
    pub run: u32,
    /// The number of the first client.
    pub first: usize,
    /// The distance from one client's number to the next: of three pools, each has every third
    /// client.
    pub step: usize,
    /// Clients of all pools of the run together.
    pub total: usize,
    /// How far this machine's clock is ahead of the publisher's.
    pub clock_ahead_ns: i64,
}

impl ClientShare {
    /// All clients of a run, with the publisher on the same machine.
    pub fn whole(run: u32, total: usize) -> ClientShare {
        ClientShare { run, first: 0, step: 1, total, clock_ahead_ns: 0 }
    }
}

/// Why a pool cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ClientPoolError {
    /// The target's URL cannot be used.
    #[error("the target {url:?} cannot be loaded: {reason}")]
    Url {
        /// The URL, rendered for the first client.
        url: String,
        /// The reason.
        reason: String,
    },
    /// Name resolution failed.
    #[error("the host {host:?} has no address: {reason}")]
    Dns {
        /// The host of the URL.
        host: String,
        /// The reason.
        reason: String,
    },
    /// A thread cannot be started.
    #[error("a client thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// The tunnel cannot be opened.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// More clients than 32-bit numbers.
    #[error("{0} clients are more than can be numbered")]
    TooMany(usize),
}

/// All client threads of this process.
pub struct ClientPool {
    shared: Arc<Shared>,
    threads: Vec<Worker>,
    cores: usize,
    /// The time of the last call of [`busiest`](Self::busiest), and each thread's processor time
    /// then.
    busy: Mutex<(Instant, Vec<u64>)>,
}

struct Worker {
    commands: Option<Sender<Command>>,
    wake: OwnedFd,
    handle: Option<JoinHandle<()>>,
}

impl ClientPool {
    /// Starts the threads; nothing connects yet. `clients_max` is the most clients at any time.
    pub fn start(plan: &Plan, clients_max: usize) -> Result<ClientPool, ClientPoolError> {
        // Two runs on one machine do not start in the same nanosecond.
        let run = (now_ns() ^ u64::from(std::process::id()) << 16) as u32;
        ClientPool::start_share(plan, clients_max, ClientShare::whole(run, clients_max))
    }

    /// Like [`start`](Self::start), for a part of a run's clients.
    pub fn start_share(
        plan: &Plan,
        clients_max: usize,
        share: ClientShare,
    ) -> Result<ClientPool, ClientPoolError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let descriptors = match plan.network {
            // Up to the hard limit, which the preflight has raised if it was too low.
            Network::Sockets => usize::try_from(raise_descriptors(0)).unwrap_or(usize::MAX),
            Network::Tunnel => usize::MAX,
        };
        let threads = thread_count(clients_max, plan.threads, cores, descriptors);
        let capacity = clients_max.div_ceil(threads);
        u32::try_from(capacity).map_err(|_| ClientPoolError::TooMany(clients_max))?;
        let shared = Arc::new(Shared::new(plan, share, threads)?);
        let threads = (0..threads)
            .map(|index| Worker::start(&shared, index, capacity))
            .collect::<Result<Vec<_>, _>>()?;
        let busy = Mutex::new((Instant::now(), vec![0; threads.len()]));
        Ok(ClientPool { shared, threads, cores, busy })
    }

    /// Checks that this process can use the network of the plan.
    pub fn check_network(plan: &Plan) -> Result<(), ClientPoolError> {
        if plan.network == Network::Sockets {
            return Ok(());
        }
        let shared = Shared::new(plan, ClientShare::whole(0, 1), 1)?;
        shared.tunnel_targets(0).map_or(Ok(()), |targets| Ok(Tunnel::probe(targets)?))
    }

    /// The number of the run, which marks and templates of publishers must use.
    pub fn run(&self) -> u32 {
        self.shared.share.run
    }

    /// The counters that publishers update and read: [`StreamCounters::published`] **before** each
    /// send, [`StreamCounters::refused`] if the server did not accept the message. Usable from any
    /// thread.
    pub fn counters(&self) -> Arc<StreamCounters> {
        Arc::clone(&self.shared.counters)
    }

    /// Brings the number of clients to `to`, at `rate` per second over all threads, and returns at
    /// once. At most `in_flight` connects are in progress, but at least one per thread; and for a
    /// moment twice as many when, without a rate, one group of threads takes over from another.
    /// Clients below `to` that have failed are tried once more.
    pub fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize) {
        let count = self.threads.len();
        let together = self.cores.min(count);
        let groups = rate.is_none().then(|| Arc::new(RampGroups::new(together, in_flight)));
        self.command(|index| Command::Ramp {
            to: (to + count - 1 - index) / count,
            rate,
            in_flight: in_flight / count,
            groups: groups.clone(),
        });
    }

    /// Closes `rate` clients per second and opens them again; 0 ends it.
    pub fn churn(&self, rate: f64) {
        self.command(|_| Command::Churn { rate });
    }

    /// Resets all connections and, once all are closed, opens them again as fast as `in_flight`
    /// allows. Clients that fail retry after a pause until they are subscribed.
    pub fn storm(&self, in_flight: usize) {
        self.command(|_| Command::Storm { in_flight: in_flight / self.threads.len() });
    }

    /// Makes the first `share` of the clients stop reading, or read again.
    pub fn slow(&self, share: f64, is_slow: bool) {
        self.command(|_| Command::Slow { share, is_slow });
    }

    /// Whether clients that fail, or that the server closes, reconnect after a pause. Initially as
    /// in the plan.
    pub fn keep(&self, is_kept: bool) {
        self.command(|_| Command::Keep(is_kept));
    }

    /// Whether clients wait with the next long-poll after a response, so that all can be answered
    /// before the next round. Initially they poll at once.
    pub fn hold_polls(&self, are_held: bool) {
        self.command(|_| Command::HoldPolls(are_held));
    }

    /// Reports that the counters now include everything a publisher on another machine had
    /// published at some time after the previous call returned. `is_behind` says whether it still
    /// publishes. Call it also before publishing starts. Returns when all clients have taken it
    /// into account.
    pub fn counters_updated(&self, is_behind: bool) {
        self.shared.counters.set_behind(is_behind);
        self.ask(|to| Command::CountersUpdated { is_behind, to });
    }

    /// The counts since the last call; the states are the current ones.
    pub fn counts(&self) -> ClientCounts {
        self.ask(Command::Collect);
        let mut accumulator = self.shared.accumulator.lock();
        std::mem::take(&mut accumulator.counts)
    }

    /// The deliveries of each message older than `age`, of all threads, by stream and sequence.
    /// Each delivery is returned once: for a message returned before, those that came later.
    /// `Duration::ZERO` returns all.
    pub fn publishes(&self, age: Duration) -> Vec<PublishDeliveries> {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = if age_ns == 0 { u64::MAX } else { now_ns().saturating_sub(age_ns) };
        self.publishes_until(until_ns)
    }

    /// Like [`publishes`](Self::publishes), for messages scheduled up to `until_ns` by the
    /// publisher's clock.
    pub fn publishes_until(&self, until_ns: u64) -> Vec<PublishDeliveries> {
        self.ask(Command::CollectLatencies);
        self.shared.accumulator.lock().deliveries.take(until_ns)
    }

    /// How many clients are subscribed to a stream.
    pub fn audience(&self, stream: u32) -> u64 {
        self.shared.counters.audience(stream)
    }

    /// Compares what each client received with what was sent: `sent[stream]` is the last sequence
    /// published, counted from 1, and 0 for none. Streams beyond its end had none.
    ///
    /// Closed connections count, too. If a client closed by request, messages in transit are not
    /// expected. If the server closed it, everything published until then is.
    pub fn audit(&self, sent: Arc<[u64]>) -> Audit {
        let mut all = Audit::default();
        for audit in self.ask(|to| Command::Audit { sent: Arc::clone(&sent), to }) {
            all += audit;
        }
        all
    }

    /// The share of time, from 0 to 1, that the busiest thread was busy since the last call; or
    /// all cores, if there are more threads than cores.
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

    /// Resets all connections and ends the threads.
    pub fn stop(mut self) {
        self.end();
    }

    fn command(&self, command: impl Fn(usize) -> Command) {
        for (index, worker) in self.threads.iter().enumerate() {
            worker.command(command(index));
        }
    }

    /// Sends a command to all threads at once and waits for their replies.
    fn ask<T>(&self, question: impl Fn(Sender<T>) -> Command) -> Vec<T> {
        let answers: Vec<Receiver<T>> = self
            .threads
            .iter()
            .map(|worker| {
                let (to, answer) = channel();
                worker.command(question(to));
                answer
            })
            .collect();
        // A thread that does not reply has panicked. `end` passes the panic on.
        answers.iter().filter_map(|answer| answer.recv().ok()).collect()
    }

    fn end(&mut self) {
        // All threads are told before any is joined, so that they close in parallel.
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

impl Drop for ClientPool {
    fn drop(&mut self) {
        self.end();
    }
}

impl Worker {
    fn start(
        shared: &Arc<Shared>,
        index: usize,
        capacity: usize,
    ) -> Result<Worker, ClientPoolError> {
        let shared = Arc::clone(shared);
        let (commands, commanded) = channel();
        let (started, start) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|error| ClientPoolError::Thread(error.into()))?;
        // Captured before the thread starts, as private descriptor tables require.
        let own = wake.try_clone().map_err(ClientPoolError::Thread)?;
        let handle = private_table::spawn(format!("clients-{index}"), move |unshared| {
            let thread = unshared
                .map_err(ClientPoolError::Thread)
                .and_then(|()| ClientThread::new(shared, index, capacity, own));
            match thread {
                Ok(thread) => {
                    let _ = started.send(Ok(()));
                    thread.run(&commanded);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        let handle = handle.map_err(ClientPoolError::Thread)?;
        let gone = |gone| Err(ClientPoolError::Thread(io::Error::other(gone)));
        start.recv().unwrap_or_else(gone)?;
        Ok(Worker { commands: Some(commands), wake, handle: Some(handle) })
    }

    fn command(&self, command: Command) {
        // A thread that has panicked takes no commands; see `ClientPool::ask`.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
        self.wake();
    }

    fn wake(&self) {
        // The count cannot overflow, because each wake-up resets it.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// How many threads are needed for `clients`, each with a table of `descriptors`.
fn thread_count(clients: usize, asked: Option<usize>, cores: usize, descriptors: usize) -> usize {
    let each_max = descriptors.saturating_sub(RESERVED_DESCRIPTORS).max(1);
    let useful = cores.min(clients.div_ceil(CLIENTS_PER_THREAD_MIN));
    asked.unwrap_or(useful).max(clients.div_ceil(each_max)).max(1)
}

#[cfg(test)]
mod tests;

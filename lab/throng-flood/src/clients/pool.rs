//! The handle to all client threads of this process.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use throng_host::environment::raise_descriptors;
use throng_host::preflight::CLIENTS_APART;

use super::deliveries::PublishDeliveries;
use super::error::ClientPoolError;
use super::opening::RampGroups;
use super::shared::{ClientShare, Shared};
use super::thread::ThreadCommand;
use super::thread_handle::ThreadHandle;
use crate::audit::Audit;
use crate::counts::ClientCounts;
use crate::marker::{new_run, now_ns};
use crate::plan::{Network, Plan};
use crate::streams::StreamCounters;
use throng_tunnel::Tunnel;

/// Descriptors of a table that are not for clients; the same number as in the preflight.
const RESERVED_DESCRIPTORS: usize = CLIENTS_APART as usize;

/// With fewer clients than this, another thread costs more than it helps.
const CLIENTS_PER_THREAD_MIN: usize = 1_000;

/// All client threads of this process.
pub struct ClientPool {
    shared: Arc<Shared>,
    threads: Vec<ThreadHandle>,
    cores: usize,
    /// The time of the last call of [`busiest`](Self::busiest), and each thread's processor time
    /// then.
    busy: Mutex<(Instant, Vec<u64>)>,
}

impl ClientPool {
    /// Starts the threads; nothing connects yet. `max_clients` is the most clients at any time.
    pub fn start(plan: &Plan, max_clients: usize) -> Result<ClientPool, ClientPoolError> {
        ClientPool::start_share(plan, max_clients, ClientShare::whole(new_run(), max_clients))
    }

    /// Like [`start`](Self::start), for a part of a run's clients.
    pub(crate) fn start_share(
        plan: &Plan,
        max_clients: usize,
        share: ClientShare,
    ) -> Result<ClientPool, ClientPoolError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let descriptors = match plan.network {
            // Up to the hard limit, which the preflight has raised if it was too low.
            Network::Sockets => usize::try_from(raise_descriptors(0)).unwrap_or(usize::MAX),
            Network::Tunnel => usize::MAX,
        };
        let threads = thread_count(max_clients, plan.threads, cores, descriptors);
        let capacity = max_clients.div_ceil(threads);
        u32::try_from(capacity).map_err(|_| ClientPoolError::TooMany(max_clients))?;
        let shared = Arc::new(Shared::new(plan, share, threads)?);
        let threads = (0..threads)
            .map(|index| ThreadHandle::start(&shared, index, capacity))
            .collect::<Result<Vec<_>, _>>()?;
        let busy = Mutex::new((Instant::now(), vec![0; threads.len()]));
        Ok(ClientPool { shared, threads, cores, busy })
    }

    /// Checks that this process can use the network of the plan.
    pub(crate) fn check_network(plan: &Plan) -> Result<(), ClientPoolError> {
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

    /// All addresses that clients may connect to.
    pub(crate) fn targets(&self) -> Vec<SocketAddr> {
        self.shared.targets.iter().chain(&self.shared.failover).copied().collect()
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
        self.command(|index| ThreadCommand::Ramp {
            to: (to + count - 1 - index) / count,
            rate,
            in_flight: in_flight / count,
            groups: groups.clone(),
        });
    }

    /// Closes `rate` clients per second and opens them again; 0 ends it.
    pub(crate) fn churn(&self, rate: f64) {
        self.command(|_| ThreadCommand::Churn { rate });
    }

    /// Resets all connections and, once all are closed, opens them again as fast as `in_flight`
    /// allows. Clients that fail retry after a pause until they are subscribed.
    pub(crate) fn storm(&self, in_flight: usize) {
        self.command(|_| ThreadCommand::Storm { in_flight: in_flight / self.threads.len() });
    }

    /// Makes the first `share` of the clients stop reading, or read again.
    pub fn slow(&self, share: f64, is_slow: bool) {
        self.command(|_| ThreadCommand::Slow { share, is_slow });
    }

    /// Sets whether clients that fail, or that the server closes, reconnect after a pause.
    /// Initially as in the plan.
    pub fn keep(&self, is_kept: bool) {
        self.command(|_| ThreadCommand::Keep(is_kept));
    }

    /// Sets whether clients wait with the next long-poll after a response, so that all can be
    /// answered before the next round. Initially they poll at once.
    pub fn hold_polls(&self, are_held: bool) {
        self.command(|_| ThreadCommand::HoldPolls(are_held));
    }

    /// Reports that the counters now include everything a publisher on another machine had
    /// published at some time after the previous call returned. `is_behind` says whether it still
    /// publishes. Call it also before publishing starts. Returns when all clients have taken it
    /// into account.
    pub(crate) fn counters_updated(&self, is_behind: bool) {
        self.shared.counters.set_behind(is_behind);
        self.ask(|to| ThreadCommand::CountersUpdated { is_behind, to });
    }

    /// The counts since the last call; the states are the current ones.
    pub fn counts(&self) -> ClientCounts {
        self.ask(ThreadCommand::Collect);
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
    pub(crate) fn publishes_until(&self, until_ns: u64) -> Vec<PublishDeliveries> {
        self.ask(ThreadCommand::CollectLatencies);
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
        for audit in self.ask(|to| ThreadCommand::Audit { sent: Arc::clone(&sent), to }) {
            all += audit;
        }
        all
    }

    /// The share of time, from 0 to 1, that the busiest thread was busy since the last call; or
    /// all cores, if there are more threads than cores.
    pub(crate) fn busiest(&self) -> f64 {
        let now_ns = self.ask(ThreadCommand::Busy);
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

    fn command(&self, command: impl Fn(usize) -> ThreadCommand) {
        for (index, thread) in self.threads.iter().enumerate() {
            thread.command(command(index));
        }
    }

    /// Sends a command to all threads at once and waits for their replies.
    fn ask<T>(&self, question: impl Fn(Sender<T>) -> ThreadCommand) -> Vec<T> {
        let answers: Vec<Receiver<T>> = self
            .threads
            .iter()
            .map(|thread| {
                let (to, answer) = channel();
                thread.command(question(to));
                answer
            })
            .collect();
        // A thread that does not reply has panicked. `end` passes the panic on.
        answers.iter().filter_map(|answer| answer.recv().ok()).collect()
    }

    fn end(&mut self) {
        // All are disconnected before any is joined, so that they close in parallel.
        self.threads.iter_mut().for_each(ThreadHandle::disconnect);
        for thread in &mut self.threads {
            if let Err(panic) = thread.join()
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

/// How many threads are needed for `clients`, each with a table of `descriptors`.
pub(super) fn thread_count(
    clients: usize,
    asked: Option<usize>,
    cores: usize,
    descriptors: usize,
) -> usize {
    let max_each = descriptors.saturating_sub(RESERVED_DESCRIPTORS).max(1);
    let useful = cores.min(clients.div_ceil(CLIENTS_PER_THREAD_MIN));
    asked.unwrap_or(useful).max(clients.div_ceil(max_each)).max(1)
}

//! The handle to all client threads of this process.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use throng_host::environment::raise_descriptors;
use throng_host::preflight::CLIENTS_APART;

use super::deliveries::PublishDeliveries;
use super::error::ClientPoolError;
use super::opening::RampGroups;
use super::share::{ClientCommand, ClientShare};
use super::shared::Shared;
use super::thread::{ClientThread, thread_cpu_ns};
use super::thread_handle::ThreadHandle;
use crate::audit::Audit;
use crate::counts::ClientCounts;
use crate::marker::new_run;
use crate::plan::{Network, Plan};
use crate::publish::PublisherSettings;
use crate::streams::StreamCounters;
use throng_tunnel::Tunnel;

/// Descriptors of a table that are not for clients; the same number as in the preflight.
const RESERVED_DESCRIPTORS: usize = CLIENTS_APART as usize;

/// With fewer clients than this, another thread costs more than it helps.
const CLIENTS_PER_THREAD_MIN: usize = 1_000;

/// Messages per second of one publishing thread, with a margin: sharing two busy cores with its
/// server, one thread sent 16,000.
const RATE_PER_THREAD: f64 = 10_000.0;

/// The clients of a run: one pool on this machine, several pools, or a fake.
pub trait ClientSet {
    /// Commands all clients, and returns at once.
    fn command(&self, command: ClientCommand);

    /// The counts since the last call; the states are the current ones.
    fn counts(&self) -> ClientCounts;

    /// The deliveries of each message scheduled up to `until_ns` by the publisher's clock, of all
    /// threads, by stream and sequence. Each delivery is returned once: for a message returned
    /// before, those that came later.
    fn publishes(&self, until_ns: u64) -> Vec<PublishDeliveries>;

    /// Compares what each client received with what was sent: `sent[stream]` is the last sequence
    /// published, counted from 1, and 0 for none. Streams beyond its end had none.
    ///
    /// Closed connections count, too. If a client closed by request, messages in transit are not
    /// expected. If the server closed it, everything published until then is.
    fn audit(&self, sent: Arc<[u64]>) -> Audit;

    /// The share of time, from 0 to 1, that the busiest thread was busy since the last call; or
    /// all cores, if there are more threads than cores.
    fn busiest(&self) -> f64;

    /// Publishing starts or has ended. Clients of this process see that in the counters.
    fn publishing(&self, _is_publishing: bool) {}

    /// Called often, so that clients on other machines learn what is published.
    fn send_updates(&self) {}

    /// True if no clients are left that a command would reach.
    fn is_gone(&self) -> bool {
        false
    }
}

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
        u32::try_from(capacity).map_err(|_| ClientPoolError::too_many(max_clients))?;
        ClientPool::launch(Shared::new(plan, share, threads)?, capacity)
    }

    /// Starts the threads of connections that publish, which are clients with other numbers.
    pub(crate) fn start_publishers(
        settings: &PublisherSettings<'_>,
        connections: usize,
    ) -> Result<ClientPool, ClientPoolError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = (settings.max_rate / RATE_PER_THREAD).ceil().max(1.0) as usize;
        let threads = wanted.min(cores).min(connections).max(1);
        let shared = Shared::of_publishers(settings, threads)?;
        ClientPool::launch(shared, connections.div_ceil(threads))
    }

    fn launch(shared: Shared, capacity: usize) -> Result<ClientPool, ClientPoolError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(shared);
        let threads = (0..shared.threads)
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
        self.shared.all_targets()
    }

    /// The counters that publishers update and read: [`StreamCounters::published`] **before** each
    /// send, [`StreamCounters::refused`] if the server did not accept the message. Usable from any
    /// thread.
    pub fn counters(&self) -> Arc<StreamCounters> {
        Arc::clone(&self.shared.counters)
    }

    /// Reports that the counters now include everything a publisher on another machine had
    /// published at some time after the previous call returned. `is_behind` says whether it still
    /// publishes. Call it also before publishing starts. Returns when all clients have taken it
    /// into account.
    pub(crate) fn counters_updated(&self, is_behind: bool) {
        self.shared.counters.set_behind(is_behind);
        self.ask(move |thread| thread.counters_updated(is_behind));
    }

    /// How many clients are subscribed to a stream.
    pub fn audience(&self, stream: u32) -> u64 {
        self.shared.counters.audience(stream)
    }

    /// Resets all connections and ends the threads.
    pub fn stop(mut self) {
        self.end();
    }

    /// Makes all threads do something at once, and waits for their replies.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl Fn(&mut ClientThread) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let ask = |thread: &ThreadHandle| {
            let (to, answer) = channel();
            let question = question.clone();
            // A reply that is not awaited any more may be lost.
            thread.command(Box::new(move |thread| drop(to.send(question(thread)))));
            answer
        };
        let answers: Vec<Receiver<T>> = self.threads.iter().map(ask).collect();
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

impl ClientSet for ClientPool {
    fn command(&self, command: ClientCommand) {
        let count = self.threads.len();
        let groups = match command {
            ClientCommand::Ramp { rate: None, in_flight, .. } => {
                Some(Arc::new(RampGroups::new(self.cores.min(count), in_flight)))
            }
            _ => None,
        };
        for (index, thread) in self.threads.iter().enumerate() {
            let (own, groups) = (command.part(index, count, 1.0), groups.clone());
            thread.command(Box::new(move |thread| thread.execute(own, groups)));
        }
    }

    fn counts(&self) -> ClientCounts {
        self.ask(ClientThread::collect);
        let mut accumulator = self.shared.accumulator.lock();
        std::mem::take(&mut accumulator.counts)
    }

    fn publishes(&self, until_ns: u64) -> Vec<PublishDeliveries> {
        self.ask(ClientThread::collect_latencies);
        self.shared.accumulator.lock().deliveries.take(until_ns)
    }

    fn audit(&self, sent: Arc<[u64]>) -> Audit {
        let mut all = Audit::default();
        for audit in self.ask(move |thread| thread.audit(&sent)) {
            all += &audit;
        }
        all
    }

    fn busiest(&self) -> f64 {
        let now_ns = self.ask(|_| thread_cpu_ns());
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

//! A client thread: commands, timers and events.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

use super::activity::{self, Activity};
use super::client::{Client, ClientState, PendingStarts};
use super::error::ClientPoolError;
use super::inflated::Inflated;
use super::network::{Carrier, ClientConnections};
use super::opening::{Opening, RampGroups};
use super::outbox::Outbox;
use super::resume::MessageIds;
use super::share::ClientCommand;
use super::shared::{LatencyBatch, Shared};
use super::sockets::{Sockets, TIME, WAKE};
use crate::audit::Audit;
use crate::counts::{ClientCounts, States};
use crate::failure::Failure;
use crate::marker::now_ns;
use crate::plan::Transport;
use crate::sums::{LongestNs, Sum as _};
use throng_tunnel::Tunnel;

/// Bytes of the receive buffer: more than a socket usually holds. Unused pages cost nothing.
const RECEIVE_BYTES: usize = 64 * 1024;

/// The longest wait. Commands end it.
const WAIT_NS_MAX: u64 = 1_000_000_000;

/// How often slow clients read, if they do at all.
const SLOW_READS_NS: u64 = 10_000_000;

/// The reads of slow clients.
#[derive(Debug, Clone, Copy, Default)]
struct SlowReads {
    /// Bytes per second of each client; 0 if none reads.
    speed: usize,
    /// When they last read.
    read_ns: u64,
}

/// A command from the pool to a thread.
pub(super) type ThreadCommand = Box<dyn FnOnce(&mut ClientThread) + Send>;

/// One thread's clients and what they have received.
pub(crate) struct ClientThread {
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
    pub(super) network: ClientConnections,
    wake: OwnedFd,
    pub(super) clients: Vec<Client>,
    /// What the clients publish, if they do.
    pub(super) outbox: Outbox,
    pub(super) opening: Opening,
    pub(super) starts: PendingStarts,
    pub(super) keeps: bool,
    /// The answered clients while polls are held, each with the time of its subscription.
    pub(super) held_polls: Option<Vec<(u32, u64)>>,
    pub(super) states: States,
    /// Counts without latencies, which are in `latencies`.
    pub(super) counts: ClientCounts,
    pub(super) latencies: LatencyBatch,
    /// The audit of closed connections; duplicates and reordering of all.
    pub(super) finished_audit: Audit,
    /// Messages that never arrived on any connection, with notice by the server.
    pub(super) missed: u64,
    pub(super) ids: MessageIds,
    pub(super) activity: Activity,
    slow: SlowReads,
    pub(super) buffer: Vec<u8>,
    /// For bytes that are about to be sent.
    pub(super) scratch: Vec<u8>,
    /// For what records contain.
    pub(super) content: Vec<u8>,
    /// The last compressed message.
    pub(super) inflated: Inflated,
}

impl ClientThread {
    /// Opens what the thread needs. Call it on the thread itself.
    pub(super) fn new(
        shared: Arc<Shared>,
        index: usize,
        capacity: usize,
        wake: OwnedFd,
    ) -> Result<ClientThread, ClientPoolError> {
        let (carrier, buffer) = match shared.tunnel_targets(index) {
            Some(targets) => {
                let tunnel = Tunnel::new(targets, capacity)?;
                (Carrier::Tunnel(Box::new(tunnel)), Tunnel::receive_buffer())
            }
            None => {
                let sockets = Sockets::new(Arc::clone(&shared), index, capacity, &wake)
                    .map_err(ClientPoolError::thread)?;
                (Carrier::Sockets(sockets), vec![0; RECEIVE_BYTES])
            }
        };
        let network = ClientConnections::new(carrier, shared.tls.as_ref(), capacity);
        let publisher = shared.publisher.as_ref();
        let outbox = publisher.map(|publisher| publisher.outbox(index, shared.threads));
        let outbox = outbox.unwrap_or_default();
        // Pages become resident as clients are opened.
        let mut clients = Vec::with_capacity(capacity);
        clients.resize_with(outbox.queues.len(), Client::default);
        Ok(ClientThread {
            keeps: shared.keeps,
            held_polls: None,
            shared,
            index,
            network,
            wake,
            clients,
            outbox,
            opening: Opening::default(),
            starts: PendingStarts::default(),
            states: States::default(),
            counts: ClientCounts::default(),
            latencies: LatencyBatch::default(),
            finished_audit: Audit::default(),
            missed: 0,
            ids: MessageIds::default(),
            activity: Activity::default(),
            slow: SlowReads::default(),
            buffer,
            scratch: Vec::new(),
            content: Vec::new(),
            inflated: Inflated::default(),
        })
    }

    /// Runs until the pool is dropped.
    pub(super) fn run(mut self, commands: &Receiver<ThreadCommand>) {
        let mut events = Sockets::events();
        let mut woken_ns = now_ns();
        loop {
            loop {
                match commands.try_recv() {
                    Ok(command) => command(&mut self),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let due_ns = self.publish_due();
            self.expire();
            self.ping_due();
            let due_ns = due_ns.min(self.open_due()).min(self.read_slowly());
            let now = now_ns();
            let due_ns = due_ns.min(self.activity.next_ns(now));
            self.counts.lag_ns.add(&LongestNs(now.saturating_sub(woken_ns)));
            woken_ns = self.turn(&mut events, due_ns.min(now + WAIT_NS_MAX));
        }
    }

    /// Pings for the clients whose turn it is.
    fn ping_due(&mut self) {
        let clients = self.clients.len();
        let Some((first, count)) = self.activity.due(now_ns(), clients) else { return };
        let ping = activity::ping();
        for step in 0..count {
            let position = (first + step) % clients;
            if self.clients[position].state == ClientState::Active
                && let Err(failure) = self.send(position, &ping)
            {
                self.fail(position, failure);
            }
        }
    }

    /// Waits for events, at most until a time, and handles them. Returns the time of the wake-up.
    fn turn(&mut self, events: &mut Vec<epoll::Event>, until_ns: u64) -> u64 {
        let tunnel = match &self.network.carrier {
            Carrier::Tunnel(tunnel) => tunnel,
            Carrier::Sockets(sockets) => {
                sockets.wait(events, until_ns);
                let woken_ns = now_ns();
                for event in &*events {
                    match event.data.u64() {
                        WAKE => self.clear_wake(),
                        TIME => {}
                        // Registered as a position.
                        position => self.handle(position as usize, event.flags),
                    }
                }
                return woken_ns;
            }
        };
        let until_ns = tunnel.next_ns().map_or(until_ns, |due_ns| due_ns.min(until_ns));
        let sleep = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
        let is_called = tunnel.wait(&self.wake, sleep);
        let woken_ns = now_ns();
        if is_called {
            self.clear_wake();
        }
        self.take_packets();
        woken_ns
    }

    /// Clears the wake-up. The commands say what is wanted.
    fn clear_wake(&self) {
        // The count does not matter.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Executes a command to the thread's clients, with the rates of all threads. A ramp has the
    /// groups that threads open clients in, unless all do at once.
    pub(super) fn execute(&mut self, command: ClientCommand, groups: Option<Arc<RampGroups>>) {
        match command {
            ClientCommand::Ramp { to, rate, in_flight } => self.ramp(to, rate, in_flight, groups),
            ClientCommand::Churn { rate } => self.churn(rate),
            ClientCommand::Storm { in_flight } => self.storm(in_flight),
            ClientCommand::Slow { share, is_slow, speed } => self.slow(share, is_slow, speed),
            ClientCommand::Keep(keeps) => self.keeps = keeps,
            ClientCommand::HoldPolls(are_held) => self.hold_polls(are_held),
        }
    }

    /// Adds the counts and latencies to the accumulator.
    pub(super) fn collect(&mut self) {
        let mut accumulator = self.shared.accumulator.lock();
        self.counts.states = self.states;
        self.counts.readers = self.reader_ages();
        if let Carrier::Tunnel(tunnel) = &mut self.network.carrier {
            self.counts.repeated += tunnel.retransmitted();
        }
        accumulator.counts += &std::mem::take(&mut self.counts);
        self.latencies.add_to(&mut accumulator);
    }

    /// Adds the latencies to the accumulator.
    pub(super) fn collect_latencies(&mut self) {
        self.latencies.add_to(&mut self.shared.accumulator.lock());
    }

    /// Changes the state of a client.
    pub(super) fn set_state(&mut self, position: usize, state: ClientState) {
        let before = std::mem::replace(&mut self.clients[position].state, state);
        for (state, step) in [(before, u64::MAX), (state, 1)] {
            let count = match state {
                ClientState::New => continue,
                ClientState::Waiting
                | ClientState::Connecting
                | ClientState::Handshaking
                | ClientState::Joining => &mut self.states.connecting,
                ClientState::Active => &mut self.states.active,
                ClientState::Closed => &mut self.states.closed,
            };
            // Adding the largest number subtracts one.
            *count = count.wrapping_add(step);
        }
        let in_flight = &mut self.opening.in_flight;
        *in_flight -= usize::from(before.is_in_flight());
        *in_flight += usize::from(state.is_in_flight());
    }

    /// Fails a client: closes it, and schedules a reconnect if it is to have one, to the failover
    /// server if there is one. A client that was told when to come back, and does, has not failed.
    pub(super) fn fail(&mut self, position: usize, failure: Failure) {
        if failure == Failure::Reconnect {
            self.lose_messages(position, &Failure::Closed(None));
            self.close(position, true, false);
            self.clients[position].returns = true;
            return self.reopen(position);
        }
        let (moment, failure) = match failure {
            Failure::ComeBack { after_ms, refusal } => (Some(after_ms), *refusal),
            failure => (None, failure),
        };
        let polls = self.shared.transport == Transport::LongPoll && self.opening.is_stormy;
        let returns = self.keeps || self.clients[position].returns || polls && moment.is_some();
        let moment = moment.filter(|_| returns && self.shared.publisher.is_none());
        if moment.is_some() {
            self.counts.told += 1;
        } else {
            // A rejection may have arrived in part.
            let failure = self.partial_refusal(position).unwrap_or(failure);
            self.lose_messages(position, &failure);
            self.counts.fail(failure);
        }
        self.close(position, returns, false);
        if returns {
            self.network.fail_over(position);
            self.retry(position, moment.map(Duration::from_millis));
        }
    }

    /// Closes a client's connection, and ends its audit unless the client resumes later. Messages
    /// in transit are not expected if the close was requested, and lost if the server closed.
    pub(super) fn close(&mut self, position: usize, comes_back: bool, is_asked: bool) {
        let was_active = self.clients[position].state == ClientState::Active;
        self.set_state(
            position,
            if comes_back { ClientState::Waiting } else { ClientState::Closed },
        );
        // The server has closed already.
        self.network.close(position, is_asked || !was_active);
        if was_active && self.clients[position].is_tracked {
            self.leave(position);
        }
        if !comes_back || !self.clients[position].resume.is_some() {
            self.finish_audit(position, is_asked);
        }
        let client = &mut self.clients[position];
        if let Some(extra) = &mut client.extra {
            (extra.partial, extra.head, extra.unsent) = (None, Vec::new(), Vec::new());
            extra.confirmed = 0;
        }
        client.shrink();
    }

    fn slow(&mut self, share: f64, is_slow: bool, speed: usize) {
        self.slow = SlowReads { speed: if is_slow { speed } else { 0 }, read_ns: now_ns() };
        let count = (share.clamp(0.0, 1.0) * self.clients.len() as f64).ceil() as usize;
        for position in 0..self.clients.len() {
            let was_slow = self.clients[position].is_slow;
            let is_slow = is_slow && position < count;
            self.clients[position].is_slow = is_slow;
            if was_slow && !is_slow && self.network.is_open(position) {
                // What arrived meanwhile makes no new event.
                self.receive(position, epoll::EventFlags::RDHUP, usize::MAX);
                self.release(position);
            }
        }
    }

    /// Slow clients read what their speed allows. Returns when they do again.
    fn read_slowly(&mut self) -> u64 {
        let now = now_ns();
        let SlowReads { speed: speed @ 1.., read_ns } = self.slow else { return u64::MAX };
        let passed_ns = now.saturating_sub(read_ns);
        if passed_ns >= SLOW_READS_NS {
            self.slow.read_ns = now;
            let bytes = (speed as u128 * u128::from(passed_ns) / 1_000_000_000) as usize;
            for position in 0..self.clients.len() {
                if self.is_paused(position) {
                    self.receive(position, epoll::EventFlags::empty(), bytes);
                }
            }
        }
        self.slow.read_ns + SLOW_READS_NS
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        self.network.close_all();
    }
}

pub(super) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither negative nor more than 500 years.
    (time.tv_sec * 1_000_000_000 + time.tv_nsec) as u64
}

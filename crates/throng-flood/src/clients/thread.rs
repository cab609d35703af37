//! One thread's life: commands, what is due, events.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

use super::FleetError;
use super::client::{Client, State};
use super::connect::Opening;
use super::ledger::Measured;
use super::network::Network;
use super::resume::Ids;
use super::setting::Setting;
use super::sockets::{Sockets, WAKE};
use super::start::Starts;
use super::turns::Turns;
use crate::audit::Audit;
use crate::marker::now_ns;
use crate::tally::{Failure, States, Tally};
use throng_tunnel::Tunnel;

/// One receive buffer for all: larger than what is usually left in a socket. Pages that are never
/// filled cost nothing.
const RECEIVE_BYTES: usize = 64 * 1024;

/// The longest sleep; commands end it.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What the fleet asks of a thread.
pub(super) enum Command {
    /// So many clients of this thread, at this rate over all threads.
    Ramp {
        to: usize,
        rate: Option<f64>,
        in_flight: usize,
        /// Whose turn it is; `None` for all at once.
        turns: Option<Arc<Turns>>,
    },
    Churn {
        rate: f64,
    },
    Storm {
        in_flight: usize,
    },
    Slow {
        share: f64,
        is_slow: bool,
    },
    Keep(bool),
    /// Polls that are answered wait with asking again, or ask now.
    HoldPolls(bool),
    /// The board has been told what is published elsewhere.
    Told {
        is_behind: bool,
        to: Sender<()>,
    },
    /// Carries counts and measures to the ledger.
    Tell(Sender<()>),
    /// Carries measures to the ledger.
    Carry(Sender<()>),
    Audit {
        sent: Arc<[u64]>,
        to: Sender<Audit>,
    },
    /// The thread's processor time.
    Busy(Sender<u64>),
}

/// One thread's clients and what they have seen.
pub(super) struct Thread {
    pub(super) setting: Arc<Setting>,
    pub(super) index: usize,
    pub(super) network: Network,
    wake: OwnedFd,
    pub(super) clients: Vec<Client>,
    pub(super) opening: Opening,
    pub(super) starts: Starts,
    pub(super) keeps: bool,
    /// While polls are held: who has been answered, and since when that client was subscribed.
    pub(super) held_polls: Option<Vec<(u32, u64)>>,
    pub(super) states: States,
    /// Without latencies, which are in `measured`.
    pub(super) tally: Tally,
    pub(super) measured: Measured,
    /// Of connections that are over; duplicates and disorder of all.
    pub(super) settled: Audit,
    /// Of all connections: what never came, and the server told of it.
    pub(super) missed: u64,
    pub(super) ids: Ids,
    pub(super) buffer: Vec<u8>,
    /// For what is about to be sent.
    pub(super) scratch: Vec<u8>,
}

impl Thread {
    /// Opens what the thread needs, on the thread itself.
    pub(super) fn new(
        setting: Arc<Setting>,
        index: usize,
        capacity: usize,
        wake: OwnedFd,
    ) -> Result<Thread, FleetError> {
        let (network, buffer) = match setting.tunnel_targets(index) {
            Some(targets) => {
                let tunnel = Tunnel::new(targets, capacity)?;
                (Network::Tunnel(Box::new(tunnel)), Tunnel::receive_buffer())
            }
            None => {
                let sockets = Sockets::new(Arc::clone(&setting), index, capacity, &wake)
                    .map_err(|error| FleetError::Thread(error.into()))?;
                (Network::Sockets(sockets), vec![0; RECEIVE_BYTES])
            }
        };
        Ok(Thread {
            keeps: setting.keeps,
            held_polls: None,
            setting,
            index,
            network,
            wake,
            // Pages of it become resident as clients are opened.
            clients: Vec::with_capacity(capacity),
            opening: Opening::default(),
            starts: Starts::default(),
            states: States::default(),
            tally: Tally::default(),
            measured: Measured::default(),
            settled: Audit::default(),
            missed: 0,
            ids: Ids::default(),
            buffer,
            scratch: Vec::new(),
        })
    }

    /// Runs until the fleet is dropped.
    pub(super) fn run(mut self, commands: &Receiver<Command>) {
        let mut events = Sockets::events();
        let mut woken_ns = now_ns();
        loop {
            loop {
                match commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.expire();
            let due_ns = self.open_due();
            let now = now_ns();
            self.tally.lag_ns = self.tally.lag_ns.max(now.saturating_sub(woken_ns));
            let sleep = Duration::from_nanos(due_ns.saturating_sub(now)).min(WAIT_MAX);
            woken_ns = self.turn(&mut events, sleep);
        }
    }

    /// Sleeps until something happens, at most so long, and sees to it; when the sleep was over.
    fn turn(&mut self, events: &mut Vec<epoll::Event>, sleep: Duration) -> u64 {
        let tunnel = match &self.network {
            Network::Tunnel(tunnel) => tunnel,
            Network::Sockets(sockets) => {
                sockets.wait(events, sleep);
                let woken_ns = now_ns();
                for event in &*events {
                    match event.data.u64() {
                        WAKE => self.hear(),
                        // Registered as a position.
                        position => self.handle(position as usize, event.flags),
                    }
                }
                return woken_ns;
            }
        };
        let until_ns = tunnel.next_ns().map_or(u64::MAX, |due_ns| due_ns.saturating_sub(now_ns()));
        let is_called = tunnel.wait(&self.wake, sleep.min(Duration::from_nanos(until_ns)));
        let woken_ns = now_ns();
        if is_called {
            self.hear();
        }
        self.take_packets();
        woken_ns
    }

    /// Forgets that the thread was woken: the commands say what is wanted.
    fn hear(&self) {
        // Its count does not matter.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn obey(&mut self, command: Command) {
        // An answer that nobody waits for any more is of no use.
        match command {
            Command::Ramp { to, rate, in_flight, turns } => {
                self.ramp(to, rate, in_flight);
                self.opening.turns = turns;
            }
            Command::Churn { rate } => self.churn(rate),
            Command::Storm { in_flight } => self.storm(in_flight),
            Command::Slow { share, is_slow } => self.slow(share, is_slow),
            Command::Keep(keeps) => self.keeps = keeps,
            Command::HoldPolls(are_held) => self.hold_polls(are_held),
            Command::Told { is_behind, to } => {
                self.told(is_behind);
                let _ = to.send(());
            }
            Command::Tell(to) => {
                let mut ledger = self.setting.ledger.lock();
                self.tally.states = self.states;
                if let Network::Tunnel(tunnel) = &mut self.network {
                    self.tally.repeated += tunnel.retransmitted();
                }
                ledger.tally.merge(&self.tally);
                self.tally.clear();
                self.measured.carry(&mut ledger);
                let _ = to.send(());
            }
            Command::Carry(to) => {
                self.measured.carry(&mut self.setting.ledger.lock());
                let _ = to.send(());
            }
            Command::Audit { sent, to } => drop(to.send(self.audit(&sent))),
            Command::Busy(to) => drop(to.send(thread_cpu_ns())),
        }
    }

    /// Moves a client to another state.
    pub(super) fn set_state(&mut self, position: usize, state: State) {
        let before = std::mem::replace(&mut self.clients[position].state, state);
        for (state, step) in [(before, u64::MAX), (state, 1)] {
            let count = match state {
                State::New => continue,
                State::Waiting | State::Connecting | State::Handshaking | State::Joining => {
                    &mut self.states.connecting
                }
                State::Active => &mut self.states.active,
                State::Closed => &mut self.states.closed,
            };
            // Adding the largest number takes one away.
            *count = count.wrapping_add(step);
        }
        let in_flight = &mut self.opening.in_flight;
        *in_flight -= usize::from(before.is_in_flight());
        *in_flight += usize::from(state.is_in_flight());
    }

    /// A client failed: it is closed, and comes back if it is to.
    pub(super) fn fail(&mut self, position: usize, failure: Failure) {
        // A server that refuses says why, even if it does not come to the end of it.
        self.tally.fail(self.half_refusal(position).unwrap_or(failure));
        let returns = self.keeps || self.clients[position].returns;
        self.close(position, returns, false);
        if returns {
            self.retry(position);
        }
    }

    /// Closes a client's connection, which ends its audit unless it goes on later. If it was asked
    /// for, what may be on the way is not expected; if the server did it, it is lost.
    pub(super) fn close(&mut self, position: usize, comes_back: bool, is_asked: bool) {
        let was_active = self.clients[position].state == State::Active;
        self.set_state(position, if comes_back { State::Waiting } else { State::Closed });
        // A server that has closed need not be told so.
        self.network.close(position, is_asked || !was_active);
        if was_active {
            self.leave(position);
        }
        if !comes_back || !self.clients[position].resume.is_some() {
            self.settle(position, is_asked);
        }
        let client = &mut self.clients[position];
        if let Some(extra) = &mut client.extra {
            (extra.half, extra.head, extra.unsent) = (None, Vec::new(), Vec::new());
        }
        client.shrink();
    }

    fn slow(&mut self, share: f64, is_slow: bool) {
        let count = (share.clamp(0.0, 1.0) * self.clients.len() as f64).ceil() as usize;
        for position in 0..self.clients.len() {
            let was_slow = self.clients[position].is_slow;
            let is_slow = is_slow && position < count;
            self.clients[position].is_slow = is_slow;
            if was_slow && !is_slow && self.network.is_open(position) {
                // What came meanwhile makes no new event.
                self.receive(position, epoll::EventFlags::RDHUP);
                self.release(position);
            }
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.network.close_all();
    }
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither negative nor longer than 500 years.
    (time.tv_sec * 1_000_000_000 + time.tv_nsec) as u64
}

//! A worker and its event loop.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throng_edge::event_loop::sleep::Sleep;
use throng_edge::tls::TlsNet;
use throng_edge::worker::{Now, Setup, Worker};
use throng_tls::Acceptor;

use crate::net::{FakeNet, Handoff};
use crate::notes::Notes;
use crate::pipe::FakeSocket;

/// The length of a tick in milliseconds.
pub(super) const TICK_MS: u64 = 100;

/// The maximum numbers of events and sockets for one turn of the loop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) events: usize,
    pub(super) sockets: usize,
}

impl Batch {
    pub(super) const ALL: Batch = Batch { events: usize::MAX, sockets: usize::MAX };
}

/// A worker on fake sockets, some of them with TLS.
pub(super) type SeatWorker = Worker<TlsNet<FakeNet>>;

/// A worker, its incoming sockets, and the state of its event loop.
pub(super) struct Seat {
    pub(super) worker: SeatWorker,
    /// The parameters of a worker in its place.
    pub(super) setup: Setup,
    /// When the process of the worker started, which its ticks count from.
    started_ms: u64,
    /// Sockets connected but not yet accepted.
    pub(super) backlog: VecDeque<FakeSocket>,
    /// Hand-offs not yet received.
    pub(super) handoffs: VecDeque<Handoff>,
    /// The real event loop's decisions.
    pub(super) sleep: Sleep,
    /// While the thread waits for events: its timeout.
    asleep_until: Option<Duration>,
    /// Set when another thread wakes the worker.
    is_woken: Arc<AtomicBool>,
    /// The number of sockets accepted or received so far.
    pub(super) taken: u64,
    acceptor: Option<Acceptor>,
}

impl Seat {
    pub(super) fn new(
        setup: Setup,
        net: (&Rc<Notes>, Option<Acceptor>),
        started_ms: u64,
        sleep: Sleep,
        is_woken: Arc<AtomicBool>,
    ) -> Seat {
        let (notes, acceptor) = net;
        Seat {
            worker: worker(&setup, FakeNet::new(notes), acceptor.clone()),
            setup,
            started_ms,
            backlog: VecDeque::new(),
            handoffs: VecDeque::new(),
            sleep,
            asleep_until: None,
            is_woken,
            taken: 0,
            acceptor,
        }
    }

    /// Another worker, without connections, for the place of this one.
    pub(super) fn vacant(&self, net: FakeNet) -> SeatWorker {
        worker(&self.setup, net, self.acceptor.clone())
    }

    /// Takes the first connected socket that the worker accepts now: TLS ones wait while too many
    /// handshakes are under way.
    pub(super) fn next_socket(&mut self) -> Option<FakeSocket> {
        let at = self.acceptable()?;
        self.backlog.remove(at)
    }

    fn acceptable(&mut self) -> Option<usize> {
        let takes_tls = self.worker.net().takes_handshakes();
        self.backlog.iter().position(|socket| takes_tls || socket.0.borrow().tls.is_none())
    }

    /// The fake sockets.
    pub(super) fn net(&mut self) -> &mut FakeNet {
        self.worker.net().inner()
    }

    /// True if the worker's loop runs without waiting: it is awake, or an event has woken it.
    /// Retries without an event count as well, because simulated time is too coarse for them.
    pub(super) fn is_runnable(&mut self, now: Duration) -> bool {
        !self.worker.is_ended()
            && (self.asleep_until.is_none_or(|until| until <= now)
                || self.is_woken()
                || self.worker.is_retrying()
                || self.worker.net().inner().has_events()
                || self.acceptable().is_some()
                || !self.handoffs.is_empty())
    }

    /// True if another thread has woken the worker.
    pub(super) fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::SeqCst)
    }

    /// True if the worker holds messages back, or has until now.
    pub(super) fn holds_back(&self) -> bool {
        !self.worker.is_ended() && self.worker.until_due().is_some()
    }

    /// Lets the loop wait for events. Returns whether it continues at once.
    pub(super) fn wait(&mut self, now: Duration) -> bool {
        if self.asleep_until.is_none() {
            let timeout = self.sleep.prepare_to_sleep(&self.worker, now);
            self.asleep_until = Some(now + timeout);
        }
        self.is_runnable(now)
    }

    /// The time by the clock of the worker's process.
    pub(super) fn moment(&self, now_ms: u64) -> Now {
        Now::after(now_ms - self.started_ms, now_ms)
    }

    /// From now on the worker is in a process that has just started.
    pub(super) fn restart_ticks(&mut self, now_ms: u64) {
        self.started_ms = now_ms;
    }

    /// Ends the loop's wait.
    pub(super) fn wake(&mut self) {
        self.asleep_until = None;
        self.is_woken.store(false, Ordering::SeqCst);
        self.sleep.finish_sleep();
    }
}

fn worker(setup: &Setup, net: FakeNet, acceptor: Option<Acceptor>) -> SeatWorker {
    let counters = Arc::clone(&setup.metrics.worker(setup.id).counters);
    let net = TlsNet::new(net, acceptor, counters, setup.settings.limits.max_handshakes);
    Worker::new(setup.clone(), net)
}

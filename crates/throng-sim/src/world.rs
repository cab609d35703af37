//! Engine, workers and clients, and the steps that the seed chooses for them.
//!
//! | module | what it does |
//! |---|---|
//! | `birth` | chooses the kind and the settings of the world |
//! | `member_times` | when somebody was a member last |
//! | `plans` | chooses subscriptions and publications |
//! | `script` | runs random steps |
//! | `changes` | what happens to changing channels |
//! | `creations` | channels that are created and go |
//! | `keeper` | what is known of these, and who looks after them |
//! | `crowd` | many clients on one channel, some of which leave and join during fan-outs |
//! | `journals` | where the logs are |
//! | `members` | who may and who must be a member |
//! | `memory` | how short memory is |
//! | `shortage` | memory that becomes short and suffices again |
//! | `storms` | which queues of new connections become long |
//! | `storm` | queues of new connections that become long and short again |
//! | `seat` | a worker and the state of its event loop |
//! | `turns` | turns of the event loops and of the control plane |
//! | `receipt_desk` | the receipts under way |
//! | `receipts` | receipts of publications |
//! | `record` | replays the engine's record into the model |
//! | `rest` | lets all work finish, and checks that nothing is missing |
//! | `freeze` | replaces workers and engine by what is thawed from their bytes |
//! | `finale` | the end: all clients leave, or the server drains |

mod birth;
mod changes;
mod creations;
mod crowd;
mod finale;
mod freeze;
mod journals;
mod keeper;
mod member_times;
mod members;
mod memory;
mod plans;
mod receipt_desk;
mod receipts;
mod record;
mod rest;
mod script;
mod seat;
mod shortage;
mod storm;
mod storms;
mod turns;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use throng_core::{Channels, WorkerQueue};
use throng_edge::Counter;
use throng_edge::Metrics;
use throng_edge::event_loop::permits::PermitHolder;

use crate::Check;
use crate::client::view::{Terms, View};
use crate::client::{Client, Tamper};
use crate::control::Control;
use crate::late::LatePolicy;
use crate::model::Model;
use crate::notes::Notes;
use crate::random::Random;
use crate::recorder::Recorder;
use crate::stamp::{Moment, Stamp};
use crate::tls_end::TlsWorld;
use keeper::Creations;
use member_times::MemberTimes;
use memory::Memory;
use receipt_desk::ReceiptDesk;
use seat::Seat;
use storms::Storms;

/// The time at which every world begins.
const BEGINNING_MS: u64 = 1_700_000_000_000;

/// The minimum time for a drain, even if the drain timeout has passed when it starts.
const DRAIN_MS_MIN: u64 = 1000;

#[derive(Debug, Clone, Copy)]
struct Kind {
    /// True if a fan-out pass over one channel takes several slices.
    is_crowd: bool,
    /// True if only the server closes connections before the end.
    clients_stay: bool,
    /// True if the server asks its clients to leave now and then, and takes it back.
    asks_to_leave: bool,
    /// The step at which the server drains; `None` if all clients leave instead.
    drains_at: Option<usize>,
    steps: usize,
    max_clients: usize,
    /// How many more times part of a crowd leaves and joins during a fan-out.
    stirs: usize,
}

pub(crate) struct World {
    random: Random,
    notes: Rc<Notes>,
    stamp: Arc<Stamp>,
    engine: Arc<Channels>,
    recorder: Arc<Recorder>,
    queues: Vec<Arc<WorkerQueue>>,
    model: Model,
    seats: Vec<Seat>,
    /// Competes with the workers for permits to fan out.
    rival: PermitHolder,
    control: Control,
    /// The shared state of its TLS connections; `None` if it has none.
    tls: Option<TlsWorld>,
    policy: Arc<LatePolicy>,
    clients: Vec<Client>,
    metrics: Metrics,
    terms: Terms,
    kind: Kind,
    /// When the server stopped accepting.
    stopped_accepting_ms: Option<u64>,
    /// When the server first asked its clients to leave.
    asked: Option<Moment>,
    drain: Option<Moment>,
    tamper: Option<Tamper>,
    receipts: ReceiptDesk,
    memory: Memory,
    storms: Storms,
    /// The number of bodies made so far.
    bodies: u64,
    /// Per channel, the last offset that the witness received.
    witnessed: Vec<u64>,
    /// Publications of clients.
    spoken: u64,
    /// Publications refused because a worker queue was full.
    busy: u64,
    members: MemberTimes,
    creations: Creations,
}

impl World {
    /// Runs a seed from beginning to end. Also returns whether `tamper` was applied.
    pub(crate) fn play(seed: u64, notes: &Rc<Notes>, tamper: Option<Tamper>) -> (Check, bool) {
        let mut world = World::new(seed, notes, tamper);
        let result = world.live();
        (result, tamper.is_some() && world.tamper.is_none())
    }

    fn live(&mut self) -> Check {
        if self.kind.is_crowd {
            self.gather()?;
        }
        for step in 0..self.kind.steps {
            if self.kind.drains_at == Some(step) {
                self.start_drain()?;
            }
            self.step()?;
            self.end_some_receipt()?;
        }
        self.finale()
    }

    fn now_ms(&self) -> u64 {
        self.stamp.now().now_ms
    }

    /// The time since the beginning, by the workers' clock.
    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms() - BEGINNING_MS)
    }

    fn count(&self, counter: Counter) -> u64 {
        self.metrics.sum(counter)
    }

    /// When the server gives up what it has not delivered: the drain timeout counts from the moment
    /// it stopped accepting, but a drain has at least [`DRAIN_MS_MIN`].
    fn late_ms(&self) -> u64 {
        match (self.stopped_accepting_ms, self.drain) {
            (Some(closed_ms), Some(drain)) => {
                (closed_ms + self.terms.drain_timeout_ms).max(drain.now_ms + DRAIN_MS_MIN)
            }
            _ => u64::MAX,
        }
    }

    /// The state that clients use for their checks.
    fn view(&self) -> View<'_> {
        View {
            model: &self.model,
            notes: &self.notes,
            now: self.stamp.now(),
            terms: &self.terms,
            has_stopped_accepting: self.stopped_accepting_ms.is_some() || self.asked.is_some(),
            asked: self.asked,
            drain: self.drain,
            late_ms: self.late_ms(),
            shortest: self.memory.furthest,
        }
    }

    /// A mutable client, and the state that it uses for its checks.
    fn client(&mut self, number: usize) -> (&mut Client, View<'_>) {
        let view = View {
            model: &self.model,
            notes: &self.notes,
            now: self.stamp.now(),
            terms: &self.terms,
            has_stopped_accepting: self.stopped_accepting_ms.is_some() || self.asked.is_some(),
            asked: self.asked,
            drain: self.drain,
            late_ms: self.late_ms(),
            shortest: self.memory.furthest,
        };
        (&mut self.clients[number], view)
    }

    /// Lets a client read and check what it reads. Returns the number of bytes.
    fn read(&mut self, number: usize, max_bytes: usize) -> Check<usize> {
        let mut tamper = self.tamper.take();
        let (client, view) = self.client(number);
        let result = client.read(max_bytes, &mut tamper, view);
        self.tamper = tamper;
        result.map_err(|objection| {
            let plan = &self.clients[number].plan;
            format!("client {number}, {:?} of {:?}: {objection}", plan.transport, plan.targets)
        })
    }
}

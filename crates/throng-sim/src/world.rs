//! Engine, workers and clients, and the script that the seed writes for them.
//!
//! | module | what it does |
//! |---|---|
//! | `birth` | decides what kind of world it is |
//! | `plans` | what clients ask for, what is published |
//! | `script` | one step after the other, each chosen by chance |
//! | `crowd` | a crowd comes, and changes places in the middle of fan-outs |
//! | `seat` | a worker and its event loop |
//! | `record` | what the engine was asked, into the model |
//! | `rest` | everything is sent, handled and read: is everything there? |
//! | `finale` | the end: all leave, or the server drains |

mod birth;
mod crowd;
mod finale;
mod plans;
mod record;
mod rest;
mod script;
mod seat;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use throng_core::{Counter, WorkerQueue};
use throng_edge::Metrics;
use throng_edge::event_loop::permits::PermitHolder;

use crate::Check;
use crate::client::{Client, Tamper, Terms, View};
use crate::control::Control;
use crate::model::Model;
use crate::notes::Notes;
use crate::random::Random;
use crate::recorder::Recorder;
use crate::stamp::{Moment, Stamp};
use seat::Seat;

/// When every world begins.
const BEGINNING_MS: u64 = 1_700_000_000_000;

/// However late the server is told to end, it has this long for what is under way.
const GOODBYE_MS: u64 = 1000;

/// What kind of world it is.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// So many on one channel that a sweep takes several slices.
    is_crowd: bool,
    /// Clients go before the end only if the server closes them.
    nobody_leaves: bool,
    /// It ends by draining, at this step; otherwise all leave.
    drains_at: Option<usize>,
    steps: usize,
    clients_max: usize,
    /// How often some of a crowd still change places in the middle of a fan-out.
    stirs: usize,
}

/// A server with its clients.
pub struct World {
    random: Random,
    notes: Rc<Notes>,
    stamp: Arc<Stamp>,
    engine: Arc<Recorder>,
    queues: Vec<Arc<WorkerQueue>>,
    model: Model,
    seats: Vec<Seat>,
    /// Competes with the workers for permits to fan out.
    rival: PermitHolder,
    control: Control,
    clients: Vec<Client>,
    metrics: Metrics,
    terms: Terms,
    kind: Kind,
    /// When the server was told to take nobody in any more.
    stopped_accepting_ms: Option<u64>,
    drain: Option<Moment>,
    tamper: Option<Tamper>,
    /// Bodies made so far.
    bodies: u64,
    /// Per channel, the last offset of which the witness has heard.
    witnessed: Vec<u64>,
    /// Publications of clients.
    spoken: u64,
    /// Publications that were refused because a worker had too much notifications.
    busy: u64,
}

impl World {
    /// Plays the whole script of a seed. Returns whether `tamper` was applied.
    pub fn play(seed: u64, notes: &Rc<Notes>, tamper: Option<Tamper>) -> (Check, bool) {
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
        }
        self.finale()
    }

    fn now_ms(&self) -> u64 {
        self.stamp.now().now_ms
    }

    /// The time since the beginning, as the workers' threads see it.
    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms() - BEGINNING_MS)
    }

    fn count(&self, counter: Counter) -> u64 {
        self.metrics.workers().iter().map(|worker| worker.counters.get(counter)).sum()
    }

    /// When the server gives up what it has not delivered: what closing its doors took of the
    /// timeout is gone, but for a moment to say goodbye.
    fn late_ms(&self) -> u64 {
        match (self.stopped_accepting_ms, self.drain) {
            (Some(closed_ms), Some(drain)) => {
                (closed_ms + self.terms.drain_timeout_ms).max(drain.now_ms + GOODBYE_MS)
            }
            _ => u64::MAX,
        }
    }

    /// What clients may look at.
    fn view(&self) -> View<'_> {
        View {
            model: &self.model,
            notes: &self.notes,
            now: self.stamp.now(),
            terms: &self.terms,
            has_stopped_accepting: self.stopped_accepting_ms.is_some(),
            drain: self.drain,
            late_ms: self.late_ms(),
        }
    }

    /// A client, to change, and what it may look at meanwhile.
    fn client(&mut self, number: usize) -> (&mut Client, View<'_>) {
        let view = View {
            model: &self.model,
            notes: &self.notes,
            now: self.stamp.now(),
            terms: &self.terms,
            has_stopped_accepting: self.stopped_accepting_ms.is_some(),
            drain: self.drain,
            late_ms: self.late_ms(),
        };
        (&mut self.clients[number], view)
    }

    /// A client reads and judges what it read. Returns how much that was.
    fn read(&mut self, number: usize, bytes_max: usize) -> Check<usize> {
        let mut tamper = self.tamper.take();
        let (client, view) = self.client(number);
        let result = client.read(bytes_max, &mut tamper, view);
        self.tamper = tamper;
        result.map_err(|objection| {
            let plan = &self.clients[number].plan;
            format!("client {number}, {:?} of {:?}: {objection}", plan.way, plan.targets)
        })
    }
}

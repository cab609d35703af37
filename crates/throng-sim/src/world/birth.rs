//! Decides what kind of world it is.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use throng_core::{
    Access, Allow, Engine, Epoch, Follow, LocalId, Mailbox, MemoryEngine, Start, WorkerId,
};
use throng_edge::worker::{Setup, Worker};
use throng_edge::{Figures, Settings};

use super::seat::Seat;
use super::{BEGINNING_MS, Kind, World};
use crate::client::{MESSAGE_BYTES_MAX, Tamper, Terms};
use crate::control::Control;
use crate::model::Model;
use crate::net::FakeNet;
use crate::notes::Notes;
use crate::random::Random;
use crate::recorder::Recorder;
use crate::stamp::Stamp;
use crate::topics;

/// All logs together may keep this much: more than they ever do.
const LOGS_BYTES_MAX: usize = 1 << 30;

impl World {
    pub(super) fn new(seed: u64, notes: &Rc<Notes>, tamper: Option<Tamper>) -> World {
        let mut random = Random::new(seed);
        let kind = kind(&mut random);
        let workers = if kind.is_crowd { 1 } else { random.between(1, 3) };
        let is_scarce = !kind.is_crowd && random.percent(25);
        let capacity = if is_scarce { random.between(2, 6) } else { 10_000 };
        let terms = terms(&mut random, is_scarce);
        let topics = topics::all(random.percent(60));
        let stamp = Arc::new(Stamp::new(BEGINNING_MS));
        let epoch = Epoch::starting_at(BEGINNING_MS);
        let rules = Arc::new(topics::rules(&topics));
        // One more for the witness.
        let mailboxes: Vec<_> = (0..=workers).map(|_| Arc::new(Mailbox::new(|| {}))).collect();
        let engine =
            MemoryEngine::new(epoch, Arc::clone(&rules), mailboxes.clone(), LOGS_BYTES_MAX);
        let engine = Arc::new(Recorder::new(engine, &stamp));
        let figures = Figures::new((0..workers).map(|_| capacity as u32));
        let settings = Arc::new(settings(&terms));
        let seat = |id: usize| {
            let setup = Setup {
                id: WorkerId(id as u16),
                settings: Arc::clone(&settings),
                engine: Arc::clone(&engine) as Arc<dyn Engine>,
                access: Arc::new(Allow) as Arc<dyn Access>,
                rules: Arc::clone(&rules),
                mailbox: Arc::clone(&mailboxes[id]),
                figures: figures.clone(),
            };
            Seat::new(Worker::new(setup, FakeNet::new(notes)))
        };
        let seats = (0..workers).map(seat).collect();
        let witnessed = vec![0; topics.len()];
        let mut world = World {
            random,
            notes: Rc::clone(notes),
            stamp,
            engine,
            mailboxes,
            model: Model::new(topics, epoch.to_string()),
            seats,
            control: Control::default(),
            clients: Vec::new(),
            figures,
            terms,
            kind,
            are_doors_closed: false,
            drain: None,
            tamper,
            bodies: 0,
            witnessed,
            spoken: 0,
        };
        world.pin();
        world
    }

    /// The worker that stands for the witness.
    pub(super) fn witness(&self) -> WorkerId {
        WorkerId(self.seats.len() as u16)
    }

    fn pin(&mut self) {
        self.stamp.touch(None);
        for (nth, topic) in self.model.topics.iter().enumerate() {
            if topic.is_pinned {
                let follow = Follow {
                    channel: &topic.channel_name(),
                    worker: self.witness(),
                    local_if_new: LocalId(NonZeroU32::MIN.saturating_add(nth as u32)),
                    start: Start::Live,
                };
                self.engine.follow(self.now_ms(), follow);
            }
        }
    }
}

fn kind(random: &mut Random) -> Kind {
    let is_crowd = random.percent(8);
    let steps = if is_crowd { random.between(1000, 2000) } else { random.between(600, 4000) };
    let drains = random.percent(50);
    let drains_at = steps - if random.percent(50) { 0 } else { random.below(steps / 2) };
    Kind {
        is_crowd,
        nobody_leaves: random.percent(20),
        drains_at: drains.then_some(drains_at.min(steps - 1)),
        steps,
        stirs: if is_crowd { 8 } else { 0 },
        clients_max: if is_crowd { random.between(150, 260) } else { random.between(3, 60) },
    }
}

fn terms(random: &mut Random, is_scarce: bool) -> Terms {
    Terms {
        heartbeat_ms: random.pick(&[0, 1000, 5000, 25_000]),
        head_ms: random.pick(&[2000, 10_000]),
        idle_ms: random.pick(&[3000, 75_000]),
        welcome: random.percent(30),
        drain_window_ms: random.pick(&[1000, 10_000]),
        drain_timeout_ms: random.pick(&[1000, 10_000]),
        is_scarce,
    }
}

fn settings(terms: &Terms) -> Settings {
    Settings {
        heartbeat: Duration::from_millis(terms.heartbeat_ms),
        welcome: terms.welcome,
        head_timeout: Duration::from_millis(terms.head_ms),
        idle_timeout: Duration::from_millis(terms.idle_ms),
        drain_window: Duration::from_millis(terms.drain_window_ms),
        drain_timeout: Duration::from_millis(terms.drain_timeout_ms),
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..Settings::default()
    }
}

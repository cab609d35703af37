//! Chooses the kind and the settings of a world.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throng_access::{Access, AccessControl};
use throng_core::{Follow, LocalId, QueueLimits, Reading, Rules, StartAt, WorkerId, WorkerQueue};
use throng_edge::compression::{Compression, CompressionSettings};
use throng_edge::event_loop::permits::{FanOutPermits, PermitHolder};
use throng_edge::event_loop::sleep::Sleep;
use throng_edge::worker::Setup;
use throng_edge::{Limits, Metrics, Settings};

use super::journals;
use super::keeper::Creations;
use super::member_times::MemberTimes;
use super::memory::Memory;
use super::receipt_desk::ReceiptDesk;
use super::seat::Seat;
use super::storms::{self, Storms};
use super::{BEGINNING_MS, Kind, World};
use crate::client::Tamper;
use crate::client::view::{MESSAGE_BYTES_MAX, Terms};
use crate::control::Control;
use crate::fetches::Fetches;
use crate::heard::Heard;
use crate::late::{LatePolicy, Lateness};
use crate::model::Model;
use crate::notes::Notes;
use crate::post::Post;
use crate::random::Random;
use crate::recorder::{Parts, Recorder};
use crate::stamp::Stamp;
use crate::tls_end::TlsWorld;
use crate::topics::{self, Topic};

/// A limit that all logs together never reach.
const LOGS_BYTES_MAX: usize = 1 << 30;

/// The design of a world, chosen at random.
struct Design {
    kind: Kind,
    workers: usize,
    /// The number of subscribers that each worker can hold.
    capacity: usize,
    terms: Terms,
    limits: Limits,
    topics: Vec<Topic>,
}

impl Design {
    fn new(random: &mut Random, seed: u64, memory_varies: bool, storm_rate: Option<u64>) -> Design {
        let kind = kind(random);
        let workers = if kind.is_crowd { 1 } else { random.between(1, 3) };
        let is_scarce = !kind.is_crowd && random.percent(25);
        let capacity = if is_scarce { random.between(2, 6) } else { 10_000 };
        let mut terms = terms(random, is_scarce);
        let limits = limits(random, &terms);
        (terms.memory_varies, terms.storm_rate) = (memory_varies, storm_rate);
        // While memory is short, workers keep a part of it.
        let parts = if memory_varies { 4 * workers } else { workers };
        terms.max_blocked_bytes = limits.max_blocked_bytes / parts;
        let mut topics = topics::all(random.percent(60));
        if terms.max_logs_bytes.is_some() {
            topics::keep_for_an_hour(&mut topics);
        }
        // Queues with less room refuse some messages, and a limit of all logs drops some.
        let are_roomy = terms.queue.max_messages == QueueLimits::default().max_messages
            && terms.max_logs_bytes.is_none();
        if are_roomy && !kind.is_crowd && random.percent(70) {
            topics.extend(topics::changing());
        }
        if are_roomy && !kind.is_crowd && Random::new(seed + 10).percent(60) {
            let logs = topics::members(&mut topics);
            topics.extend(logs);
        }
        Design { kind, workers, capacity, terms, limits, topics }
    }
}

/// The queues of the workers, then the witness's.
struct Queues {
    queues: Vec<Arc<WorkerQueue>>,
    limits: Vec<QueueLimits>,
    /// Set by the wake-ups of each.
    woken: Vec<Arc<AtomicBool>>,
}

impl Queues {
    fn new(workers: usize, limits: QueueLimits) -> Queues {
        // The witness's queue is emptied at once.
        let limits = [vec![limits; workers], vec![QueueLimits::default()]].concat();
        let mut all = Queues { queues: Vec::new(), limits, woken: Vec::new() };
        for &limits in &all.limits {
            let woken = Arc::new(AtomicBool::new(false));
            let is_woken = Arc::clone(&woken);
            let wake = move || is_woken.store(true, Ordering::SeqCst);
            all.queues.push(Arc::new(WorkerQueue::with_limits(limits, wake)));
            all.woken.push(woken);
        }
        all
    }

    fn post(&self) -> Post {
        Post::new(self.queues.iter().cloned().zip(self.limits.iter().copied()))
    }
}

impl World {
    pub(super) fn new(seed: u64, notes: &Rc<Notes>, tamper: Option<Tamper>) -> World {
        let (mut random, (memory, storms)) = (Random::new(seed), memory_and_storms(seed));
        let Design { kind, workers, capacity, mut terms, limits, mut topics } =
            Design::new(&mut random, seed, memory.is_scarce, storms.rate());
        let (stamp, heard) = (Arc::new(Stamp::new(BEGINNING_MS)), Arc::default());
        let queues = Queues::new(workers, terms.queue);
        let permits = Arc::new(FanOutPermits::new(&queues.queues, random.between(1, workers)));
        let permit = |id: usize| PermitHolder::new(Arc::clone(&permits), WorkerId(id as u16));
        journals::assign(&mut topics, &terms, (!random.percent(30), seed));
        let rules = Arc::new(topics::rules(&topics, seed % 2 == 1));
        let parts = parts(&terms, &rules, &queues, &heard);
        let (logs, journals, ids) = journals::open(&parts, &topics, Random::new(seed + 1));
        let recorder = recorder(parts, &stamp, queues.post(), &terms, Random::new(seed + 2));
        let engine = Arc::new(recorder.channels(logs, journals));
        let metrics = Metrics::new((0..workers).map(|_| capacity as u32));
        let (policy, access) = access(&terms, &stamp, Random::new(seed));
        let tls = tls(&mut random, &terms, seed);
        let limits = handshakes(limits, tls.is_some(), &mut terms, workers, Random::new(seed + 7));
        let (settings, compression) = settings(&terms, limits);
        let acceptor = tls.as_ref().map(|tls| tls.acceptor.clone());
        let seat = |id: usize| {
            let (queue, woken) = (&queues.queues[id], &queues.woken[id]);
            let setup = Setup {
                generation: 0,
                id: WorkerId(id as u16),
                settings: Arc::clone(&settings),
                engine: Arc::clone(&engine),
                access: Arc::clone(&access),
                rules: Arc::clone(&rules),
                compression: Arc::clone(&compression),
                events: Some(Arc::clone(&heard) as _),
                queue: Arc::clone(queue),
                pressure: Arc::clone(&memory.pressure),
                metrics: metrics.clone(),
            };
            let sleep = Sleep::new(Arc::clone(queue), permit(id));
            Seat::new(setup, (notes, acceptor.clone()), BEGINNING_MS, sleep, Arc::clone(woken))
        };
        let seats = (0..workers).map(seat).collect();
        World {
            random,
            notes: Rc::clone(notes),
            stamp,
            engine,
            recorder,
            queues: queues.queues,
            witnessed: vec![0; topics.len()],
            model: Model::new(topics, ids, max_logs_bytes(&terms)),
            seats,
            rival: permit(workers),
            control: Control::new(Arc::clone(&access.clients), notes, acceptor.clone()),
            tls,
            policy,
            clients: Vec::new(),
            metrics,
            terms,
            kind,
            stopped_accepting_ms: None,
            asked: None,
            drain: None,
            tamper,
            receipts: ReceiptDesk::new(Random::new(seed + 3)),
            memory,
            storms,
            bodies: 0,
            spoken: 0,
            busy: 0,
            members: MemberTimes::default(),
            creations: Creations::default(),
        }
        .pinned()
    }

    /// The worker id of the witness.
    pub(super) fn witness(&self) -> WorkerId {
        WorkerId(self.seats.len() as u16)
    }

    /// The same world, whose witness follows the pinned channels.
    fn pinned(self) -> World {
        self.stamp.touch(None);
        for (nth, topic) in self.model.topics.iter().enumerate() {
            if topic.is_pinned {
                let channel = topic.channel_name();
                let _held = self.recorder.fetches().hold(&channel, Reading::Start(StartAt::Live));
                let follow = Follow {
                    channel: &channel,
                    worker: self.witness(),
                    local_if_new: LocalId(NonZeroU32::MIN.saturating_add(nth as u32)),
                    start: StartAt::Live,
                };
                self.engine.follow(self.now_ms(), follow);
            }
        }
        self
    }
}

/// The limit of all logs together.
fn max_logs_bytes(terms: &Terms) -> usize {
    terms.max_logs_bytes.unwrap_or(LOGS_BYTES_MAX)
}

/// The parts of the engine.
fn parts(terms: &Terms, rules: &Arc<Rules>, queues: &Queues, heard: &Arc<Heard>) -> Parts {
    Parts {
        rules: Arc::clone(rules),
        queues: queues.queues.clone(),
        max_logs_bytes: max_logs_bytes(terms),
        heard: Arc::clone(heard),
    }
}

fn recorder(
    parts: Parts,
    stamp: &Arc<Stamp>,
    post: Post,
    terms: &Terms,
    random: Random,
) -> Arc<Recorder> {
    let fetches = Fetches::new(terms.lateness.fetch_percent, random);
    Arc::new(Recorder::new(parts, stamp, post, fetches, terms.max_logs_bytes.is_some()))
}

fn memory_and_storms(seed: u64) -> (Memory, Storms) {
    (Memory::new(Random::new(seed + 5)), Storms::new(Random::new(seed + 6)))
}

/// The shared state of TLS connections, if there are any.
fn tls(random: &mut Random, terms: &Terms, seed: u64) -> Option<TlsWorld> {
    let has_tls = match terms.held_bytes_floor {
        None => random.percent(60),
        Some(_) => Random::new(seed + 8).percent(60),
    };
    has_tls.then(|| TlsWorld::new(Random::new(seed + 4)))
}

/// Limits for worlds with TLS: in some there is room for one or two handshakes at a time, or so
/// little for what is buffered that some handshakes are evicted. Each counts as 8 KiB.
fn handshakes(
    limits: Limits,
    has_tls: bool,
    terms: &mut Terms,
    workers: usize,
    mut random: Random,
) -> Limits {
    if !has_tls {
        return limits;
    }
    let max_handshakes = random.pick(&[1, 2, 1000, 1000]);
    terms.has_few_handshakes = max_handshakes < 1000;
    let max_buffered_bytes = match terms.held_bytes_floor {
        None => limits.max_buffered_bytes,
        Some(_) => workers * random.pick(&[3000, 9000, 20_000, 60_000]),
    };
    Limits { max_handshakes, max_buffered_bytes, ..limits }
}

fn kind(random: &mut Random) -> Kind {
    let is_crowd = random.percent(8);
    let steps = if is_crowd { random.between(1000, 2000) } else { random.between(600, 4000) };
    let drains = random.percent(50);
    let drains_at = steps - if random.percent(50) { 0 } else { random.below(steps / 2) };
    Kind {
        is_crowd,
        clients_stay: random.percent(20),
        asks_to_leave: random.percent(15),
        drains_at: drains.then_some(drains_at.min(steps - 1)),
        steps,
        stirs: if is_crowd { 8 } else { 0 },
        max_clients: if is_crowd { random.between(150, 260) } else { random.between(3, 60) },
    }
}

fn terms(random: &mut Random, is_scarce: bool) -> Terms {
    Terms {
        heartbeat_ms: random.pick(&[0, 1000, 5000, 25_000]),
        ping_ms: random.pick(&[0, 1000, 25_000, 120_000]),
        head_ms: random.pick(&[2000, 10_000]),
        idle_ms: random.pick(&[3000, 75_000]),
        welcome: random.percent(30),
        drain_window_ms: random.pick(&[1000, 10_000]),
        drain_timeout_ms: random.pick(&[500, 1000, 10_000]),
        is_scarce,
        lateness: match random.below(3) {
            0 => Lateness {
                percent: random.between(1, 60),
                fetch_percent: random.pick(&[0, 10, 50]),
                brief_percent: random.pick(&[0, 0, 5]),
                secret: random.pick(&[None, Some("closing"), Some("bytes")]),
            },
            1 => Lateness {
                percent: 0,
                fetch_percent: random.pick(&[0, 5, 60]),
                brief_percent: random.pick(&[0, 3]),
                secret: None,
            },
            _ => Lateness { percent: 0, fetch_percent: 0, brief_percent: 0, secret: None },
        },
        message_ms: random.pick(&[2000, 60_000]),
        held_bytes_floor: random.percent(30).then_some(700),
        has_few_handshakes: false,
        max_blocked_bytes: usize::MAX,
        memory_varies: false,
        storm_rate: None,
        queue: if random.percent(25) {
            QueueLimits {
                max_messages: random.between(1, 12),
                max_bytes: random.pick(&[1500, 10_000]),
            }
        } else {
            QueueLimits::default()
        },
        max_logs_bytes: random.percent(25).then(|| random.between(1000, 12_000)),
        reserve: is_scarce.then(|| (random.between(1, 3) as u32, random.below(3) as u32)),
    }
}

/// Limits that cause every kind of overload.
fn limits(random: &mut Random, terms: &Terms) -> Limits {
    let slice_bytes = random.pick(&[40, 1000, 256 << 10]);
    let message_timeout = Duration::from_millis(terms.message_ms);
    let wait_timeout = Duration::from_millis(random.pick(&[1000, 5000]));
    let list_part = random.pick(&[1, 2, 128]);
    let timeouts = Limits { message_timeout, wait_timeout, ..Limits::default() };
    let limits = Limits { slice_bytes, list_part, ..timeouts };
    let Some(held_bytes_floor) = terms.held_bytes_floor else { return limits };
    Limits {
        held_bytes_floor,
        max_buffered_bytes: random.pick(&[700, 3000]),
        max_outbound_bytes: random.pick(&[1500, 8000]),
        max_blocked_bytes: random.pick(&[3000, 30_000]),
        max_pending_bytes: random.pick(&[1000, 10_000]),
        ..limits
    }
}

/// The access rules of the world, and the workers' questions about them.
fn access(
    terms: &Terms,
    stamp: &Arc<Stamp>,
    random: Random,
) -> (Arc<LatePolicy>, Arc<AccessControl>) {
    let policy = LatePolicy::new(terms.lateness, stamp, random);
    let access = AccessControl::open(Arc::clone(&policy) as Arc<dyn Access>);
    (policy, Arc::new(access))
}

/// The settings of the workers, and what compresses for all of them.
fn settings(terms: &Terms, limits: Limits) -> (Arc<Settings>, Arc<Compression>) {
    let settings = Settings {
        refuses_proxies: true,
        heartbeat: Duration::from_millis(terms.heartbeat_ms),
        ping_interval: Duration::from_millis(terms.ping_ms),
        welcome: terms.welcome,
        admission: Arc::new(storms::admission(terms.storm_rate)),
        head_timeout: Duration::from_millis(terms.head_ms),
        idle_timeout: Duration::from_millis(terms.idle_ms),
        drain_window: Duration::from_millis(terms.drain_window_ms),
        drain_timeout: Duration::from_millis(terms.drain_timeout_ms),
        max_message_bytes: MESSAGE_BYTES_MAX,
        compression: CompressionSettings { min_bytes: 60, ..CompressionSettings::default() },
        limits: match terms.reserve {
            Some((max_heads, max_lingering)) => Limits { max_heads, max_lingering, ..limits },
            None => limits,
        },
        ..Settings::for_tests()
    };
    let compression = Arc::new(Compression::new(settings.compression));
    (Arc::new(settings), compression)
}

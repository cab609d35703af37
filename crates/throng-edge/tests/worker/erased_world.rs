//! Random lives of clients of a channel of which messages are erased, and which may end: they stall
//! after any byte, read on, resume, and are frozen and thawed.
//!
//! The oracle reads what has come to a client when a worker has taken the notice, which is before
//! the erasure is answered. It objects if an erased message comes later, unless it had begun; if
//! another one is missing, comes twice or out of order; if there is a gap; or if a client is not
//! told of the end behind all messages, once. A seed that fails is
//! printed; `THRONG_SEED=` runs it alone, and `THRONG_SEEDS=` runs as many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use throng_access::{AccessControl, AllowAll};
use throng_core::{
    Body, ChannelName, Erase, Erasure, LogChange, MessageId, Publication, PublishError, Retention,
    Rule, Rules,
};
use throng_edge::Settings;

use crate::rig::{Client, Rig};
use crate::token_world::random::Random;

const SEEDS: u64 = 100;
const STEPS: usize = 120;
const CLIENTS: usize = 5;
/// Messages that the log keeps, and that a client may lag behind: there are never more, but for
/// those that are erased, and notices.
const KEPT: usize = 40;

/// Events that some seed must have come across.
const INTERESTING: [&str; 9] = [
    "more entries than messages may be",
    "erased before it came",
    "erased after it came",
    "half written",
    "a range",
    "resumed",
    "ended early",
    "came after the end",
    "slow at the end",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Lines,
    Events,
    Envelopes,
}

/// A client on one connection.
struct Reader {
    client: Client,
    transport: Transport,
    text: String,
    /// The offset after which its connection begins.
    from: u64,
    /// Where the text of its connection was when each message was erased.
    erased_at: BTreeMap<u64, usize>,
}

struct World {
    rig: Rig,
    random: Random,
    readers: Vec<Reader>,
    /// For each offset from 1, the body; `None` for a notice.
    bodies: Vec<Option<String>>,
    erased: BTreeMap<u64, ()>,
    has_ended: bool,
    seen: BTreeMap<&'static str, u64>,
}

impl Reader {
    fn read(&mut self) {
        self.text.push_str(&self.client.received());
    }

    /// Where the frame of a body begins in what has come; `None` if it has not come.
    fn find(&self, body: &str) -> Option<usize> {
        let at = self.text.find(body)?;
        let end = if self.transport == Transport::Events { "\n\n" } else { "\n" };
        Some(self.text[..at].rfind(end).map_or(0, |before| before + end.len()))
    }
}

impl World {
    fn new(seed: u64) -> World {
        let (heartbeat, welcome) = (Duration::ZERO, false);
        let settings = Settings { heartbeat, welcome, ..Settings::for_tests() };
        let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
        // Nothing may be dropped, so that no client has a gap.
        let retention = Retention { max_messages: KEPT, ..Rule::default().retention };
        let rule = Rule { retention, max_lag_messages: KEPT, ..Rule::default() };
        let rules = Rules::new(Vec::new(), rule);
        let mut world = World {
            rig: Rig::with_rules(settings, access, rules),
            random: Random(seed),
            readers: Vec::new(),
            bodies: Vec::new(),
            erased: BTreeMap::new(),
            has_ended: false,
            seen: BTreeMap::new(),
        };
        (0..CLIENTS).for_each(|_| world.connect(0));
        world
    }

    fn head(&self) -> u64 {
        self.bodies.len() as u64
    }

    /// The messages that are not erased.
    fn live(&self) -> usize {
        let offsets = 1..=self.head();
        let is_erased = |offset: &u64| self.erased.contains_key(offset);
        let bodies = self.bodies.iter().zip(offsets);
        bodies.filter(|(body, offset)| body.is_some() && !is_erased(offset)).count()
    }

    fn connect(&mut self, from: u64) {
        let kinds = [
            (Transport::Lines, ""),
            (Transport::Events, "transport=sse&"),
            (Transport::Envelopes, "envelope=true&"),
        ];
        let (transport, query) = kinds[self.random.below(kinds.len())];
        let target = format!("/channels/a?{query}since=z-{from}");
        let head = format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let client = self.rig.connect(&head);
        let erased_at = self.erased.keys().map(|offset| (*offset, 0)).collect();
        let mut reader = Reader { client, transport, text: String::new(), from, erased_at };
        reader.read();
        let response = reader.text.find("\r\n\r\n").expect("a response") + 4;
        if reader.text.starts_with("HTTP/1.1 204") {
            assert!(self.has_ended && reader.text.contains("Throng-Ended: true"));
            self.saw("came after the end");
        }
        assert!(reader.text[..response].contains("Throng-Recovered: true"), "{}", reader.text);
        reader.text.drain(..response);
        self.readers.push(reader);
    }

    fn step(&mut self) {
        let at = self.random.below(CLIENTS);
        match self.random.below(12) {
            0..=3 => self.publish(),
            4 | 5 => {
                let bytes = self.random.below(60);
                self.rig.read_some(&self.readers[at].client, bytes);
            }
            6 => self.rig.read_again(&self.readers[at].client),
            7 | 8 => self.erase(),
            9 => {
                self.rig.worker.work(true);
            }
            10 if self.random.below(3) == 0 => self.resume(at),
            10 if self.random.below(12) == 0 && !self.has_ended => {
                self.end();
                self.saw("ended early");
            }
            11 if self.random.below(4) == 0 => self.rig.replace_process(),
            _ => self.rig.work(),
        }
    }

    fn publish(&mut self) {
        let name = ChannelName::channel("a");
        if self.has_ended {
            let late = Publication::new(name, Body::Text("late".into()));
            let refused = self.rig.engine.publish(self.rig.now_ms(), late);
            assert_eq!(refused, Err(PublishError::Ended));
            return;
        }
        for _ in 0..=self.random.below(3) {
            // With room for the last one of all.
            if self.live() + 1 >= KEPT {
                return;
            }
            let offset = self.head() + 1;
            let body = format!("<{offset}>{}", "x".repeat(self.random.below(30)));
            self.rig.publish("a", &body, None);
            self.bodies.push(Some(body));
        }
    }

    /// Ends the channel with a last message.
    fn end(&mut self) {
        let (name, now_ms) = (ChannelName::channel("a"), self.rig.now_ms());
        let body = format!("<{}>last", self.head() + 1);
        let last = Publication::new(name.clone(), Body::Text(body.as_str().into()));
        let change = LogChange::end(name.clone(), Some(last), &self.rig.engine.state(&name));
        self.rig.engine.change(now_ms, change).expect("there is room");
        self.bodies.extend([Some(body), None]);
        self.has_ended = true;
        self.rig.work();
        if self.readers.iter().any(|reader| !reader.client.is_finished()) {
            self.saw("slow at the end");
        }
    }

    fn erase(&mut self) {
        let head = self.head();
        let blanks = head as usize - self.live();
        if head == 0 || blanks + 5 > 3 * KEPT {
            return;
        }
        if head as usize > KEPT {
            self.saw("more entries than messages may be");
        }
        let last = head - self.random.below(head.min(8) as usize) as u64;
        let first = if self.random.below(4) == 0 { last.saturating_sub(3).max(1) } else { last };
        if first < last {
            self.saw("a range");
        }
        let (name, now_ms) = (ChannelName::channel("a"), self.rig.now_ms());
        let notice = LogChange::notice(name.clone(), Erasure { first, last });
        let told = self.rig.engine.change(now_ms, notice).expect("there is room");
        self.bodies.push(None);
        for offset in first..=last {
            let id = MessageId { offset, ..told.ids[0] };
            self.rig.engine.erase(now_ms, &name, Erase::Message(id));
            self.erased.insert(offset, ());
        }
        // The answer waits until the workers have taken the notice.
        while !self.rig.queue.is_empty() {
            self.rig.worker.work(true);
        }
        self.rig.worker.check_invariants();
        for reader in &mut self.readers {
            reader.read();
            for offset in first..=last {
                reader.erased_at.entry(offset).or_insert(reader.text.len());
            }
        }
    }

    /// A client comes back on another connection, behind the last message that it has whole.
    fn resume(&mut self, at: usize) {
        let mut reader = self.readers.swap_remove(at);
        reader.read();
        self.check(&reader);
        if !reader.client.is_closed() {
            self.rig.hang_up(&reader.client);
        }
        let whole = reader.text.rfind('\n').map_or("", |end| &reader.text[..end]);
        let has = |offset: &u64| {
            let body = self.bodies[*offset as usize - 1].as_ref();
            body.is_some_and(|body| whole.contains(body.as_str()))
        };
        let from = (reader.from + 1..=self.head()).rev().find(has).unwrap_or(reader.from);
        self.saw("resumed");
        self.connect(from);
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Checks everything that has come to a client.
    fn check(&mut self, reader: &Reader) {
        assert!(!reader.text.contains("gap"), "{}", reader.text);
        let mut last = 0;
        for offset in reader.from + 1..=self.head() {
            let Some(body) = self.bodies[offset as usize - 1].clone() else { continue };
            assert!(reader.text.matches(&*body).count() <= 1, "{body} twice in {}", reader.text);
            let erased_at = reader.erased_at.get(&offset).copied();
            let Some(begin) = reader.find(&body) else {
                if erased_at.is_some() {
                    self.saw("erased before it came");
                }
                continue;
            };
            assert!(begin >= last, "{body} is out of order in {}", reader.text);
            last = begin;
            let Some(erased_at) = erased_at else { continue };
            assert!(begin < erased_at, "{body} has come although it was erased: {}", reader.text);
            let end = begin + reader.text[begin..].find(&*body).unwrap_or(0) + body.len();
            self.saw(if end > erased_at { "half written" } else { "erased after it came" });
        }
    }

    /// All read on, and have what is left.
    fn finish(&mut self) {
        if !self.has_ended && self.random.below(2) == 0 {
            self.end();
        }
        for at in 0..CLIENTS {
            self.rig.read_again(&self.readers[at].client);
        }
        self.rig.work();
        for mut reader in std::mem::take(&mut self.readers) {
            reader.read();
            self.check(&reader);
            assert_eq!(reader.client.is_finished(), self.has_ended, "{}", reader.text);
            let is_told = reader.transport == Transport::Events && !reader.text.is_empty();
            let told = reader.text.matches("event: ended").count();
            assert_eq!(told, usize::from(is_told && self.has_ended), "{}", reader.text);
            for offset in reader.from + 1..=self.head() {
                let body = self.bodies[offset as usize - 1].clone();
                let is_erased = self.erased.contains_key(&offset);
                let Some(body) = body.filter(|_| !is_erased) else { continue };
                assert!(reader.find(&body).is_some(), "{body} is missing in {}", reader.text);
            }
        }
        self.rig.worker.check_invariants();
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn an_erased_message_comes_to_nobody_unless_it_had_begun() {
    let seeds = match number("THRONG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("THRONG_SEEDS").unwrap_or(SEEDS),
    };
    let is_all = seeds.end - seeds.start >= SEEDS;
    let mut seen = BTreeMap::new();
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.finish();
            world.seen
        });
        let ended = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            eprintln!("replay: THRONG_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        ended.into_iter().for_each(|(what, times)| *seen.entry(what).or_insert(0) += times);
    }
    if is_all {
        for what in INTERESTING {
            assert!(seen.contains_key(what), "never: {what}, of {seen:?}");
        }
    }
}

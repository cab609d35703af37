//! The state of a channel in a world from a seed: keys are set, removed, erased and expire, while
//! clients come with the state or resume, stall, read a little, and move to another process.
//!
//! Each client keeps the state as it is told, and is compared with the log whenever it has read
//! all: the same keys with the same values, and no message before an earlier one. The seed of a
//! world that fails is printed; `THRONG_SEED=` runs it alone, and `THRONG_SEEDS=` runs as many.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use throng_access::{AccessControl, AllowAll};
use throng_core::{
    ChannelName, Erase, Erasure, KeyQuery, LogChange, MessageId, Retention, Rule, Rules,
};
use throng_edge::Settings;

use crate::rig::{Client, Rig};
use crate::token_world::random::Random;

const SEEDS: usize = 200;
const STEPS: usize = 120;
const PEERS_MAX: usize = 14;
const CHANNEL: &str = "prices";
const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// How a client gets its messages.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// In lines of a stream.
    Lines,
    /// In frames of `throng.v1`.
    Frames,
    /// In frames with several of its compact envelopes.
    Joined,
}

/// A client that follows the channel.
struct Peer {
    client: Client,
    form: Form,
    is_stalled: bool,
    received: Vec<u8>,
    /// The id and value of each key, as it is told.
    state: BTreeMap<String, (u64, String)>,
    /// The offset of the last message that it has got.
    last: u64,
    awaits_state: bool,
    /// The offset of the last message before it began.
    begun: u64,
}

/// What a client is told at once.
enum Told {
    Message { offset: u64, key: Option<String>, value: Option<String> },
    StateEnd(u64),
    Skipped(u64),
    Erased(u64),
}

fn offset_of(id: &Value) -> u64 {
    let id = id.as_str().expect("an id");
    id.rsplit_once('-').and_then(|(_, offset)| offset.parse().ok()).expect("an offset")
}

fn told_in_line(line: &Value) -> Option<Told> {
    Some(match line["type"].as_str().expect("a type") {
        "message" => Told::Message {
            offset: offset_of(&line["id"]),
            key: line["state_key"].as_str().map(str::to_owned),
            value: (line["tombstone"] != true).then(|| line["data"].to_string()),
        },
        "state" => Told::StateEnd(offset_of(&line["id"])),
        "conflated" => Told::Skipped(line["count"].as_u64().expect("offsets are consecutive")),
        "erased" => Told::Erased(offset_of(&line["erased"])),
        _ => return None,
    })
}

fn told_in_array(message: &Value) -> Told {
    let facts = message.as_array().and_then(|it| it.get(3)).unwrap_or(&Value::Null);
    if message[1].as_i64().is_some_and(|count| count < 0) {
        return Told::Skipped(message[1].as_i64().unwrap().unsigned_abs());
    }
    if facts["erased"].is_string() {
        return Told::Erased(offset_of(&facts["erased"]));
    }
    Told::Message {
        offset: message[1].as_u64().expect("an offset"),
        key: facts["state_key"].as_str().map(str::to_owned),
        value: (facts["tombstone"] != true).then(|| message[2].to_string()),
    }
}

impl Peer {
    /// The JSON texts that have come whole.
    fn texts(&mut self) -> Vec<Value> {
        self.received.extend(self.client.received_bytes());
        let mut texts = Vec::new();
        while let Some((text, behind)) = self.next_text() {
            if let Ok(text) = serde_json::from_slice(&self.received[text]) {
                texts.push(text);
            }
            self.received.drain(..behind);
        }
        texts
    }

    /// The place of the next text, and of what comes behind it: a line, or the payload of a frame
    /// (RFC 6455 section 5.2), which is never 64 KiB long.
    fn next_text(&self) -> Option<(Range<usize>, usize)> {
        let bytes = &self.received;
        if self.form == Form::Lines {
            let end = bytes.iter().position(|byte| *byte == b'\n')?;
            return Some((0..end, end + 1));
        }
        let (begin, length) = match *bytes.get(1)? {
            126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
            length => (2, usize::from(length)),
        };
        let end = begin + length;
        (bytes.len() >= end).then_some((begin..end, end))
    }

    fn read(&mut self, seen: &mut BTreeSet<&'static str>) {
        for text in self.texts() {
            match &text {
                Value::Array(frame) if self.form == Form::Joined => {
                    for message in &frame[1..] {
                        self.take(told_in_array(message), seen);
                    }
                }
                Value::Object(_) => {
                    if let Some(told) = told_in_line(&text) {
                        self.take(told, seen);
                    }
                }
                _ => panic!("{text}"),
            }
        }
    }

    fn take(&mut self, told: Told, seen: &mut BTreeSet<&'static str>) {
        match told {
            Told::Message { offset, key, value } => {
                assert!(offset > self.last, "{offset} after {}", self.last);
                self.last = offset;
                if self.awaits_state {
                    assert!(key.is_some(), "{offset} is no part of a state");
                    assert!(offset <= self.begun, "{offset} before the end of the state");
                }
                match (key, value) {
                    (Some(key), Some(value)) => drop(self.state.insert(key, (offset, value))),
                    (Some(key), None) => {
                        self.state.remove(&key);
                        seen.insert("tombstone");
                    }
                    (None, _) => drop(seen.insert("without a key")),
                }
            }
            Told::StateEnd(end) => {
                assert!(self.awaits_state, "it has its state");
                assert!(self.last <= end && end == self.begun, "{end}");
                self.awaits_state = false;
                seen.insert("state");
            }
            Told::Skipped(count) => {
                assert!(count > 0);
                seen.insert("skipped");
            }
            Told::Erased(offset) => {
                self.state.retain(|_, (of, _)| *of != offset);
                seen.insert("erased");
            }
        }
    }
}

struct World {
    rig: Rig,
    random: Random,
    peers: Vec<Peer>,
    seen: BTreeSet<&'static str>,
    number: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let retention = Retention { max_messages: random.below(8), ..Rule::default().retention };
        let rule = Rule { retention, max_lag_messages: 5, ..Rule::default() };
        let settings = Settings {
            welcome: false,
            heartbeat: Duration::ZERO,
            ping_interval: Duration::ZERO,
            ..Settings::for_tests()
        };
        let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
        let rig = Rig::with_rules(settings, access, Rules::new(Vec::new(), rule));
        let seen = BTreeSet::new();
        World { rig, random, peers: Vec::new(), seen, number: 0 }
    }

    fn channel() -> ChannelName {
        ChannelName::channel(CHANNEL)
    }

    fn values(&self) -> BTreeMap<String, (u64, String)> {
        let query = KeyQuery { limit: 99, ..KeyQuery::default() };
        let page = self.rig.engine.keys(self.rig.now_ms(), &World::channel(), &query);
        let value = |message: &Arc<throng_core::Message>| {
            let text = String::from_utf8_lossy(message.body.bytes()).into_owned();
            let key = message.key().expect("each has one").to_owned();
            (key, (message.id.offset, Value::from(text).to_string()))
        };
        page.messages.iter().map(value).collect()
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..40 => self.publish(),
            40..50 => self.connect(),
            50..55 => self.resume(),
            55..58 => self.hang_up(),
            58..72 => self.stall_or_read(),
            72..77 => self.erase(),
            77..82 => {
                let ticks = 1 + self.random.below(20) as u32;
                for _ in 0..ticks {
                    self.rig.pass(1);
                    self.rig.engine.tick(self.rig.now_ms());
                }
            }
            82..85 => {
                self.rig.work();
                self.rig.replace_process();
                self.seen.insert("moved");
            }
            _ => self.rig.work(),
        }
        self.read_all();
    }

    fn publish(&mut self) {
        let key = KEYS[self.random.below(KEYS.len())];
        for _ in 0..=self.random.below(4) * self.random.below(4) {
            self.number += 1;
            let text = self.number.to_string();
            match self.random.below(10) {
                0 if self.values().contains_key(key) => self.rig.remove_key(CHANNEL, key),
                1 => self.rig.publish(CHANNEL, &text, None),
                2 => {
                    let expires_in_ms = 1 + self.random.below(2_000) as u64;
                    self.rig.set_brief_key(CHANNEL, key, &text, expires_in_ms);
                }
                _ => self.rig.set_key(CHANNEL, key, &text),
            }
        }
    }

    fn erase(&mut self) {
        let values: Vec<_> = self.values().into_values().collect();
        if values.is_empty() {
            return;
        }
        let (offset, _) = values[self.random.below(values.len())];
        let channel = World::channel();
        let epoch = self.rig.engine.state(&channel).head.epoch;
        let erasure = Erasure { first: offset, last: offset };
        let notice = LogChange::notice(channel.clone(), erasure);
        self.rig.engine.change(self.rig.now_ms(), notice).expect("the queue has room");
        let id = MessageId { epoch, offset };
        self.rig.engine.erase(self.rig.now_ms(), &channel, Erase::Message(id));
    }

    /// Some clients come at the same time, of which many stall at once: these share what they catch
    /// up with.
    fn connect(&mut self) {
        let form = self.form();
        let room = PEERS_MAX.saturating_sub(self.peers.len());
        for _ in 0..(1 + self.random.below(3) * self.random.below(4)).min(room) {
            let form = if self.random.percent(20) { self.form() } else { form };
            self.begin(form, None, BTreeMap::new());
        }
    }

    fn form(&mut self) -> Form {
        [Form::Lines, Form::Frames, Form::Joined][self.random.below(3)]
    }

    /// A client loses its connection, and resumes with a new one from the last that it has got.
    fn resume(&mut self) {
        let whole = |peer: &Peer| !peer.awaits_state && peer.last > 0;
        let fit: Vec<_> = (0..self.peers.len()).filter(|&at| whole(&self.peers[at])).collect();
        if fit.is_empty() {
            return;
        }
        let peer = self.peers.swap_remove(fit[self.random.below(fit.len())]);
        self.rig.hang_up(&peer.client);
        let form = self.form();
        self.begin(form, Some(peer.last), peer.state);
    }

    fn begin(&mut self, form: Form, since: Option<u64>, state: BTreeMap<String, (u64, String)>) {
        // What is on its way is got like what comes later.
        self.rig.work();
        let head = self.rig.engine.state(&World::channel()).head;
        let mut query = "state=true".to_owned();
        if let Some(since) = since {
            query += &format!("&since={}", MessageId { offset: since, ..head });
        }
        if form == Form::Joined {
            query += "&envelope=compact";
        }
        let request = if form != Form::Lines {
            format!(
                "GET /channels/{CHANNEL}?{query} HTTP/1.1\r\nHost: localhost\r\n\
                 Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                 Sec-WebSocket-Protocol: throng.v1\r\n\r\n"
            )
        } else {
            format!("GET /channels/{CHANNEL}?{query} HTTP/1.0\r\nHost: localhost\r\n\r\n")
        };
        let is_stalled = self.random.percent(60);
        let client = if is_stalled {
            self.rig.connect_stalled(&request, self.random.below(900))
        } else {
            self.rig.connect(&request)
        };
        let mut bytes = client.received_bytes();
        while !bytes.windows(4).any(|it| it == b"\r\n\r\n") {
            self.rig.read_some(&client, 50);
            bytes.extend(client.received_bytes());
        }
        let response = String::from_utf8_lossy(&bytes);
        let recovered = response.contains("Throng-Recovered: true");
        assert!(response.contains(" 101 ") || response.contains(" 200 "), "{response}");
        if since.is_some() {
            self.seen.insert(if recovered { "recovered" } else { "not recovered" });
        }
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
        let body = bytes[end + 4..].to_vec();
        self.peers.push(Peer {
            client,
            form,
            is_stalled,
            received: body,
            state: if recovered { state } else { BTreeMap::new() },
            last: if recovered { since.unwrap_or(0) } else { 0 },
            awaits_state: !recovered,
            begun: head.offset,
        });
    }

    fn hang_up(&mut self) {
        if !self.peers.is_empty() {
            let at = self.random.below(self.peers.len());
            let peer = self.peers.swap_remove(at);
            self.rig.hang_up(&peer.client);
        }
    }

    fn stall_or_read(&mut self) {
        if self.peers.is_empty() {
            return;
        }
        let at = self.random.below(self.peers.len());
        let (room, is_little) = (self.random.below(300), self.random.percent(30));
        let peer = &mut self.peers[at];
        if !peer.is_stalled {
            peer.client.stall_after(room);
            peer.is_stalled = true;
        } else if is_little {
            self.rig.read_some(&peer.client, room);
            self.seen.insert("read a little");
        } else {
            self.rig.read_again(&peer.client);
            peer.is_stalled = false;
        }
    }

    fn read_all(&mut self) {
        for peer in &mut self.peers {
            peer.read(&mut self.seen);
            assert!(!peer.client.is_closed(), "a slow client is not closed for its keys");
        }
    }

    /// Everybody reads all, and has the state of the log.
    fn settle(&mut self) {
        for at in 0..self.peers.len() {
            self.rig.read_again(&self.peers[at].client);
            self.peers[at].is_stalled = false;
        }
        for _ in 0..3 {
            self.rig.pass(1);
            self.rig.engine.tick(self.rig.now_ms());
            self.rig.work();
        }
        let expected = self.values();
        // A connection that has just had a frame waits for the end of an interval.
        self.rig.pass(1);
        self.rig.work();
        self.read_all();
        for peer in &self.peers {
            assert!(!peer.awaits_state, "the end of its state is missing");
            assert_eq!(peer.state, expected, "the last message was {}", peer.last);
        }
    }
}

fn run(seed: u64, seen: &mut BTreeSet<&'static str>) {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        world.step();
        if step % 40 == 39 {
            world.settle();
        }
    }
    seen.append(&mut world.seen);
}

#[test]
fn everybody_has_the_state_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("THRONG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("THRONG_SEEDS").unwrap_or(SEEDS),
    };
    let (is_one, mut seen) = (seeds.len() < SEEDS, BTreeSet::new());
    for seed in seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut own = BTreeSet::new();
            run(seed as u64, &mut own);
            own
        }));
        match result {
            Ok(mut own) => seen.append(&mut own),
            Err(panic) => {
                eprintln!("THRONG_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let all = [
        "erased",
        "moved",
        "not recovered",
        "read a little",
        "recovered",
        "skipped",
        "state",
        "tombstone",
        "without a key",
    ];
    assert!(is_one || all.iter().all(|it| seen.contains(it)), "only {seen:?}");
}

//! Random steps on a journal that answers late, out of order between channels, with failures, or
//! never: clients publish on `throng.v1` and on a plain WebSocket, leave, wait too long, and are
//! frozen and thawed meanwhile.
//!
//! The oracle is the journal. It objects if a client's publications reach it in another order than
//! they were sent; if a command is answered out of order, twice, never, or other than the journal
//! did; and if a follower does not get each accepted message once, in order, whatever became of its
//! publisher. A seed that fails is printed; `THRONG_SEED=` runs it alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};
use throng_access::{AccessControl, AllowAll};
use throng_core::conformance::{Fate, Lateness, TestJournal};
use throng_core::{ChannelName, Channels, Outcome, PublishError, Rules};
use throng_edge::Settings;

use crate::rig::{Client, Rig};
use crate::token_world::random::Random;

const SEEDS: u64 = 60;
const STEPS: usize = 200;
const CHANNELS: [&str; 3] = ["a", "b", "c"];
const PUBLISHERS: usize = 3;

/// Events that every run of all seeds must have come across.
const INTERESTING: [&str; 8] = [
    "published",
    "busy",
    "unavailable",
    "outcome_unknown",
    "left while it waited",
    "timed out",
    "plain: published",
    "plain: closed",
];

/// A client of `throng.v1` that publishes.
struct Publisher {
    client: Client,
    /// Bytes that are not a whole frame yet.
    unread: Vec<u8>,
    /// The bodies of its commands, by reference.
    sent: Vec<String>,
    /// How many of them have come to the journal.
    submitted: usize,
    /// How many of them are answered.
    answered: usize,
    is_gone: bool,
}

struct World {
    rig: Rig,
    journal: Arc<TestJournal>,
    random: Random,
    publishers: Vec<Publisher>,
    plain: Client,
    plain_sent: usize,
    follower: Client,
    followed: Vec<u8>,
    /// The outcome of each settled message, by its text.
    outcomes: HashMap<String, (Fate, Outcome)>,
    /// The texts that were accepted, in order, by channel.
    accepted: BTreeMap<String, Vec<String>>,
    seen: BTreeSet<&'static str>,
}

/// The texts of the whole frames, which are taken out of `bytes`.
fn take_frames(bytes: &mut Vec<u8>) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let (head, length) = match bytes.as_slice() {
            [0x81, 126, high, low, ..] => (4, usize::from(u16::from_be_bytes([*high, *low]))),
            [0x81, length, ..] if *length < 126 => (2, usize::from(*length)),
            _ => return texts,
        };
        if bytes.len() < head + length {
            return texts;
        }
        let frame: Vec<u8> = bytes.drain(..head + length).collect();
        texts.push(String::from_utf8(frame[head..].to_vec()).expect("a text frame"));
    }
}

/// Skips the response head, and the greeting of `throng.v1` if it is there.
fn after_head(client: &Client) -> Vec<u8> {
    let bytes = client.received_bytes();
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    bytes[end + 4..].to_vec()
}

impl World {
    fn new(seed: u64) -> World {
        let mut journal = None;
        let control = Arc::new(AccessControl::open(Arc::new(AllowAll)));
        let rules = Rules::default().with_journal();
        let mut rig = Rig::with_engine(Settings::for_tests(), (control, rules), |memory| {
            let lateness = Lateness { of_publications: true, ..Lateness::default() };
            let late = TestJournal::new(Arc::clone(&memory), usize::MAX).with_lateness(lateness);
            let late = Arc::new(late);
            journal = Some(Arc::clone(&late));
            Channels::new(memory, vec![late])
        });
        let follower = rig.v1();
        let publishers: Vec<_> = (0..PUBLISHERS).map(|_| rig.v1()).collect();
        let plain = rig.connect(
            "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        );
        rig.work();
        for channel in CHANNELS {
            let command = json!({"type": "subscribe", "channel": channel}).to_string();
            rig.send_frame(&follower, &command);
        }
        rig.work();
        let publishers = publishers.into_iter().map(|client| Publisher {
            unread: after_head(&client),
            client,
            sent: Vec::new(),
            submitted: 0,
            answered: 0,
            is_gone: false,
        });
        World {
            publishers: publishers.collect(),
            followed: after_head(&follower),
            rig,
            journal: journal.expect("it wraps the engine"),
            random: Random(seed),
            plain,
            plain_sent: 0,
            follower,
            outcomes: HashMap::new(),
            accepted: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..35 => self.publish(),
            35..42 => self.publish_plain(),
            42..80 => self.settle(),
            80..84 => self.rig.pass(60),
            84..92 => self.rig.pass(3),
            92..94 => self.leave(),
            94..96 => self.rig.replace_process(),
            _ => self.rig.work(),
        }
        self.rig.worker.check_invariants();
        self.check_submitted();
        self.read();
    }

    fn publish(&mut self) {
        let at = self.random.below(PUBLISHERS);
        let channel = CHANNELS[self.random.below(CHANNELS.len())];
        let publisher = &mut self.publishers[at];
        if publisher.is_gone {
            return;
        }
        let reference = publisher.sent.len();
        let text = format!("{at}.{reference}");
        let command =
            json!({"type": "publish", "channel": channel, "data": text, "ref": reference});
        publisher.sent.push(text);
        self.rig.send_frame(&publisher.client, &command.to_string());
        if self.random.percent(70) {
            self.rig.work();
        }
    }

    fn publish_plain(&mut self) {
        if self.plain.is_closed() {
            return;
        }
        let text = format!("plain.{}", self.plain_sent);
        self.plain_sent += 1;
        self.rig.send_frame(&self.plain, &text);
        self.rig.work();
    }

    /// The journal settles the oldest publication of any channel.
    fn settle(&mut self) {
        let channel = ChannelName::channel(CHANNELS[self.random.below(CHANNELS.len())]);
        let fate = match self.random.below(20) {
            0 => Fate::Refused(PublishError::Away),
            1 => Fate::Refused(PublishError::Busy),
            2 => Fate::PublishedInSilence,
            _ => Fate::Published,
        };
        self.settle_as(&channel, fate);
        self.rig.work();
    }

    fn settle_as(&mut self, channel: &ChannelName, fate: Fate) {
        let open = self.journal.open();
        let Some(next) = open.iter().find(|open| open.channel == *channel) else { return };
        let text = text_of(next);
        let outcome = self.journal.settle(channel, fate).expect("it is open");
        if outcome.is_ok() {
            let accepted = self.accepted.entry(channel.name().to_owned()).or_default();
            accepted.push(text.clone());
            if text.starts_with("plain") {
                self.seen.insert("plain: published");
            }
        }
        let before = self.outcomes.insert(text, (fate, outcome));
        assert!(before.is_none(), "a message came to the journal twice");
    }

    fn leave(&mut self) {
        let at = self.random.below(PUBLISHERS);
        // One stays.
        if at == 0 || self.publishers[at].is_gone || !self.random.percent(20) {
            return;
        }
        if self.publishers[at].answered < self.publishers[at].submitted {
            self.seen.insert("left while it waited");
        }
        self.publishers[at].is_gone = true;
        self.rig.hang_up(&self.publishers[at].client);
        self.rig.work();
    }

    /// All publications of a client come to the journal, one after the other.
    fn check_submitted(&mut self) {
        let open: Vec<String> = self.journal.open().iter().map(text_of).collect();
        for publisher in &mut self.publishers {
            let Publisher { sent, submitted, .. } = publisher;
            while let Some(next) = sent.get(*submitted)
                && (self.outcomes.contains_key(next) || open.contains(next))
            {
                *submitted += 1;
            }
            let mut others = sent[*submitted..].iter();
            let ahead =
                others.find(|text| open.contains(text) || self.outcomes.contains_key(*text));
            assert!(ahead.is_none(), "{ahead:?} came before {:?}", sent.get(*submitted));
        }
    }

    fn read(&mut self) {
        self.followed.extend(self.follower.received_bytes());
        for publisher in self.publishers.iter_mut().filter(|publisher| !publisher.is_gone) {
            publisher.unread.extend(publisher.client.received_bytes());
            for frame in take_frames(&mut publisher.unread) {
                let answer: Value = serde_json::from_str(&frame).expect("JSON");
                if answer["type"] == "welcome" || answer["type"] == "heartbeat" {
                    continue;
                }
                assert_eq!(answer["ref"], publisher.answered, "out of order: {answer}");
                let text = &publisher.sent[publisher.answered];
                publisher.answered += 1;
                self.seen.insert(check_answer(&answer, self.outcomes.get(text)));
            }
        }
        if self.plain.is_closed() {
            self.seen.insert("plain: closed");
        }
    }

    /// Settles everything, and checks that nothing is lost.
    fn end(&mut self) {
        for _ in 0..1000 {
            self.rig.work();
            let Some(next) = self.journal.open().pop() else { break };
            self.settle_as(&next.channel, Fate::Published);
        }
        self.rig.pass(10);
        self.check_submitted();
        self.read();
        for publisher in self.publishers.iter().filter(|publisher| !publisher.is_gone) {
            assert_eq!(publisher.answered, publisher.sent.len(), "some are not answered");
            assert_eq!(publisher.submitted, publisher.sent.len(), "some did not come");
        }
        let mut received: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for frame in take_frames(&mut self.followed) {
            let message: Value = serde_json::from_str(&frame).expect("JSON");
            if let (Some(channel), Some(text)) =
                (message["channel"].as_str(), message["data"].as_str())
            {
                received.entry(channel.to_owned()).or_default().push(text.to_owned());
            }
        }
        assert_eq!(received, self.accepted);
        if self.rig.count(throng_edge::Counter::WaitsTimedOut) > 0 {
            self.seen.insert("timed out");
        }
    }
}

fn text_of(publication: &throng_core::Publication) -> String {
    let bytes = publication.body.bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("the tests publish text");
    // A body of `throng.v1` may be the JSON of a text.
    text.trim_matches('"').to_owned()
}

/// Compares an answer with what the journal has said. An answer that it has not sent, or that came
/// too late, is unknown.
fn check_answer(answer: &Value, decided: Option<&(Fate, Outcome)>) -> &'static str {
    if answer["code"] == "outcome_unknown" {
        return "outcome_unknown";
    }
    let Some((fate, outcome)) = decided else { panic!("{answer} before it is decided") };
    assert_ne!(*fate, Fate::PublishedInSilence, "{answer}");
    match outcome {
        Ok(published) => {
            assert_eq!(
                (&answer["type"], &answer["id"]),
                (&json!("published"), &json!(published.id.to_string()))
            );
            "published"
        }
        Err(PublishError::Away) => {
            assert_eq!(answer["code"], "unavailable");
            "unavailable"
        }
        Err(PublishError::Busy) => {
            assert_eq!(answer["code"], "busy");
            "busy"
        }
        Err(error) => panic!("{error:?} of a journal that does not say so"),
    }
}

#[test]
fn a_late_journal_answers_publications_in_order() {
    let only = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    let mut seen = BTreeSet::new();
    for seed in seeds.clone() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.end();
            world.seen
        });
        match std::panic::catch_unwind(run) {
            Ok(events) => seen.extend(events),
            Err(panic) => {
                eprintln!("replay: THRONG_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let missing: Vec<_> = INTERESTING.iter().filter(|event| !seen.contains(**event)).collect();
    assert!(missing.is_empty() || seeds.end - seeds.start < SEEDS, "never happened: {missing:?}");
}

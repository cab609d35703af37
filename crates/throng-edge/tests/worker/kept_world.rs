//! Random lives of clients that follow kept channels, against an oracle that knows who has to get
//! what. `THRONG_SEED` replays one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throng_access::AccessControl;
use throng_core::{Body, ChannelName, Publication};
use throng_edge::Settings;

use crate::kept::{change, rig, update};
use crate::rig::{Client, Rig};

const CHANNELS: usize = 6;
const DEVICES: usize = 4;
const STEPS: usize = 250;

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % end as u64) as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Sse,
    SseEnvelope,
    Lines,
    Poll,
}

/// One device of the user, over all of its connections.
struct Device {
    transport: Transport,
    client: Option<Client>,
    /// Bytes that came on this connection and are not read yet.
    bytes: String,
    is_head_read: bool,
    /// The last id; empty before the first.
    position: String,
    /// Messages from this number on are its own to get, if they were due when they were published.
    from: usize,
    received: BTreeSet<usize>,
}

struct World {
    rig: Rig,
    access: Arc<AccessControl>,
    random: Random,
    devices: Vec<Device>,
    /// For each message, its channel; channel [`CHANNELS`] is the inbox.
    published: Vec<usize>,
    kept: BTreeSet<usize>,
    /// For each channel, the first message since which the user has kept it.
    kept_from: BTreeMap<usize, usize>,
    /// For each channel that is not kept, the first message after the answer to the last change.
    ended: BTreeMap<usize, usize>,
    /// Changes that are not answered yet: the channel, and whether the worker has acted.
    changes: Vec<(usize, Arc<AtomicBool>)>,
    resumes: usize,
}

fn name(channel: usize) -> String {
    format!("channel-{channel}")
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let (rig, access) = rig(Settings::for_tests());
        let transports =
            [Transport::Sse, Transport::SseEnvelope, Transport::Lines, Transport::Poll];
        let device = |_| Device {
            transport: transports[random.below(4)],
            client: None,
            bytes: String::new(),
            is_head_read: false,
            position: String::new(),
            from: usize::MAX,
            received: BTreeSet::new(),
        };
        let devices = (0..DEVICES).map(device).collect();
        let ended = (0..CHANNELS).map(|channel| (channel, 0)).collect();
        let mut world = World {
            rig,
            access,
            random,
            devices,
            published: Vec::new(),
            kept: BTreeSet::new(),
            kept_from: BTreeMap::from([(CHANNELS, 0)]),
            ended,
            changes: Vec::new(),
            resumes: 0,
        };
        // With kept channels from the beginning, every id is a position.
        world.change(0, true);
        world
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=5 => self.publish(),
            6 => {
                let (channel, adds) =
                    (1 + self.random.below(CHANNELS - 1), self.random.below(3) > 0);
                self.change(channel, adds);
            }
            7 | 8 => self.connect(),
            9 => self.disconnect(),
            10 => self.stall(),
            11 => self.read_again(),
            12 if self.random.below(8) == 0 => self.rig.replace_process(),
            13 => self.rig.work(),
            _ => drop(self.rig.worker.work(true)),
        }
        self.hear();
    }

    fn publish(&mut self) {
        let channel = self.random.below(CHANNELS + 1);
        let channel_name = if channel == CHANNELS {
            ChannelName::user("ann")
        } else {
            ChannelName::channel(&name(channel))
        };
        let text = format!("<{}>{}", self.published.len(), "x".repeat(self.random.below(300)));
        let publication = Publication::new(channel_name, Body::Text(text.into()));
        self.rig.engine.publish(1, publication).expect("the queue has room");
        self.published.push(channel);
    }

    fn change(&mut self, channel: usize, adds: bool) {
        let text = name(channel);
        let names = [text.as_str()];
        let (add, remove) = if adds { (&names[..], &[][..]) } else { (&[][..], &names[..]) };
        let is_answered = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_answered);
        let ordered = update(add, remove);
        change(&self.rig, &self.access, "ann", &ordered, move || {
            done.store(true, Ordering::SeqCst)
        });
        if adds && self.kept.insert(channel) {
            self.kept_from.insert(channel, usize::MAX);
        } else if !adds && self.kept.remove(&channel) {
            self.kept_from.remove(&channel);
        }
        self.ended.remove(&channel);
        self.changes.push((channel, is_answered));
        self.answered();
    }

    /// Acts on the answers to changes.
    fn answered(&mut self) {
        let next = self.published.len();
        let changes = std::mem::take(&mut self.changes);
        for (at, (channel, is_answered)) in changes.iter().enumerate() {
            if !is_answered.load(Ordering::SeqCst) {
                self.changes.push((*channel, Arc::clone(is_answered)));
                continue;
            }
            // The last change decides.
            if changes[at + 1..].iter().any(|(later, _)| later == channel) {
                continue;
            }
            match self.kept_from.get_mut(channel) {
                Some(from) => *from = (*from).min(next),
                None => drop(self.ended.insert(*channel, next)),
            }
        }
    }

    fn connect(&mut self) {
        let at = self.random.below(DEVICES);
        if self.devices[at].client.is_none() {
            self.connect_device(at);
        }
    }

    fn connect_device(&mut self, at: usize) {
        let device = &self.devices[at];
        let (accept, query) = match device.transport {
            Transport::Sse => ("text/event-stream", ""),
            Transport::SseEnvelope => ("text/event-stream", "&envelope=true"),
            Transport::Lines => ("*/*", "&envelope=true"),
            Transport::Poll => ("*/*", "&wait=300"),
        };
        let since = &device.position;
        self.resumes += usize::from(!since.is_empty());
        let client = self.rig.connect(&format!(
            "GET /users/ann?since={since}{query} HTTP/1.0\r\nAccept: {accept}\r\n\r\n"
        ));
        if self.random.below(3) == 0 {
            client.stall_after(self.random.below(400));
        }
        let device = &mut self.devices[at];
        if device.position.is_empty() {
            device.from = device.from.min(self.published.len());
        }
        (device.client, device.is_head_read) = (Some(client), false);
        device.bytes.clear();
    }

    fn disconnect(&mut self) {
        let at = self.random.below(DEVICES);
        self.hear();
        let device = &mut self.devices[at];
        if let Some(client) = device.client.take()
            && !client.is_closed()
        {
            self.rig.hang_up(&client);
        }
        if device.position.is_empty() {
            // It never learnt where it was.
            device.from = usize::MAX;
        }
    }

    fn stall(&mut self) {
        let (at, bytes) = (self.random.below(DEVICES), self.random.below(500));
        if let Some(client) = &self.devices[at].client {
            client.stall_after(bytes);
        }
    }

    fn read_again(&mut self) {
        let at = self.random.below(DEVICES);
        if let Some(client) = &self.devices[at].client
            && !client.is_closed()
        {
            self.rig.read_again(client);
        }
    }

    /// Reads what has come to all devices.
    fn hear(&mut self) {
        self.answered();
        for at in 0..DEVICES {
            let device = &mut self.devices[at];
            let Some(client) = &device.client else { continue };
            let is_closed = client.is_closed();
            device.bytes.push_str(&client.received());
            self.read(at);
            if is_closed {
                let device = &mut self.devices[at];
                device.client = None;
                if device.position.is_empty() {
                    device.from = usize::MAX;
                }
            }
        }
    }

    fn read(&mut self, at: usize) {
        let device = &mut self.devices[at];
        let is_poll = device.transport == Transport::Poll;
        if !device.is_head_read {
            let Some(end) = device.bytes.find("\r\n\r\n") else { return };
            let head = device.bytes[..end].to_owned();
            let field = |name: &str| {
                head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
            };
            // The body of a poll is read whole, or asked for again.
            let length = field("Content-Length: ").map_or(0, |text| text.parse().unwrap());
            if is_poll && device.bytes.len() < end + 4 + length {
                return;
            }
            assert_ne!(field("Throng-Recovered: ").as_deref(), Some("false"), "{head}");
            device.bytes.drain(..end + 4);
            device.position = field("Throng-Id: ").expect("each answer has one");
            assert!(device.position.starts_with('~') && device.position.len() <= 64);
            device.is_head_read = true;
            if is_poll {
                let body = std::mem::take(&mut device.bytes);
                self.got(at, &body);
                // The worker waits for the client to close the connection.
                if let Some(client) = self.devices[at].client.take()
                    && !client.is_closed()
                {
                    self.rig.hang_up(&client);
                }
                return;
            }
        }
        let separator = if self.devices[at].transport == Transport::Lines { "\n" } else { "\n\n" };
        while let Some(end) = self.devices[at].bytes.find(separator) {
            let event: String = self.devices[at].bytes.drain(..end + separator.len()).collect();
            let device = &mut self.devices[at];
            let position = match device.transport {
                Transport::Lines => event
                    .split(r#""position":""#)
                    .nth(1)
                    .map(|rest| rest.split('"').next().unwrap_or_default().to_owned()),
                _ => event
                    .strip_prefix("id: ")
                    .map(|rest| rest.lines().next().unwrap_or_default().to_owned()),
            };
            if let Some(position) = position {
                let stamp = |text: &str| text[3..].parse::<u64>().unwrap();
                assert!(stamp(&position) > stamp(&device.position), "{position} is not ahead");
                device.position = position;
            }
            self.got(at, &event);
        }
    }

    /// A device has got these messages.
    fn got(&mut self, at: usize, text: &str) {
        let device = &mut self.devices[at];
        for part in text.split('<').skip(1) {
            let Some((digits, _)) = part.split_once('>') else { continue };
            let number: usize = digits.parse().unwrap();
            assert!(device.received.insert(number), "{number} came twice to {at}");
            let channel = self.published[number];
            let ended = self.ended.get(&channel).copied().unwrap_or(usize::MAX);
            assert!(number < ended, "{number} came after {channel} was no longer followed");
        }
    }

    fn finish(mut self) -> usize {
        // A poll has one answer: whoever is away comes back, until all have all.
        for _ in 0..10 {
            for at in 0..DEVICES {
                if self.devices[at].client.is_none() && !self.devices[at].position.is_empty() {
                    self.connect_device(at);
                }
                if let Some(client) = &self.devices[at].client
                    && !client.is_closed()
                {
                    self.rig.read_again(client);
                }
            }
            self.rig.work();
            self.hear();
        }
        self.rig.worker.check_invariants();
        for (at, device) in self.devices.iter().enumerate() {
            for (number, channel) in self.published.iter().enumerate() {
                let from = self.kept_from.get(channel).copied().unwrap_or(usize::MAX);
                let is_due = number >= device.from && number >= from;
                assert!(
                    !is_due || device.received.contains(&number),
                    "{number} of {channel} did not come to {at} ({:?})",
                    device.transport
                );
            }
        }
        self.resumes
    }
}

fn run(seed: u64) -> usize {
    eprintln!("THRONG_SEED={seed}");
    let mut world = World::new(seed);
    (0..STEPS).for_each(|_| world.step());
    world.finish()
}

#[test]
fn nothing_is_skipped_and_nothing_repeated() {
    if let Some(seed) = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed);
        return;
    }
    let seeds = std::env::var("THRONG_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let resumes: usize = (0..seeds.unwrap_or(200)).map(run).sum();
    assert!(resumes > 1000, "only {resumes} resumes");
}

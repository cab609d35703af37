//! The members of a channel in a world from a seed: clients follow it and leave, come back within
//! the grace and later, show something else, stall, read a little, and move to another process.
//!
//! A model knows the members and what they show. Clients that follow the members keep the list as
//! they are told, are told nothing twice, and are compared with the model whenever they have read
//! all. The seed of a world that fails is printed; `THRONG_SEED=` runs it alone, and
//! `THRONG_SEEDS=` runs as many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use throng_access::{AccessControl, AllowAll};
use throng_core::{ChannelName, MembersRule, Rule, Rules};
use throng_edge::Settings;

use crate::rig::{Client, Rig};
use crate::token_world::random::Random;

const SEEDS: usize = 200;
const STEPS: usize = 150;
const GRACE_MS: u64 = 2_000;
const USERS: [&str; 5] = ["ann", "bob", "cy", "dee", "eve"];

/// A member as the model knows it.
#[derive(Debug)]
struct Member {
    connections: u32,
    /// Since when it has none.
    away_ms: u64,
    info: Option<String>,
}

/// A client that follows the channel, or speaks `throng.v1` and may.
struct Peer {
    client: Client,
    user: Option<&'static str>,
    follows: bool,
    is_v1: bool,
    watches: bool,
    is_stalled: bool,
    /// True if it has read all since it began.
    was_never_stalled: bool,
    received: Vec<u8>,
    has_list: bool,
    /// The members as it is told.
    members: BTreeMap<String, Option<String>>,
    last: u64,
}

impl Peer {
    /// The objects that have come whole: lines, or payloads of frames.
    fn objects(&mut self) -> Vec<Value> {
        self.received.extend(self.client.received_bytes());
        let mut objects = Vec::new();
        loop {
            let bytes = &self.received;
            let (begin, end, behind) = if !self.is_v1 {
                let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { break };
                (0, end, end + 1)
            } else {
                let (begin, length) = match bytes.get(1) {
                    None => break,
                    Some(126) if bytes.len() >= 4 => {
                        (4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]])))
                    }
                    Some(126) => break,
                    Some(length) => (2, usize::from(*length)),
                };
                (begin, begin + length, begin + length)
            };
            if bytes.len() < behind {
                break;
            }
            objects.extend(serde_json::from_slice::<Value>(&bytes[begin..end]));
            self.received.drain(..behind);
        }
        objects
    }

    fn read(&mut self, seen: &mut BTreeSet<&'static str>) {
        for object in self.objects() {
            match object["type"].as_str() {
                Some("presence") => self.take(&object, seen),
                Some("error") => panic!("{object}"),
                _ => {}
            }
        }
    }

    fn take(&mut self, told: &Value, seen: &mut BTreeSet<&'static str>) {
        let id = told["id"].as_str().expect("an id");
        let offset: u64 = id.rsplit_once('-').expect("an offset").1.parse().expect("a number");
        let member = &told["member"];
        let user = member["user"].as_str().unwrap_or_default().to_owned();
        let info = member.get("info").map(Value::to_string);
        if told["event"] == "state" {
            assert!(!self.has_list && self.last <= offset, "{told}");
            (self.has_list, self.last) = (true, offset);
            seen.insert("list");
            return;
        }
        assert!(offset > self.last, "{told} after {}", self.last);
        self.last = offset;
        let before = self.members.get(&user);
        match told["event"].as_str() {
            Some("join" | "update") => {
                // One that could not read may have passed over what was in between.
                let is_news = before != Some(&info) || !self.was_never_stalled;
                assert!(is_news, "{told} is known");
                if told["event"] == "update" {
                    seen.insert("update");
                }
                self.members.insert(user, info);
            }
            Some("leave") => {
                assert!(info.is_none());
                // The newest change is part of the list, whatever it is.
                let is_part = !self.has_list || !self.was_never_stalled;
                assert!(before.is_some() || is_part, "{told} was not there");
                self.members.remove(&user);
                seen.insert("leave");
            }
            _ => panic!("{told}"),
        }
    }
}

struct World {
    rig: Rig,
    random: Random,
    peers: Vec<Peer>,
    model: BTreeMap<&'static str, Member>,
    seen: BTreeSet<&'static str>,
    number: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let members = Some(MembersRule { are_connections: false, grace_ms: GRACE_MS });
        let rule = Rule { members, ..Rule::default() };
        let settings = Settings {
            welcome: false,
            heartbeat: Duration::ZERO,
            ping_interval: Duration::ZERO,
            ..Settings::for_tests()
        };
        let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
        World {
            rig: Rig::with_rules(settings, access, Rules::new(Vec::new(), rule)),
            random: Random(seed),
            peers: Vec::new(),
            model: BTreeMap::new(),
            seen: BTreeSet::new(),
            number: 0,
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..20 => self.connect(),
            20..35 => self.hang_up(),
            35..55 => self.command(),
            55..70 => {
                let ticks = 1 + self.random.below(12);
                (0..ticks).for_each(|_| self.pass());
            }
            70..85 => self.stall_or_read(),
            85..89 => {
                self.rig.work();
                self.rig.replace_process();
                self.seen.insert("moved");
            }
            89..92 => self.rig.publish("room", "text", None),
            _ => self.rig.work(),
        }
        self.rig.worker.check_invariants();
        self.read_all();
    }

    fn pass(&mut self) {
        self.rig.pass(1);
        let now_ms = self.rig.now_ms();
        self.rig.engine.tick(now_ms);
        self.model.retain(|_, it| it.connections > 0 || it.away_ms + GRACE_MS > now_ms);
        self.rig.work();
    }

    fn join(&mut self, user: Option<&'static str>, info: Option<String>) {
        let Some(user) = user else { return };
        let now_ms = self.rig.now_ms();
        let is_known = self.model.contains_key(user);
        let new = || Member { connections: 0, away_ms: now_ms, info: None };
        let member = self.model.entry(user).or_insert_with(new);
        if is_known && member.connections == 0 {
            self.seen.insert("back within the grace");
        }
        member.connections += 1;
        member.info = info.or(member.info.take());
    }

    fn leave(&mut self, user: Option<&'static str>) {
        let Some(member) = user.and_then(|user| self.model.get_mut(user)) else { return };
        member.connections -= 1;
        member.away_ms = self.rig.now_ms();
    }

    fn info(&mut self) -> Option<String> {
        self.number += u64::from(self.random.percent(70));
        self.random.percent(60).then(|| format!(r#"{{"n":{}}}"#, self.number))
    }

    fn connect(&mut self) {
        let user = USERS.get(self.random.below(USERS.len() + 1)).copied();
        let (is_v1, watches) = (self.random.percent(50), self.random.percent(60));
        let mut peer = Peer {
            client: self.rig.v1(),
            user,
            follows: true,
            is_v1,
            watches,
            is_stalled: false,
            was_never_stalled: true,
            received: Vec::new(),
            has_list: false,
            members: BTreeMap::new(),
            last: 0,
        };
        if is_v1 {
            take_head(&peer.client, &mut peer.received);
            if let Some(user) = user {
                let inbox = format!(r#"{{"type":"subscribe","user":"{user}"}}"#);
                self.rig.send_frame(&peer.client, &inbox);
            }
            let info = user.and_then(|_| self.info());
            self.subscribe(&peer.client, watches, info.as_deref());
            self.join(user, info);
        } else {
            self.rig.hang_up(&peer.client);
            let user_of = user.map_or(String::new(), |user| format!("&user={user}"));
            peer.client = self.rig.connect(&format!(
                "GET /channels/room?presence={watches}{user_of} HTTP/1.0\r\nHost: localhost\r\n\r\n"
            ));
            take_head(&peer.client, &mut peer.received);
            self.join(user, None);
        }
        self.peers.push(peer);
    }

    fn subscribe(&mut self, client: &Client, watches: bool, info: Option<&str>) {
        let info = info.map_or(String::new(), |info| format!(r#","info":{info}"#));
        let frame =
            format!(r#"{{"type":"subscribe","channel":"room","presence":{watches}{info}}}"#);
        self.rig.send_frame(client, &frame);
        // One that is gone before the worker has read it follows nothing.
        self.rig.work();
    }

    fn hang_up(&mut self) {
        if !self.peers.is_empty() {
            let at = self.random.below(self.peers.len());
            let peer = self.peers.swap_remove(at);
            self.rig.hang_up(&peer.client);
            // A worker that is busy learns of it later.
            self.rig.work();
            if peer.follows {
                self.leave(peer.user);
            }
        }
    }

    /// A client leaves the channel or comes back to it, or shows something else.
    fn command(&mut self) {
        let fit = |peer: &Peer| peer.is_v1 && !peer.is_stalled;
        let fit: Vec<_> = (0..self.peers.len()).filter(|&at| fit(&self.peers[at])).collect();
        if fit.is_empty() {
            return;
        }
        let mut peer = self.peers.swap_remove(fit[self.random.below(fit.len())]);
        if !peer.follows {
            let info = peer.user.and_then(|_| self.info());
            (peer.has_list, peer.follows, peer.was_never_stalled) = (false, true, true);
            peer.members.clear();
            peer.last = 0;
            self.subscribe(&peer.client, peer.watches, info.as_deref());
            self.join(peer.user, info);
        } else if let Some(user) = peer.user.filter(|_| self.random.percent(60)) {
            self.number += u64::from(self.random.percent(70));
            let info = format!(r#"{{"n":{}}}"#, self.number);
            let update = format!(r#"{{"type":"update","channel":"room","info":{info}}}"#);
            self.rig.send_frame(&peer.client, &update);
            self.rig.work();
            self.model.get_mut(user).expect("it is a member").info = Some(info);
        } else {
            // What it has not been told yet does not come any more.
            self.rig.work();
            self.rig.send_frame(&peer.client, r#"{"type":"unsubscribe","channel":"room"}"#);
            peer.read(&mut self.seen);
            peer.follows = false;
            self.leave(peer.user);
        }
        self.peers.push(peer);
    }

    fn stall_or_read(&mut self) {
        if self.peers.is_empty() {
            return;
        }
        let at = self.random.below(self.peers.len());
        let (room, is_little) = (self.random.below(200), self.random.percent(30));
        let peer = &mut self.peers[at];
        if !peer.is_stalled {
            peer.client.stall_after(room);
            (peer.is_stalled, peer.was_never_stalled) = (true, false);
        } else if is_little {
            self.rig.read_some(&peer.client, room);
        } else {
            self.rig.read_again(&peer.client);
            peer.is_stalled = false;
            self.seen.insert("read again");
        }
    }

    fn read_all(&mut self) {
        for peer in &mut self.peers {
            peer.read(&mut self.seen);
            assert!(!peer.client.is_closed(), "nobody is closed");
        }
    }

    /// Everybody reads all, and knows the members of the model, as the list does.
    fn settle(&mut self) {
        for at in 0..self.peers.len() {
            self.rig.read_again(&self.peers[at].client);
            self.peers[at].is_stalled = false;
        }
        (0..3).for_each(|_| self.pass());
        self.read_all();
        let expected: BTreeMap<_, _> =
            self.model.iter().map(|(user, it)| ((*user).to_owned(), it.info.clone())).collect();
        let room = ChannelName::channel("room");
        let page = self.rig.engine.members(self.rig.now_ms(), &room, None, 99);
        let listed = page.members.iter().map(|object| {
            let object: Value = serde_json::from_str(object).expect("JSON");
            let user = object["user"].as_str().expect("a user").to_owned();
            (user, object.get("info").map(Value::to_string))
        });
        assert_eq!(listed.collect::<BTreeMap<_, _>>(), expected);
        assert_eq!(self.rig.engine.member_metrics().members, expected.len() as u64);
        for peer in self.peers.iter().filter(|peer| peer.watches && peer.follows) {
            assert!(peer.has_list, "the end of its list is missing");
            assert_eq!(
                peer.members,
                expected,
                "the last event was {} {} {:?}",
                peer.last,
                peer.is_v1,
                String::from_utf8_lossy(&peer.received)
            );
            self.seen.insert("at rest");
        }
    }
}

/// Takes the head of a response, and keeps what follows.
fn take_head(client: &Client, received: &mut Vec<u8>) {
    let bytes = client.received_bytes();
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
    received.extend_from_slice(&bytes[end + 4..]);
}

fn run(seed: u64) -> BTreeSet<&'static str> {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        world.step();
        if step % 50 == 49 {
            world.settle();
        }
    }
    // Everybody goes.
    while !world.peers.is_empty() {
        world.hang_up();
    }
    (0..GRACE_MS / 100 + 2).for_each(|_| world.pass());
    world.settle();
    assert!(world.model.is_empty());
    world.seen
}

#[test]
fn everybody_knows_the_members_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("THRONG_SEED") {
        return drop(run(seed));
    }
    let mut seen = BTreeSet::new();
    for seed in 0..number("THRONG_SEEDS").unwrap_or(SEEDS as u64) {
        let found = std::panic::catch_unwind(|| run(seed));
        seen.extend(found.unwrap_or_else(|_| panic!("THRONG_SEED={seed} replays it")));
    }
    let all =
        ["at rest", "back within the grace", "leave", "list", "moved", "read again", "update"];
    assert!(all.iter().all(|it| seen.contains(it)), "only {seen:?}");
}

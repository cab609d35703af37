//! Presence events in a world from a seed: connections come and go, stall, and move to another
//! process. An oracle that knows who is there checks what each of them is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use throng_access::{AccessControl, AllowAll};
use throng_core::{PresenceEventSettings, PresenceEvents, PresenceThaw, Rule, Rules};
use throng_edge::Settings;

use crate::rig::{Client, Rig};
use crate::token_world::random::Random;

const GRACE_MS: u64 = 2000;

/// Connections up to which events name users.
const MAX_NAMED: usize = 5;

const SETTINGS: PresenceEventSettings =
    PresenceEventSettings { grace_ms: GRACE_MS, max_named: MAX_NAMED };

/// The shortest time between two events.
const INTERVAL_MS: u64 = 500;

/// How much later than the change an event may know of it: a look takes a tick.
const LOOK_MS: u64 = 200;

const USERS: [&str; 5] = ["ann", "bob", "cy", "dee", "eve"];

pub(crate) fn rules() -> Rules {
    Rules::new(Vec::new(), Rule { presence_events: true, ..Rule::default() })
}

pub(crate) fn rig(rules: Rules) -> Rig {
    let settings = Settings {
        welcome: false,
        heartbeat: std::time::Duration::ZERO,
        ping_interval: std::time::Duration::ZERO,
        ..Settings::for_tests()
    };
    let mut rig =
        Rig::with_rules(settings, Arc::new(AccessControl::open(Arc::new(AllowAll))), rules);
    rig.pass(1);
    rig
}

pub(crate) fn events() -> PresenceEvents {
    PresenceEvents::new(SETTINGS)
}

/// Takes the presence events out of what a client has received so far. The rest stays.
fn take_events(received: &mut Vec<u8>) -> Vec<Value> {
    const BEGIN: &[u8] = br#"{"type":"presence""#;
    let mut events = Vec::new();
    while let Some(at) = received.windows(BEGIN.len()).position(|window| window == BEGIN) {
        let mut values = serde_json::Deserializer::from_slice(&received[at..]).into_iter();
        match values.next() {
            Some(Ok(event)) => {
                events.push(event);
                let end = at + values.byte_offset();
                received.drain(..end);
            }
            Some(Err(error)) if error.is_eof() => break,
            other => panic!("{other:?} in {}", String::from_utf8_lossy(received)),
        }
    }
    events
}

fn names(event: &Value, field: &str) -> BTreeSet<String> {
    let name = |user: &Value| user["user"].as_str().or(user.as_str()).map(str::to_owned);
    event[field].as_array().into_iter().flatten().filter_map(name).collect()
}

/// When each user was there: from, to.
type Presences = BTreeMap<String, Vec<(u64, Option<u64>)>>;

struct Peer {
    client: Client,
    user: Option<&'static str>,
    follows: bool,
    wants_events: bool,
    is_v1: bool,
    is_stalled: bool,
    received: Vec<u8>,
    /// The last event, and whether none can have been skipped since.
    last: Option<Value>,
    is_whole: bool,
}

impl Peer {
    /// Checks what has come.
    fn look(&mut self, now_ms: u64, presences: &Presences, seen: &mut BTreeSet<&'static str>) {
        self.received.extend(self.client.received_bytes());
        for event in take_events(&mut self.received) {
            assert!(self.wants_events, "it has not asked for {event}");
            self.check(&event, presences, seen);
            assert!(event["time"].as_u64().unwrap() <= now_ms, "{event}");
            self.last = Some(event);
        }
    }

    fn check(&mut self, event: &Value, presences: &Presences, seen: &mut BTreeSet<&'static str>) {
        let time_ms = event["time"].as_u64().expect("a time");
        let overlaps = |user: &str, from_ms: u64, to_ms: u64| {
            presences[user]
                .iter()
                .filter(move |(from, to)| *from <= to_ms && to.is_none_or(|to| to >= from_ms))
        };
        let users = names(event, "users");
        if event["more"] == true {
            assert!(users.is_empty() && event.get("joined").is_none(), "{event}");
            seen.insert("counts only");
        }
        for user in names(event, "joined") {
            let is_there = overlaps(&user, time_ms.saturating_sub(LOOK_MS), time_ms).next();
            assert!(is_there.is_some(), "{user} was not there: {event}");
            seen.insert("joined");
        }
        for left in event["left"].as_array().into_iter().flatten() {
            let (user, since) = (left["user"].as_str().unwrap(), left["last_seen"].as_u64());
            let since_ms = since.expect("a time");
            assert!(since_ms + GRACE_MS <= time_ms, "{user} left within the grace: {event}");
            // It may have come back for less than two looks, and just now.
            let stays = overlaps(user, since_ms, time_ms - LOOK_MS).filter(|(from, to)| {
                let from = (*from).max(since_ms);
                to.unwrap_or(u64::MAX).min(time_ms).saturating_sub(from) > INTERVAL_MS + LOOK_MS
            });
            assert_eq!(stays.count(), 0, "{user} was there: {event} {presences:?}");
            seen.insert("left");
        }
        let Some(last) = &self.last else { return };
        let last_ms = last["time"].as_u64().expect("a time");
        assert!(last_ms < time_ms || (last_ms == time_ms && last["users"] == event["users"]));
        let is_told = event.get("joined").is_some() && last["more"] == false;
        if is_told && self.is_whole && last_ms < time_ms {
            let mut expected = names(last, "users");
            expected.extend(names(event, "joined"));
            let left = names(event, "left");
            expected.retain(|user| !left.contains(user));
            assert_eq!(expected, users, "from {last} to {event}");
        }
    }
}

struct World {
    random: Random,
    rig: Rig,
    events: PresenceEvents,
    peers: Vec<Peer>,
    presences: Presences,
    seen: BTreeSet<&'static str>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            random: Random(seed),
            rig: rig(rules()),
            events: events(),
            peers: Vec::new(),
            presences: USERS.iter().map(|user| ((*user).to_owned(), Vec::new())).collect(),
            seen: BTreeSet::new(),
        }
    }

    /// Those who are in the room now.
    fn users(&self) -> BTreeSet<String> {
        let here = self.peers.iter().filter(|peer| peer.follows);
        here.filter_map(|peer| peer.user).map(str::to_owned).collect()
    }

    fn followers(&self) -> usize {
        self.peers.iter().filter(|peer| peer.follows).count()
    }

    /// Notes who came and went in this step.
    fn note(&mut self) {
        let (users, now_ms) = (self.users(), self.rig.now_ms());
        for (user, times) in &mut self.presences {
            let is_here = times.last().is_some_and(|(_, to)| to.is_none());
            match (users.contains(user), is_here) {
                (true, false) => {
                    let is_back = times.last().and_then(|(_, to)| *to);
                    if is_back.is_some_and(|to_ms| to_ms + GRACE_MS > now_ms) {
                        self.seen.insert("back within the grace");
                    }
                    times.push((now_ms, None));
                }
                (false, true) => times.last_mut().unwrap().1 = Some(now_ms),
                _ => {}
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=24 => self.connect(),
            25..=44 => self.hang_up(),
            45..=74 => {
                let ticks = 1 + self.random.below(12);
                self.pass(ticks);
            }
            75..=80 => self.rig.publish("room", "text", None),
            81..=86 => self.stall_or_read(),
            87..=92 => self.command(),
            93..=95 => {
                self.seen.insert("process replaced");
                self.rig.work();
                self.rig.replace_process();
                self.replace_events();
            }
            _ => self.rest(),
        }
        self.rig.worker.check_invariants();
        self.note();
        self.look();
    }

    /// As another process goes on with them.
    fn replace_events(&mut self) {
        let watched = &self.rig.engine.presence_cache().watched;
        let mut thaw = PresenceThaw::new(SETTINGS, self.rig.now_ms());
        let thawed = self.events.freeze(watched, |record| thaw.record(&record, watched));
        thawed.expect("the records of the process before");
        self.events = thaw.finish();
    }

    fn look(&mut self) {
        let now_ms = self.rig.now_ms();
        for peer in &mut self.peers {
            peer.look(now_ms, &self.presences, &mut self.seen);
        }
    }

    fn pass(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.rig.pass(1);
            self.events.step(self.rig.now_ms(), self.rig.channels());
            self.rig.work();
            self.look();
        }
    }

    fn connect(&mut self) {
        let user = USERS.get(self.random.below(USERS.len() + 1)).copied();
        let wants_events = self.random.percent(70);
        let mut query = if wants_events { "presence=true".to_owned() } else { String::new() };
        if let Some(user) = user {
            query += &format!("&user={user}");
        }
        let transport = self.random.below(4);
        let fields = match transport {
            0 => "",
            1 => "Accept: text/event-stream\r\n",
            _ => {
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            }
        };
        let protocol = if transport == 3 { "Sec-WebSocket-Protocol: throng.v1\r\n" } else { "" };
        let head = format!(
            "GET /channels/room?{query} HTTP/1.1\r\nHost: localhost\r\n{fields}{protocol}\r\n"
        );
        let client = self.rig.connect(&head);
        self.peers.push(Peer {
            client,
            user,
            follows: true,
            wants_events,
            is_v1: transport == 3,
            is_stalled: false,
            received: Vec::new(),
            last: None,
            is_whole: true,
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
        let peer = &mut self.peers[at];
        if peer.is_stalled {
            self.rig.read_again(&peer.client);
            peer.is_stalled = false;
        } else {
            peer.client.stall_after(self.random.below(200));
            (peer.is_stalled, peer.is_whole) = (true, false);
            self.seen.insert("stalled");
        }
    }

    /// A client of `throng.v1` leaves the room or comes back to it, or says who it is.
    fn command(&mut self) {
        let fit: Vec<_> = (0..self.peers.len())
            .filter(|&at| self.peers[at].is_v1 && !self.peers[at].is_stalled)
            .collect();
        if fit.is_empty() {
            return;
        }
        let peer = &mut self.peers[fit[self.random.below(fit.len())]];
        let command = match (peer.user, peer.follows) {
            (None, _) if self.random.percent(50) => {
                let user = USERS[self.random.below(USERS.len())];
                peer.user = Some(user);
                self.seen.insert("user named later");
                format!(r#"{{"type":"subscribe","user":"{user}"}}"#)
            }
            (Some(user), _) if self.random.percent(30) => {
                peer.user = None;
                self.seen.insert("user gone");
                format!(r#"{{"type":"unsubscribe","user":"{user}"}}"#)
            }
            (_, true) => {
                peer.follows = false;
                r#"{"type":"unsubscribe","channel":"room"}"#.to_owned()
            }
            (_, false) => {
                peer.follows = true;
                peer.last = None;
                let wants_events = peer.wants_events;
                format!(r#"{{"type":"subscribe","channel":"room","presence":{wants_events}}}"#)
            }
        };
        self.rig.send_frame(&peer.client, &command);
    }

    /// Everybody reads, and nobody comes or goes. Then everybody knows who is there.
    fn rest(&mut self) {
        self.note();
        for peer in &mut self.peers {
            if std::mem::take(&mut peer.is_stalled) {
                self.rig.read_again(&peer.client);
            }
        }
        self.pass(2 * (GRACE_MS + INTERVAL_MS) as usize / 100 + 5);
        let told = self.rig.engine.presence_cache().watched.events();
        self.pass(30);
        let more = self.rig.engine.presence_cache().watched.events() - told;
        assert_eq!(more, 0, "nothing has changed");
        let (followers, users) = (self.followers(), self.users());
        for peer in self.peers.iter().filter(|peer| peer.wants_events && peer.follows) {
            let last = peer.last.as_ref().expect("an event");
            assert_eq!(last["connections"], followers, "{last}");
            assert_eq!(last["more"], followers > MAX_NAMED, "{last}");
            if followers <= MAX_NAMED {
                assert_eq!(names(last, "users"), users, "{last}");
                self.seen.insert("at rest");
            }
        }
    }
}

/// Returns what was seen.
fn run(seed: u64) -> BTreeSet<&'static str> {
    let mut world = World::new(seed);
    for _ in 0..150 {
        world.step();
    }
    world.rest();
    let elapsed_ms = world.rig.now_ms();
    let told = world.rig.engine.presence_cache().watched.events();
    assert!(told <= 2 + elapsed_ms / INTERVAL_MS, "{told} events in {elapsed_ms} ms");
    world.seen
}

#[test]
fn everybody_is_told_who_comes_and_goes() {
    if let Some(seed) = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return drop(run(seed));
    }
    let mut seen = BTreeSet::new();
    let seeds = std::env::var("THRONG_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(120) {
        let found = std::panic::catch_unwind(|| run(seed));
        seen.extend(found.unwrap_or_else(|_| panic!("THRONG_SEED={seed} replays it")));
    }
    for fact in [
        "joined",
        "left",
        "counts only",
        "back within the grace",
        "stalled",
        "process replaced",
        "user named later",
        "user gone",
        "at rest",
    ] {
        assert!(seen.contains(fact), "no seed has led to: {fact}");
    }
}

#[test]
fn a_crowd_that_joins_costs_a_few_events() {
    let mut rig = rig(rules());
    let mut events = events();
    let watcher = rig.get("/channels/room?presence=true");
    for joined in 0..3000 {
        rig.get(&format!("/channels/room?user=u{joined}"));
        if joined % 100 == 0 {
            rig.pass(1);
            events.step(rig.now_ms(), rig.channels());
        }
    }
    for _ in 0..10 {
        rig.pass(1);
        events.step(rig.now_ms(), rig.channels());
    }
    rig.work();
    let told = take_events(&mut watcher.received_bytes());
    assert!((2..=9).contains(&told.len()), "{} events in 4 seconds", told.len());
    let last = told.last().expect("an event");
    assert_eq!((&last["connections"], &last["more"]), (&3001.into(), &true.into()));
}

#[test]
fn presence_events_are_refused_where_they_are_off() {
    let mut rig = rig(Rules::default());
    let client = rig.get("/channels/room?presence=true");
    let refused = client.received();
    assert!(
        refused.starts_with("HTTP/1.1 400") && refused.contains("presence-events"),
        "{refused}"
    );
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"room","presence":true}"#);
    rig.work();
    assert!(client.received().contains(r#""code":"bad_request""#));
    assert_eq!(rig.worker.subscriptions_in_all(), 0);
}

/// A long-poll says what it knows, and is answered at once with anything else.
#[test]
fn a_long_poll_waits_for_the_next_event() {
    let mut rig = rig(rules());
    let mut events = events();
    let mut pass = |rig: &mut Rig, ticks: usize| {
        for _ in 0..ticks {
            rig.pass(1);
            events.step(rig.now_ms(), rig.channels());
            rig.work();
        }
    };
    let poll = |rig: &mut Rig, known: &str| {
        rig.get(&format!("/channels/room?wait=300&user=ann&presence={known}"))
    };
    let first = poll(&mut rig, "true");
    pass(&mut rig, 3);
    let told = take_events(&mut first.received_bytes());
    assert_eq!(names(&told[0], "users"), BTreeSet::from(["ann".to_owned()]));
    let time = told[0]["time"].to_string();
    let known = poll(&mut rig, &time);
    pass(&mut rig, 100);
    assert_eq!(known.received(), "", "nothing has changed");
    let unknown = poll(&mut rig, "true");
    assert!(unknown.received().contains(&time), "it is answered at once");
    let bob = rig.get("/channels/room?user=bob");
    pass(&mut rig, 10);
    let told = take_events(&mut known.received_bytes());
    assert_eq!(names(&told[0], "joined"), BTreeSet::from(["bob".to_owned()]));
    drop(bob);
}

/// A client that says later who it is joins then, and leaves when it says so.
#[test]
fn a_connection_joins_when_it_gets_a_user() {
    let mut rig = rig(rules());
    let mut events = events();
    let mut pass = |rig: &mut Rig, ticks: usize| {
        for _ in 0..ticks {
            rig.pass(1);
            events.step(rig.now_ms(), rig.channels());
            rig.work();
        }
    };
    let watcher = rig.get("/channels/room?presence=true");
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"room"}"#);
    pass(&mut rig, 50);
    watcher.received();
    rig.send_frame(&client, r#"{"type":"subscribe","user":"ann"}"#);
    pass(&mut rig, 10);
    let told = take_events(&mut watcher.received_bytes());
    assert_eq!(told.len(), 1);
    assert_eq!(names(&told[0], "joined"), BTreeSet::from(["ann".to_owned()]));
    rig.send_frame(&client, r#"{"type":"unsubscribe","user":"ann"}"#);
    pass(&mut rig, 10 + GRACE_MS as usize / 100);
    let told = take_events(&mut watcher.received_bytes());
    assert_eq!(told.len(), 1);
    assert_eq!(names(&told[0], "left"), BTreeSet::from(["ann".to_owned()]));
    assert_eq!(told[0]["connections"], 2);
}

/// A remembered answer hides nobody who comes meanwhile.
#[test]
fn newcomers_during_a_remembered_answer_are_told() {
    let mut rig = rig(rules());
    let named = PresenceEventSettings { grace_ms: GRACE_MS, max_named: 1000 };
    let mut events = PresenceEvents::new(named);
    let watcher = rig.get("/channels/room?presence=true");
    for number in 0..900 {
        rig.get(&format!("/channels/room?user=u{number}"));
    }
    let mut pass = |rig: &mut Rig, ticks: usize| {
        for _ in 0..ticks {
            events.step(rig.now_ms(), rig.channels());
            rig.work();
            rig.pass(1);
        }
    };
    pass(&mut rig, 20);
    assert_eq!(
        names(take_events(&mut watcher.received_bytes()).last().unwrap(), "users").len(),
        900
    );
    let curious = rig.v1();
    rig.send_frame(&curious, r#"{"type":"presence","channel":"room"}"#);
    rig.work();
    assert!(curious.received().contains(r#""connections":901"#));
    rig.get("/channels/room?user=new");
    pass(&mut rig, 20);
    let told = take_events(&mut watcher.received_bytes());
    assert_eq!(names(&told[0], "joined"), BTreeSet::from(["new".to_owned()]));
}

/// A client that follows and leaves any number of channels leaves little behind, and others are
/// told as before.
#[test]
fn channels_that_nobody_follows_are_forgotten() {
    let mut rig = rig(rules());
    let mut events = events();
    let watcher = rig.get("/channels/room?presence=true");
    let client = rig.v1();
    for number in 0..12_000 {
        let channel = format!(r#""channel":"c{number}""#);
        rig.send_frame(&client, &format!(r#"{{"type":"subscribe",{channel},"presence":true}}"#));
        rig.send_frame(&client, &format!(r#"{{"type":"unsubscribe",{channel}}}"#));
        client.received();
    }
    for _ in 0..20 {
        rig.pass(1);
        events.step(rig.now_ms(), rig.channels());
    }
    assert!(events.channels() <= 10_000, "{} channels", events.channels());
    assert_eq!(take_events(&mut watcher.received_bytes()).len(), 1);
    // A minute later there is only the one that somebody follows.
    for _ in 0..620 {
        rig.pass(1);
        events.step(rig.now_ms(), rig.channels());
    }
    assert_eq!(events.channels(), 1);
    assert_eq!(rig.engine.presence_cache().watched.channels(), 1);
}

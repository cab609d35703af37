//! The members of channels that several processes serve, in a world from a seed: clients come, show
//! something else and go, processes die, stop, are cut off and replaced, and news gets lost, late
//! or into another order.
//!
//! Subscribers on each process keep the list as they are told, and are told nothing twice. Those of
//! a process that is cut off know that others may be missing, and when that is over. Once all is
//! quiet, each process lists those who are connected to any of them, with the same data, and has
//! the same numbers of subscribers. An application that is told by whichever process leads knows
//! then which channels have subscribers, and which members, if there was one fault at a time. The
//! seed of a world that fails is printed; `THRONG_SEED=` runs it alone, and `THRONG_SEEDS=` runs as
//! many. A seed gives the same world each time: no clock and no random hash has an influence.

mod application;
mod follower;
mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use throng_wire::v1::ShownMember;

use application::{Application, Equipment};
use follower::{Follower, KNOWN_MS};
use link::{OpenAsk, Out, Packet, Random, Sent, Underway};

use super::*;
use crate::clock;
use crate::later::{Answer, Later, Ticket};
use crate::members::exchange::MemberAsk;
use crate::rules::{JournalId, MembersRule};

const SEEDS: u64 = 200;
const NODES: usize = 3;
const USERS: [&str; 5] = ["ann", "bob", "cy", "dee", "eve"];
const CHANNELS: [&str; 2] = ["app/hall", "app/room"];
const BEGINNING_MS: u64 = 1_700_000_000_000;
const STEP_MS: u64 = 100;
const STEPS: usize = 500;
/// With it the channels are in different shards, whose order decides in which order they are told.
const HASH_SEED: u64 = 1;
/// A silent process is taken for gone after this time.
const GONE_MS: u64 = 8_000;
/// One fault is over after this time: a silent process is gone, and one that has taken over leads.
const CALM_MS: u64 = 13_000;
/// Longer than what is thawed waits, and than a question that is asked again.
const QUIET_MS: u64 = 40_000;

struct Node {
    name: String,
    fixture: Fixture,
    out: Out,
    equipment: Equipment,
    is_up: bool,
    is_cut: bool,
    /// Whether it has noticed, and when it will.
    knows_cut: bool,
    knows_ms: u64,
    heard: BTreeMap<String, u64>,
    asks: BTreeMap<u64, OpenAsk>,
    /// Channels and users.
    connections: Vec<(usize, usize)>,
    /// Of the members of the second channel.
    follower: Follower,
}

fn channel(at: usize) -> ChannelName {
    ChannelName::channel(CHANNELS[at])
}

impl Node {
    fn new(name: String, grace_ms: u64, now_ms: u64, application: &Application) -> Node {
        let rule = Rule {
            journal: Some(JournalId(0)),
            members: Some(MembersRule { are_connections: false, grace_ms }),
            ..Rule::default()
        };
        let mut fixture = Fixture::with_rule(rule, 1, usize::MAX);
        fixture.engine = fixture.engine.with_hash_seed(HASH_SEED);
        let mut node = Node {
            name,
            fixture,
            out: Out::default(),
            equipment: Equipment::new(application),
            is_up: true,
            is_cut: false,
            knows_cut: false,
            knows_ms: 0,
            heard: BTreeMap::new(),
            asks: BTreeMap::new(),
            connections: Vec::new(),
            follower: Follower::default(),
        };
        node.begin(now_ms);
        let log = ChannelName::members(CHANNELS[1]);
        let followed = node.fixture.follow(now_ms, &log, 0, StartAt::State);
        for message in followed.backlog {
            node.follower.is_told(&message, &node.name);
        }
        node.follower.is_partial = node.engine().members_listed(now_ms, &channel(1)).1;
        node
    }

    fn engine(&self) -> &MemoryEngine {
        &self.fixture.engine
    }

    fn begin(&mut self, now_ms: u64) {
        let engine = std::mem::replace(&mut self.fixture.engine, Fixture::empty());
        self.fixture.engine = self.equipment.beneath(engine);
        let out = Box::new(self.out.clone());
        self.engine().share_members_from(now_ms, JournalId(0), out);
        self.engine().members_connected(now_ms, true);
        (0..CHANNELS.len()).for_each(|at| self.engine().follow_members(now_ms, &channel(at)));
    }

    fn disconnect(&self, now_ms: u64, of: usize, user: usize) {
        let channel = channel(of);
        let (worker, _, id) = self.engine().audience(&channel).workers[0];
        self.engine().end_member(now_ms, &channel, USERS[user], 0);
        self.engine().unfollow(now_ms, id, worker);
    }

    fn is_settled(&self) -> bool {
        self.is_up && !self.is_cut && self.equipment.tallies.may_lead()
    }

    /// Subscribers are told what is new.
    fn read(&mut self) {
        let mut notifications = Vec::new();
        self.fixture.queues[0].take(&mut notifications);
        for notification in notifications {
            if let Notification::Message { message, .. } = notification {
                self.follower.is_told(&message, &self.name);
            }
        }
    }

    fn list(&self, now_ms: u64, at: usize) -> Vec<String> {
        let page = self.engine().members(now_ms, &channel(at), None, 999);
        page.members.iter().map(ToString::to_string).collect()
    }
}

struct World {
    random: Random,
    now_ms: u64,
    grace_ms: u64,
    nodes: Vec<Node>,
    underway: Vec<Underway>,
    names: usize,
    /// Percent of packets that are lost.
    lossy: usize,
    keeps_order: bool,
    said: usize,
    seen: BTreeSet<&'static str>,
    /// Of all that the engines have sent, and when.
    trace: DefaultHasher,
    application: Application,
    /// True if no news is lost, and one fault is over before the next: always a process is there
    /// that knows what the application knows.
    is_careful: bool,
    /// When the last fault was over.
    calm_ms: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let grace_ms = [0, 2_000][random.below(2)];
        let now_ms = BEGINNING_MS;
        clock::simulated::set(now_ms);
        let application = Application::default();
        let node = |at| Node::new(format!("node{at}"), grace_ms, now_ms, &application);
        let nodes = (0..NODES).map(node);
        let nodes = nodes.collect();
        let (lossy, keeps_order) = ([0, 0, 5, 30][random.below(4)], random.percent(70));
        let is_careful = lossy == 0 && keeps_order && random.percent(70);
        World {
            random,
            now_ms,
            grace_ms,
            nodes,
            underway: Vec::new(),
            names: NODES,
            lossy,
            keeps_order,
            said: 0,
            seen: BTreeSet::new(),
            trace: DefaultHasher::new(),
            application,
            is_careful,
            calm_ms: 0,
        }
    }

    /// True if a process may be gone, or cut off.
    fn may_go(&mut self, at: usize) -> bool {
        let mut others = self.nodes.iter().enumerate().filter(|(other, _)| *other != at);
        let is_known = others.any(|(_, node)| node.is_settled());
        let is_calm =
            self.now_ms >= self.calm_ms + CALM_MS && self.nodes.iter().all(|node| !node.is_cut);
        if self.is_careful && !(is_known && is_calm) {
            return false;
        }
        self.calm_ms = self.now_ms;
        true
    }

    fn send(&mut self, from: &str, to: Option<&str>, packet: &Packet) {
        let others = self.nodes.iter().filter(|node| node.is_up && node.name != from);
        let others: Vec<_> = others.map(|node| node.name.clone()).collect();
        for name in others {
            if to.is_some_and(|to| *to != name) || self.random.percent(self.lossy) {
                continue;
            }
            let slowest = if self.keeps_order { 1 } else { 400 };
            let due_ms = self.now_ms + self.random.below(slowest) as u64;
            let (from, packet) = (from.to_owned(), packet.clone());
            self.underway.push(Underway { due_ms, from, to: name, packet });
        }
    }

    fn ask(&mut self, at: usize, ask: MemberAsk) {
        let node = &mut self.nodes[at];
        let asked =
            node.heard.keys().filter(|name| ask.only.as_deref().is_none_or(|it| it == *name));
        let missing: BTreeSet<_> = asked.cloned().collect();
        if missing.is_empty() {
            return node.engine().members_answered(self.now_ms, ask.id, Vec::new());
        }
        let due_ms = self.now_ms + 1_000;
        node.asks.insert(ask.id, OpenAsk { due_ms, missing, answers: Vec::new() });
        if node.is_up && !node.is_cut {
            let name = node.name.clone();
            self.send(&name, ask.only.as_deref(), &Packet::Asked(ask.id, ask.wants));
        }
    }

    /// Sends what the engines have to say, until there is nothing left.
    fn post(&mut self) {
        loop {
            let mut is_quiet = true;
            for at in 0..self.nodes.len() {
                let sent = std::mem::take(&mut *self.nodes[at].out.0.lock().unwrap());
                let is_heard = self.nodes[at].is_up && !self.nodes[at].is_cut;
                let name = self.nodes[at].name.clone();
                for sent in sent {
                    is_quiet = false;
                    format!("{} {name} {sent:?}", self.now_ms).hash(&mut self.trace);
                    match sent {
                        Sent::Told(first, changes) if is_heard => {
                            self.send(&name, None, &Packet::Told(first, changes));
                        }
                        Sent::Told(..) => {}
                        Sent::Asked(ask) => self.ask(at, ask),
                    }
                }
            }
            let now_ms = self.now_ms;
            let is_due = |it: &mut Underway| it.due_ms <= now_ms;
            let due: Vec<_> = self.underway.extract_if(.., is_due).collect();
            if is_quiet && due.is_empty() {
                return;
            }
            due.into_iter().for_each(|it| self.deliver(it));
        }
    }

    fn deliver(&mut self, Underway { from, to, packet, .. }: Underway) {
        let now_ms = self.now_ms;
        let Some(node) = self.nodes.iter_mut().find(|it| it.name == to && it.is_up && !it.is_cut)
        else {
            return;
        };
        match packet {
            Packet::Here => {
                node.heard.insert(from.clone(), now_ms);
                node.engine().member_node_heard(now_ms, &from);
            }
            Packet::Leaves => {
                node.heard.remove(&from);
                node.engine().member_node_left(now_ms, &from);
            }
            Packet::Told(first, changes) => {
                node.engine().hear_members(now_ms, &from, first, changes);
            }
            Packet::Asked(id, wants) => {
                let parts = node.engine().member_parts(now_ms, wants);
                self.send(&to, Some(&from), &Packet::Answered(id, parts));
            }
            Packet::Answered(id, parts) => {
                let Some(open) = node.asks.get_mut(&id) else { return };
                if open.missing.remove(&from) {
                    open.answers.push((from.into(), parts));
                }
                if open.missing.is_empty() {
                    let open = node.asks.remove(&id).unwrap();
                    node.engine().members_answered(now_ms, id, open.answers);
                }
            }
        }
    }

    fn tick(&mut self, step_ms: u64) {
        self.now_ms += step_ms;
        let now_ms = self.now_ms;
        clock::simulated::set(now_ms);
        for at in 0..self.nodes.len() {
            if !self.nodes[at].is_up {
                continue;
            }
            let is_beat = now_ms % 1_000 < step_ms;
            if is_beat && !self.nodes[at].is_cut {
                let name = self.nodes[at].name.clone();
                self.send(&name, None, &Packet::Here);
            }
            let node = &mut self.nodes[at];
            if node.is_cut && !node.knows_cut && now_ms >= node.knows_ms {
                node.knows_cut = true;
                node.engine().members_connected(now_ms, false);
            }
            let is_over = |_: &u64, open: &mut OpenAsk| now_ms >= open.due_ms;
            let over: Vec<_> = node.asks.extract_if(.., is_over).collect();
            for (id, open) in over {
                node.engine().members_answered(now_ms, id, open.answers);
            }
            node.heard.retain(|_, heard_ms| node.knows_cut || now_ms < *heard_ms + GONE_MS);
            if is_beat {
                node.engine().part_with_silent_nodes(now_ms);
            }
            node.engine().tick(now_ms);
        }
        self.post();
        for node in self.nodes.iter_mut().filter(|node| node.is_up) {
            if node.knows_cut {
                assert!(node.engine().are_members_partial(now_ms, &channel(1)), "{}", node.name);
            }
        }
    }

    fn connect(&mut self, at: usize) {
        let (of, user) = (self.random.below(CHANNELS.len()), self.random.below(USERS.len()));
        self.said += 1;
        let info = format!("{{\"n\":{}}}", self.said);
        let info = self.random.percent(60).then_some(&*info);
        let shown = ShownMember { connection: None, user: Some(USERS[user]), info };
        let node = &mut self.nodes[at];
        if node.engine().begin_member(self.now_ms, &channel(of), shown).is_ok() {
            node.fixture.follow(self.now_ms, &channel(of), 0, StartAt::Live);
            node.connections.push((of, user));
        }
    }

    fn step(&mut self) {
        let at = self.random.below(self.nodes.len());
        let now_ms = self.now_ms;
        if !self.nodes[at].is_up {
            if self.random.percent(10) {
                let name = format!("node{}", self.names);
                self.names += 1;
                self.nodes[at] = Node::new(name, self.grace_ms, now_ms, &self.application);
            }
            return;
        }
        match self.random.below(100) {
            0..30 => self.connect(at),
            30..55 => {
                let node = &mut self.nodes[at];
                if !node.connections.is_empty() {
                    let place = self.random.below(node.connections.len());
                    let (of, user) = node.connections.swap_remove(place);
                    node.disconnect(now_ms, of, user);
                }
            }
            55..65 => {
                let node = &self.nodes[at];
                if !node.connections.is_empty() {
                    self.said += 1;
                    let (of, user) = node.connections[self.random.below(node.connections.len())];
                    let (key, info) = (USERS[user], format!("{{\"n\":{}}}", self.said));
                    // The queue may be full.
                    let _ =
                        node.engine().update_member(now_ms, &channel(of), (key, Some(key)), &info);
                }
            }
            65..67 => self.upgrade(at),
            67..69 => self.end(at),
            69..72 => self.cut(at),
            72..78 => self.ready(at),
            78..80 => self.look(at),
            _ => self.nodes[at].read(),
        }
    }

    fn ready(&mut self, at: usize) {
        let mut issue = || Ticket::new(drop);
        let node = &self.nodes[at];
        let of = self.random.below(CHANNELS.len());
        let ready = node.engine().members_ready(self.now_ms, &channel(of), Later::new(&mut issue));
        self.seen.insert(match ready {
            Answer::Now(true) => "partial",
            Answer::Now(false) => "whole",
            Answer::Later(_) => "asked",
        });
    }

    /// The follower knows whether members may be missing. What had no room comes with a tick.
    fn look(&mut self, at: usize) {
        self.nodes[at].read();
        self.tick(STEP_MS);
        let node = &mut self.nodes[at];
        node.read();
        let is_known = node.knows_cut && self.now_ms >= node.knows_ms + KNOWN_MS;
        self.seen.extend(node.follower.look(is_known, &node.name));
    }

    /// Another process takes over.
    fn upgrade(&mut self, at: usize) {
        if self.nodes[at].is_cut || !self.may_go(at) {
            return;
        }
        self.seen.insert("upgrade");
        // What the others have done by now, and what follows from that.
        (0..3).for_each(|_| self.tick(STEP_MS));
        let now_ms = self.now_ms;
        let knows_all = |it: &Node| {
            it.is_up && !it.is_cut && !it.engine().are_members_partial(now_ms, &channel(1))
        };
        let is_whole = self.lossy == 0 && self.keeps_order && self.nodes.iter().all(knows_all);
        let node = &mut self.nodes[at];
        node.read();
        for (of, user) in &node.connections {
            node.engine().rest_member(now_ms, &channel(*of), USERS[*user]);
        }
        node.equipment.renew();
        node.fixture.freeze_and_thaw();
        node.asks.clear();
        node.begin(now_ms);
        for (of, user) in &node.connections {
            let shown = ShownMember { connection: None, user: Some(USERS[*user]), info: None };
            node.engine().resume_member(now_ms, &channel(*of), shown);
        }
        self.post();
        let before = self.nodes[at].follower.members.clone();
        self.nodes[at].read();
        if is_whole {
            self.seen.insert("upgrade without event");
            assert_eq!(self.nodes[at].follower.members, before, "an upgrade is no event");
        }
    }

    /// A process dies or stops.
    fn end(&mut self, at: usize) {
        if !self.may_go(at) {
            return;
        }
        let node = &mut self.nodes[at];
        (node.is_up, node.is_cut) = (false, false);
        node.connections.clear();
        let name = node.name.clone();
        if self.random.percent(50) {
            self.seen.insert("stop");
            node.equipment.end();
            self.send(&name, None, &Packet::Leaves);
        } else {
            self.seen.insert("death");
        }
    }

    /// A process is cut off, or is back.
    fn cut(&mut self, at: usize) {
        let now_ms = self.now_ms;
        if self.nodes[at].is_cut {
            let node = &mut self.nodes[at];
            (node.is_cut, node.knows_cut) = (false, false);
            self.calm_ms = now_ms;
            node.follower.stay.clear();
            node.heard.values_mut().for_each(|heard_ms| *heard_ms = now_ms);
            // Also if it had not noticed: the servers end a connection that stands still.
            node.engine().members_connected(now_ms, false);
            node.engine().members_connected(now_ms, true);
            return;
        }
        if !self.may_go(at) {
            return;
        }
        self.seen.insert("cut off");
        let waits_ms = self.random.below(5_000) as u64;
        // What the others have done by now has been told.
        (0..8).for_each(|_| self.tick(STEP_MS));
        let now_ms = self.now_ms;
        self.nodes[at].read();
        let room = |node: &Node| -> BTreeSet<String> {
            let own = node.connections.iter().filter(|(of, _)| *of == 1);
            own.map(|(_, user)| USERS[*user].to_owned()).collect()
        };
        let own = room(&self.nodes[at]);
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<_> = others.filter(|(_, node)| node.is_up && !node.is_cut).collect();
        let held: BTreeSet<_> = others.iter().flat_map(|(_, node)| room(node)).collect();
        let is_sure = self.lossy == 0 && self.keeps_order && !self.random.percent(20);
        let node = &mut self.nodes[at];
        if is_sure && !node.engine().are_members_partial(now_ms, &channel(1)) {
            let known = &node.follower.members;
            let stay = held.difference(&own).filter(|it| known.contains_key(*it));
            node.follower.stay = stay.cloned().collect();
        }
        (node.is_cut, node.knows_ms) = (true, now_ms + waits_ms);
    }

    /// All faults end, and everybody hears of everything.
    fn finish(&mut self) {
        (self.lossy, self.keeps_order) = (0, true);
        for at in 0..self.nodes.len() {
            if self.nodes[at].is_cut {
                self.cut(at);
            }
        }
        for node in self.nodes.iter().filter(|node| node.is_up) {
            let mut issue = || Ticket::new(drop);
            let ready = |at| {
                let later = Later::new(&mut issue);
                let _ = node.engine().members_ready(self.now_ms, &channel(at), later);
            };
            (0..CHANNELS.len()).for_each(ready);
        }
        let end_ms = self.now_ms + QUIET_MS;
        while self.now_ms < end_ms {
            self.tick(500);
            self.nodes.iter_mut().for_each(Node::read);
        }
        for (at, name) in CHANNELS.iter().enumerate() {
            let up = || self.nodes.iter().filter(|node| node.is_up);
            let connections = up().flat_map(|node| &node.connections);
            let here = connections.filter(|(of, _)| *of == at).map(|(_, user)| USERS[*user]);
            let here: BTreeSet<_> = here.collect();
            let lists: Vec<_> = up().map(|node| node.list(self.now_ms, at)).collect();
            for (node, list) in up().zip(&lists) {
                let page = node.engine().members(self.now_ms, &channel(at), None, 999);
                let users: BTreeSet<_> = page.users.iter().map(|user| &**user).collect();
                assert_eq!(users, here, "{} lists {list:?} in {name}", node.name);
                assert_eq!(list, &lists[0], "{} and another one", node.name);
                assert_eq!(node.engine().members_of(&channel(at)) as usize, list.len());
                assert!(!node.engine().are_members_partial(self.now_ms, &channel(at)));
                if at == 1 {
                    let told: Vec<_> = node.follower.members.values().cloned().collect();
                    assert_eq!(&told, list, "{} and its subscribers", node.name);
                    assert!(!node.follower.is_partial, "{} and its subscribers", node.name);
                }
            }
            let connections = up().flat_map(|node| &node.connections);
            let subscriptions = connections.filter(|(of, _)| *of == at).count() as u64;
            up().for_each(|node| node.equipment.check(&channel(at), subscriptions));
            if self.is_careful {
                self.seen.insert("told");
                self.application.lock().unwrap().check(name, subscriptions > 0, &here);
            }
        }
    }
}

/// What has happened in the world of a seed, and its trace.
fn run(seed: u64) -> (BTreeSet<&'static str>, u64) {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        for _ in 0..world.random.below(3) {
            world.step();
        }
        world.tick(STEP_MS);
    }
    world.finish();
    (world.seen, world.trace.finish())
}

#[test]
fn a_seed_gives_the_same_world() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "THRONG_SEED={seed}");
    }
}

#[test]
fn all_processes_list_the_same_members_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("THRONG_SEED") {
        return drop(run(seed));
    }
    let mut seen = BTreeSet::new();
    for seed in 0..number("THRONG_SEEDS").unwrap_or(SEEDS) {
        let found = std::panic::catch_unwind(|| run(seed));
        seen.extend(found.unwrap_or_else(|_| panic!("THRONG_SEED={seed} replays it")).0);
    }
    let all = [
        ["asked", "cut off", "death", "partial", "stop"],
        ["told", "told partial", "told whole", "upgrade without event", "whole"],
    ];
    let all = all.as_flattened();
    assert!(all.iter().all(|it| seen.contains(it)), "only {seen:?}");
}

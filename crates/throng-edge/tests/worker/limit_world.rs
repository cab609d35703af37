//! Random steps with limits per address, user and server key: clients come, follow, poll, refresh
//! their tokens, leave and expire; processes are replaced in between.
//!
//! The oracle counts what each client holds by what the client sees, and how often it has come. It
//! objects if the limiter counts anything else, and if a client is refused that has room, or let in
//! that has none. A seed that fails is printed; `THRONG_SEED=` runs it alone.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use throng_access::limit::{ClientKeys, ClientLimits, LimitSettings, Limiter, Quantity};
use throng_access::server_key::{KeyHash, generate};
use throng_access::{AccessControl, AccessRules, Scope, ServerKey, ServerKeys};
use throng_edge::Settings;

use crate::rig::{Client, Rig};
use crate::token_world::random::Random;
use crate::tokens::{bearer, limited_control, token_of_key};

const SEEDS: u64 = 40;
const STEPS: usize = 250;
const CHANNELS: [&str; 5] = ["a", "b", "c", "d", "e"];
const ADDRESSES: u8 = 3;
const USERS: [&str; 2] = ["ann", "bob"];
const KEYS: [&str; 2] = ["app", "batch"];
/// These divide a second into whole ticks.
const RATES: [u32; 4] = [0, 2, 5, 10];

/// Whom a limit is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Who {
    Address(u8),
    User(&'static str),
    Key(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Plain,
    V1,
    Sse,
    Poll,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It follows channels.
    Open,
    /// Its poll is answered, and the connection is kept.
    Idle,
    Ended,
}

struct Peer {
    client: Client,
    transport: Transport,
    address: u8,
    /// The user or the server key; `None` once it has a token without a user.
    shown: Option<Who>,
    follows: BTreeSet<usize>,
    state: State,
}

impl Peer {
    /// The subjects whose limits it counts against now.
    fn subjects(&self) -> Vec<Who> {
        let shown = self.shown.filter(|_| self.state == State::Open);
        let address = (self.state != State::Ended).then_some(Who::Address(self.address));
        address.into_iter().chain(shown).collect()
    }
}

struct World {
    random: Random,
    rig: Rig,
    access: Arc<AccessControl>,
    limits: LimitSettings,
    keys: [String; KEYS.len()],
    now_ms: u64,
    peers: Vec<Peer>,
    /// Milliseconds left of a second, and when that was so.
    credit_ms: HashMap<Who, (u64, u64)>,
    tokens: u64,
    seen: BTreeSet<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let mut number = |most: usize| [0, 1 + random.below(most) as u32][random.below(2)];
        let mut of_one = |rate: u32| ClientLimits {
            connections: number(5),
            subscriptions: number(9),
            connects_per_s: rate,
            ..ClientLimits::default()
        };
        let rate = |at: u64| RATES[(seed / at % 4) as usize];
        let (address, user, key) = (of_one(rate(1)), of_one(rate(4)), of_one(rate(16)));
        let limits = LimitSettings { address, user, key, bad_tokens_per_s: 0, questions: 0 };
        let keys = KEYS.map(|_| generate().expect("random bytes"));
        let server_key = |(name, text): (&&str, &String)| {
            ServerKey::new(name, KeyHash::of(text).expect("a key"), vec![Scope::Subscribe], None)
        };
        let server_keys = KEYS.iter().zip(&keys).map(server_key).collect();
        let server_keys = ServerKeys::new(server_keys).expect("two keys");
        let (access, _) = limited_control(AccessRules::default(), limits);
        let access =
            Arc::new(AccessControl { server_keys: Arc::new(server_keys).into(), ..access });
        let settings = Settings {
            welcome: false,
            heartbeat: std::time::Duration::ZERO,
            ping_interval: std::time::Duration::ZERO,
            ..Settings::for_tests()
        };
        let mut rig = Rig::with_control(settings, Arc::clone(&access));
        rig.pass(1);
        World {
            random,
            rig,
            access,
            limits,
            keys,
            now_ms: 0,
            peers: Vec::new(),
            credit_ms: HashMap::new(),
            tokens: 0,
            seen: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=34 => self.connect(),
            35..=44 => self.poll_again(),
            45..=54 => self.publish(),
            55..=69 => self.command(),
            70..=74 => self.refresh(),
            75..=84 => self.leave(),
            85..=94 => {
                let ticks = 1 + self.random.below(25) as u32;
                self.now_ms += 100 * u64::from(ticks);
                self.rig.pass(ticks);
            }
            95 => {
                // Short tokens expire, polls end without a message.
                self.now_ms += 31_000;
                self.rig.pass(310);
            }
            _ => {
                self.see("process replaced");
                self.rig.replace_process();
                self.rig.work();
            }
        }
        self.look_at_all();
        self.check();
    }

    fn see(&mut self, what: &str) {
        self.seen.insert(what.to_owned());
    }

    fn limiter(&self) -> &Limiter {
        &self.access.clients.limiter
    }

    fn limits_of(&self, who: Who) -> ClientLimits {
        match who {
            Who::Address(_) => self.limits.address,
            Who::User(_) => self.limits.user,
            Who::Key(_) => self.limits.key,
        }
    }

    fn connections(&self, who: Who) -> u32 {
        self.peers.iter().filter(|peer| peer.subjects().contains(&who)).count() as u32
    }

    fn subscriptions(&self, who: Who) -> u32 {
        let open = self.peers.iter().filter(|peer| peer.state == State::Open);
        let of = open.filter(|peer| peer.subjects().contains(&who));
        of.map(|peer| peer.follows.len() as u32).sum()
    }

    /// Compares what the limiter counts with what clients see.
    fn check(&self) {
        self.rig.worker.check_invariants();
        let (limiter, tagger) = (self.limiter(), &self.access.tagger);
        let compare = |who: Who, keys: ClientKeys| {
            let limits = self.limits_of(who);
            if limits.connections > 0 {
                let held = limiter.held(keys, Quantity::Connections);
                assert_eq!(held, self.connections(who), "connections of {who:?}");
            }
            if limits.subscriptions > 0 {
                let held = limiter.held(keys, Quantity::Subscriptions);
                assert_eq!(held, self.subscriptions(who), "subscriptions of {who:?}");
            }
        };
        for last in 1..=ADDRESSES {
            compare(Who::Address(last), limiter.address(Some(address(last))));
        }
        for user in USERS {
            compare(Who::User(user), limiter.user(Some(tagger.user(user))));
        }
        for (at, name) in KEYS.iter().enumerate() {
            compare(Who::Key(at), limiter.server_key(Some(tagger.server_key(name))));
        }
    }

    /// True if a connect is within the rate; if so, and if it `counts`, takes it.
    fn is_within_rate(&mut self, who: Who, counts: bool) -> bool {
        let rate = self.limits_of(who).connects_per_s;
        if rate == 0 {
            return true;
        }
        let (credit, at) = self.credit_ms.get(&who).copied().unwrap_or((1000, self.now_ms));
        let credit = 1000.min(credit + self.now_ms - at);
        let cost = u64::from(1000 / rate);
        let left = if counts { credit.saturating_sub(cost) } else { credit };
        self.credit_ms.insert(who, (left, self.now_ms));
        credit >= cost
    }

    fn has_room(&self, who: Who, more: u32) -> bool {
        let limits = self.limits_of(who);
        let is_below = |limit: u32, count: u32| limit == 0 || count <= limit;
        match more {
            0 => is_below(limits.connections, self.connections(who) + 1),
            more => is_below(limits.subscriptions, self.subscriptions(who) + more),
        }
    }

    /// True if a client gets in, as the guide says it. Charges what the server charges.
    fn expects_connect(&mut self, at: u8, shown: Who, channels: u32, is_new: bool) -> bool {
        let here = Who::Address(at);
        if is_new {
            if !self.is_within_rate(here, false) || !self.has_room(here, 0) {
                return false;
            }
            self.is_within_rate(here, true);
        }
        if !self.is_within_rate(shown, false) || !self.has_room(shown, 0) {
            return false;
        }
        self.is_within_rate(shown, true);
        channels == 0 || (self.has_room(here, channels) && self.has_room(shown, channels))
    }

    fn token(&mut self, user: Option<&str>) -> String {
        self.tokens += 1;
        let now_s = self.rig.now_s();
        let life_s = [2, 3600][self.random.below(2)];
        let sub = user.map_or(String::new(), |user| format!(r#""sub": "{user}", "#));
        let (number, exp) = (self.tokens, now_s + life_s);
        let grants = r#""throng": {"subscribe": ["*"]}"#;
        let claims =
            format!(r#"{{{sub}"jti": "t{number}", "iat": {now_s}, "exp": {exp}, {grants}}}"#);
        token_of_key("a", &claims)
    }

    fn credential(&mut self, shown: Who) -> String {
        match shown {
            Who::Key(at) => bearer(&self.keys[at]),
            Who::User(user) => bearer(&self.token(Some(user))),
            Who::Address(_) => unreachable!("an address shows nothing"),
        }
    }

    fn connect(&mut self) {
        let at = 1 + self.random.below(ADDRESSES.into()) as u8;
        let shown = match self.random.below(3) {
            0 => Who::Key(self.random.below(KEYS.len())),
            _ => Who::User(USERS[self.random.below(USERS.len())]),
        };
        let transport = [Transport::Plain, Transport::V1, Transport::Sse, Transport::Poll]
            [self.random.below(4)];
        let least = usize::from(transport != Transport::V1);
        let first = self.random.below(CHANNELS.len());
        let count = least + self.random.below(3);
        let follows: BTreeSet<_> = (first..first + count).map(|at| at % CHANNELS.len()).collect();
        let head = self.request(transport, shown, &follows);
        let expected = self.expects_connect(at, shown, follows.len() as u32, true);
        let client = self.rig.connect_from(Some(address(at)), &head);
        self.rig.work();
        let state = self.outcome(&client.received(), transport, expected);
        self.peers.push(Peer {
            client,
            transport,
            address: at,
            shown: Some(shown),
            follows,
            state,
        });
    }

    fn request(&mut self, transport: Transport, shown: Who, follows: &BTreeSet<usize>) -> String {
        let mut path = "/subscribe?".to_owned();
        follows.iter().for_each(|&at| path += &format!("channel={}&", CHANNELS[at]));
        let protocol = |name: &str| {
            format!(
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {name}\r\n",
            )
        };
        let fields = match transport {
            Transport::Plain => protocol("throng.plain"),
            Transport::V1 => protocol("throng.v1"),
            Transport::Sse => "Accept: text/event-stream\r\n".to_owned(),
            Transport::Poll => {
                path += "wait=30&";
                String::new()
            }
        };
        let path = path.trim_end_matches(['&', '?']);
        let shown = self.credential(shown);
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{shown}{fields}\r\n")
    }

    /// Checks what has come of a request.
    fn outcome(&mut self, received: &str, transport: Transport, expected: bool) -> State {
        let is_limited =
            received.contains("too_many_requests") || received.contains("reconnect in ");
        let is_waiting = transport == Transport::Poll && received.is_empty();
        let is_open = is_waiting || received.contains("Throng-Connection: ");
        assert!(is_limited != is_open, "{transport:?}: {received}");
        assert_eq!(is_open, expected, "{transport:?}: {received}");
        self.see(&format!("{transport:?} {}", if is_open { "accepted" } else { "refused" }));
        if is_open { State::Open } else { State::Ended }
    }

    fn pick(&mut self, is_it: impl Fn(&Peer) -> bool) -> Option<usize> {
        let found: Vec<_> = (0..self.peers.len()).filter(|&at| is_it(&self.peers[at])).collect();
        (!found.is_empty()).then(|| found[self.random.below(found.len())])
    }

    fn poll_again(&mut self) {
        let Some(at) = self.pick(|peer| peer.state == State::Idle) else { return };
        let (here, shown) = (self.peers[at].address, self.peers[at].shown.expect("a poll's"));
        let follows = self.peers[at].follows.clone();
        let head = self.request(Transport::Poll, shown, &follows);
        let expected = self.expects_connect(here, shown, follows.len() as u32, false);
        self.rig.send(&self.peers[at].client, head.as_bytes());
        self.rig.work();
        let received = self.peers[at].client.received();
        self.peers[at].state = self.outcome(&received, Transport::Poll, expected);
        self.see("polled again");
    }

    fn publish(&mut self) {
        let channel = CHANNELS[self.random.below(CHANNELS.len())];
        self.rig.publish(channel, "message", None);
        self.rig.work();
    }

    fn open_v1(&mut self) -> Option<usize> {
        self.pick(|peer| peer.state == State::Open && peer.transport == Transport::V1)
    }

    fn say(&mut self, at: usize, command: &str) -> String {
        self.rig.send_frame(&self.peers[at].client, command);
        self.rig.work();
        self.peers[at].client.received()
    }

    /// A client follows or leaves a channel.
    fn command(&mut self) {
        let Some(at) = self.open_v1() else { return };
        let channel = self.random.below(CHANNELS.len());
        let follows = self.peers[at].follows.contains(&channel);
        let kind = if follows { "unsubscribe" } else { "subscribe" };
        let command = format!(r#"{{"type":"{kind}","channel":"{}"}}"#, CHANNELS[channel]);
        let subjects = self.peers[at].subjects();
        let has_room = subjects.iter().all(|&who| self.has_room(who, 1));
        let received = self.say(at, &command);
        if follows {
            assert!(received.contains(r#""type":"unsubscribed""#), "{received}");
            self.peers[at].follows.remove(&channel);
        } else if has_room {
            assert!(received.contains(r#""type":"subscribed""#), "{received}");
            self.peers[at].follows.insert(channel);
            self.see("subscribed");
        } else {
            assert!(received.contains(r#""code":"too_many_requests""#), "{received}");
            self.see("subscription refused");
        }
    }

    /// A client shows a newer token: of its user, or none of a user in place of a server key.
    fn refresh(&mut self) {
        let Some(at) = self.open_v1() else { return };
        let user = match self.peers[at].shown {
            Some(Who::User(user)) => Some(user),
            _ => None,
        };
        let token = self.token(user);
        let received = self.say(at, &format!(r#"{{"type":"auth","token":"{token}"}}"#));
        assert!(received.contains(r#""type":"authenticated""#), "{received}");
        if let Some(Who::Key(_)) = self.peers[at].shown {
            self.peers[at].shown = None;
            self.see("key replaced");
        } else {
            self.see("refreshed");
        }
    }

    fn leave(&mut self) {
        let Some(at) = self.pick(|peer| peer.state != State::Ended) else { return };
        self.rig.hang_up(&self.peers[at].client);
        self.peers[at].state = State::Ended;
    }

    /// Reads what clients have received: answers to polls, and how connections end.
    fn look_at_all(&mut self) {
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if peer.state == State::Ended {
                continue;
            }
            let received = peer.client.received();
            let is_answered = peer.transport == Transport::Poll && received.starts_with("HTTP/1.1");
            let ends = received.contains("expired") || received.ends_with("0\r\n\r\n");
            if peer.client.is_closed() || (ends && !is_answered) {
                peer.state = State::Ended;
                self.see("ended by the server");
            } else if is_answered {
                peer.state = State::Idle;
                self.see("poll answered");
            }
        }
    }

    /// All leave; then nothing counts.
    fn end(&mut self) {
        for at in 0..self.peers.len() {
            if self.peers[at].state != State::Ended {
                self.rig.hang_up(&self.peers[at].client);
                self.peers[at].state = State::Ended;
            }
        }
        self.rig.work();
        self.check();
        assert_eq!(self.limiter().holders(), 0);
    }
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

/// Events that must happen over all seeds.
const INTERESTING: &[&str] = &[
    "Plain accepted",
    "Plain refused",
    "Poll accepted",
    "Poll refused",
    "Sse accepted",
    "Sse refused",
    "V1 accepted",
    "V1 refused",
    "ended by the server",
    "key replaced",
    "poll answered",
    "polled again",
    "process replaced",
    "refreshed",
    "subscribed",
    "subscription refused",
];

#[test]
fn limits_count_what_clients_hold() {
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

//! Random steps with tokens: clients of several users come with tokens that expire, that are
//! refreshed, revoked, or signed with a key that comes later; processes are replaced in between.
//!
//! The oracle knows what each token grants and when it ends. It objects if a message reaches a
//! connection that may not have it, if one does not reach a connection that may, and if a
//! connection ends for no reason or does not end. A seed that fails is printed; `THRONG_SEED=` runs
//! it alone.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, mpsc};

use throng_access::authenticator::{Fetched, Now};
use throng_access::keys::RefreshSettings;
use throng_access::revocation::Storage;
use throng_access::token::TokenId;
use throng_access::{AccessControl, AccessRules, Policy, Revocation, RevocationLog};
use throng_core::{ChannelName, ConnectionScan, Notification, ScanAction, ScanTarget, Ticket};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};
use crate::tokens::{bearer, control_and_revocations, key, token_of_key};

const SEEDS: u64 = 40;
const STEPS: usize = 300;
const USERS: [&str; 3] = ["ann", "bob", "*"];
const CHANNELS: [&str; 5] = ["a", "b", "c", "private/ann", "private/bob"];
/// What a token is accepted beyond its end, by the default policy.
const LEEWAY_S: u64 = 10;

/// A generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A token, as its issuer knows it.
#[derive(Debug, Clone)]
struct Token {
    text: String,
    id: String,
    user: Option<&'static str>,
    /// The channels that it grants.
    granted: BTreeSet<usize>,
    issued_s: u64,
    expires_s: u64,
    /// It is signed with the key that the server learns later.
    has_late_key: bool,
}

impl Token {
    fn is_over(&self, now_s: u64) -> bool {
        now_s >= self.expires_s + LEEWAY_S
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Plain,
    V1,
    Sse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The server waits for the key of its token.
    Waiting,
    Open,
    Ended,
}

/// A client and what it may expect.
struct Peer {
    client: Client,
    transport: Transport,
    token: Token,
    state: State,
    follows: BTreeSet<usize>,
    /// The channel that its request names.
    asked: Option<usize>,
}

#[derive(Default)]
struct Disk(Vec<u8>);

impl Storage for Disk {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.truncate(length as usize);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

struct World {
    random: Random,
    rig: Rig,
    access: Arc<AccessControl>,
    revocations: RevocationLog<Disk>,
    /// The server has the late key.
    has_late_key: bool,
    revoked_ids: BTreeSet<String>,
    /// Per user, the moment before which tokens are revoked.
    revoked_before_s: [u64; USERS.len()],
    peers: Vec<Peer>,
    tokens: u64,
    published: u64,
    /// What has happened, so that the test can tell that all of it does.
    seen: BTreeSet<&'static str>,
}

impl World {
    fn new(seed: u64) -> World {
        let (access, revocations) = control_and_revocations(AccessRules::default());
        let access = Arc::new(access);
        let tokens = access.tokens.as_ref().expect("it has keys");
        tokens.add_url(RefreshSettings::default(), Now { steady_ms: 1, unix_s: 0 });
        let settings = Settings {
            welcome: false,
            heartbeat: std::time::Duration::ZERO,
            ping_interval: std::time::Duration::ZERO,
            ..Settings::for_tests()
        };
        let log = RevocationLog::open(Disk::default(), revocations, &Policy::default(), 1000, 0);
        World {
            random: Random(seed),
            rig: Rig::with_control(settings, Arc::clone(&access)),
            access,
            revocations: log.expect("an empty disk"),
            has_late_key: false,
            revoked_ids: BTreeSet::new(),
            revoked_before_s: [0; USERS.len()],
            peers: Vec::new(),
            tokens: 0,
            published: 0,
            seen: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=24 => self.connect(),
            25..=49 => self.publish(),
            50..=59 => {
                let ticks = 1 + self.random.below(40) as u32;
                self.rig.pass(ticks);
            }
            60..=74 => self.refresh(),
            75..=84 => self.command(),
            85..=88 => self.revoke(),
            89..=91 => self.learn_key(),
            92..=94 => self.count_user(),
            95..=97 => {
                self.seen.insert("process replaced");
                self.rig.replace_process();
            }
            _ => self.leave(),
        }
        self.rig.worker.check_invariants();
        self.look_at_all(None);
    }

    fn token(&mut self, user: Option<&'static str>, is_late: bool) -> Token {
        self.tokens += 1;
        let now_s = self.rig.now_s();
        let granted: BTreeSet<usize> =
            (0..CHANNELS.len()).filter(|_| self.random.percent(50)).collect();
        let patterns: Vec<_> = granted
            .iter()
            .map(|&at| match (CHANNELS[at].strip_prefix("private/"), user) {
                // As issuers write it who have one claim for everybody.
                (Some(owner), Some(user)) if owner == user => "\"private/{user}\"".to_owned(),
                _ => format!("\"{}\"", CHANNELS[at]),
            })
            .collect();
        let id = format!("t{}", self.tokens);
        let life_s = [1, 5, 60, 600][self.random.below(4)];
        let sub = user.map_or(String::new(), |user| format!(r#""sub": "{user}", "#));
        let claims = format!(
            r#"{{{sub}"jti": "{id}", "iat": {now_s}, "exp": {}, "throng": {{"subscribe": [{}]}}}}"#,
            now_s + life_s,
            patterns.join(", "),
        );
        Token {
            text: token_of_key(if is_late { "b" } else { "a" }, &claims),
            id,
            user,
            granted,
            issued_s: now_s,
            expires_s: now_s + life_s,
            has_late_key: is_late,
        }
    }

    fn random_user(&mut self) -> Option<&'static str> {
        let at = self.random.below(USERS.len() + 1);
        USERS.get(at).copied()
    }

    fn is_revoked(&self, token: &Token) -> bool {
        let before_s = token.user.map_or(0, |user| {
            self.revoked_before_s
                [USERS.iter().position(|known| *known == user).expect("one of them")]
        });
        self.revoked_ids.contains(&token.id) || token.issued_s < before_s
    }

    fn is_good(&self, token: &Token) -> bool {
        !token.is_over(self.rig.now_s())
            && !self.is_revoked(token)
            && (!token.has_late_key || self.has_late_key)
    }

    fn connect(&mut self) {
        let user = self.random_user();
        let is_late = self.random.percent(25);
        // Some show a token that they have had for long.
        let old = (self.random.percent(20) && !self.peers.is_empty()).then(|| {
            let at = self.random.below(self.peers.len());
            self.peers[at].token.clone()
        });
        let token = old.unwrap_or_else(|| self.token(user, is_late));
        let transport = [Transport::Plain, Transport::V1, Transport::Sse][self.random.below(3)];
        let asked = (transport != Transport::V1).then(|| self.random.below(CHANNELS.len()));
        let path = asked
            .map_or("/subscribe".to_owned(), |at| format!("/subscribe?channel={}", CHANNELS[at]));
        let fields = if transport == Transport::Sse {
            bearer(&token.text) + "Accept: text/event-stream\r\n"
        } else {
            let protocol = if transport == Transport::V1 { "throng.v1" } else { "throng.plain" };
            format!(
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                 Sec-WebSocket-Protocol: {protocol}, throng.token.{}\r\n",
                token.text
            )
        };
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        let client = self.rig.connect(&head);
        self.rig.work();
        let follows = BTreeSet::new();
        let state = State::Waiting;
        self.peers.push(Peer { client, transport, token, state, follows, asked });
        self.look_at(self.peers.len() - 1, None);
    }

    /// Publishes, and checks who gets it.
    fn publish(&mut self) {
        let at = self.random.below(CHANNELS.len());
        self.published += 1;
        let text = format!("<m{}>", self.published);
        self.rig.publish(CHANNELS[at], &text, None);
        self.rig.work();
        self.look_at_all(Some((at, &text)));
    }

    fn look_at_all(&mut self, published: Option<(usize, &str)>) {
        (0..self.peers.len()).for_each(|at| self.look_at(at, published));
    }

    /// Reads what a client has received.
    fn look_at(&mut self, at: usize, published: Option<(usize, &str)>) {
        let received = self.peers[at].client.received();
        let now_s = self.rig.now_s();
        let (is_good, is_revoked) =
            (self.is_good(&self.peers[at].token), self.is_revoked(&self.peers[at].token));
        let peer = &mut self.peers[at];
        let context = format!("{:?} {:?} {:?}: {received}", peer.transport, peer.state, peer.token);
        if peer.state == State::Waiting && !received.is_empty() {
            let is_allowed = peer.asked.is_none_or(|at| peer.token.granted.contains(&at));
            let opens = received.contains("Throng-Connection: ");
            if opens {
                assert!(is_good && is_allowed, "opened: {context}");
                (peer.state, peer.follows) = (State::Open, peer.asked.into_iter().collect());
                self.seen.insert("opened");
            } else {
                let may_refuse = !is_good || !is_allowed || peer.token.has_late_key;
                assert!(may_refuse, "refused: {context}");
                peer.state = State::Ended;
                self.seen.insert("refused");
            }
        }
        if let Some((channel, text)) = published {
            let expected = peer.state == State::Open && peer.follows.contains(&channel);
            assert_eq!(received.contains(text), expected, "{text} on {channel}: {context}");
            self.seen.insert(if expected { "delivered" } else { "kept away" });
            if expected {
                assert!(peer.token.granted.contains(&channel), "{context}");
                assert!(!peer.token.is_over(now_s) && !is_revoked, "{context}");
            }
        } else {
            assert!(!received.contains("<m"), "a message of before: {context}");
        }
        let ends = received.contains("the token has expired") || received.contains("is revoked");
        if peer.state == State::Open && ends {
            let is_over = peer.token.is_over(now_s) || is_revoked;
            assert!(is_over, "ended: {context}");
            peer.state = State::Ended;
            self.seen.insert(if is_revoked { "revoked" } else { "expired" });
        }
        let is_over = peer.token.is_over(now_s) || is_revoked;
        assert!(peer.state != State::Open || !is_over, "still open: {context}");
        if received.contains(r#""type":"expiring""#) {
            assert!(peer.transport == Transport::V1 && peer.state != State::Waiting, "{context}");
            self.seen.insert("expiring");
        }
    }

    fn open_v1(&mut self) -> Option<usize> {
        let is_it = |peer: &Peer| peer.state == State::Open && peer.transport == Transport::V1;
        let open: Vec<_> = (0..self.peers.len()).filter(|&at| is_it(&self.peers[at])).collect();
        (!open.is_empty()).then(|| open[self.random.below(open.len())])
    }

    /// A client shows another token, mostly of its user.
    fn refresh(&mut self) {
        let Some(at) = self.open_v1() else { return };
        let own = self.peers[at].token.user;
        let user = if self.random.percent(80) { own } else { self.random_user() };
        let is_late = self.has_late_key && self.random.percent(30);
        let token = self.token(user, is_late);
        let command = format!(r#"{{"type":"auth","token":"{}"}}"#, token.text);
        self.rig.send_frame(&self.peers[at].client, &command);
        self.rig.work();
        let received = self.peers[at].client.received();
        let is_good = self.is_good(&token) && user == own;
        let peer = &mut self.peers[at];
        let context = format!("{token:?} for {:?}: {received}", peer.token);
        assert_eq!(received.contains(r#""type":"authenticated""#), is_good, "{context}");
        if !is_good {
            assert!(received.contains(r#""type":"error""#), "{context}");
            self.seen.insert("refresh refused");
            return;
        }
        for &channel in &peer.follows {
            let notice = format!(r#""type":"unsubscribed","channel":"{}""#, CHANNELS[channel]);
            let ends = !token.granted.contains(&channel);
            assert_eq!(received.contains(&notice), ends, "{context}");
            self.seen.insert(if ends { "subscription ended" } else { "subscription kept" });
        }
        peer.follows.retain(|channel| token.granted.contains(channel));
        peer.token = token;
        self.seen.insert("refreshed");
    }

    /// A client follows or leaves a channel.
    fn command(&mut self) {
        let Some(at) = self.open_v1() else { return };
        let channel = self.random.below(CHANNELS.len());
        let follows = self.peers[at].follows.contains(&channel);
        let kind = if follows { "unsubscribe" } else { "subscribe" };
        let command = format!(r#"{{"type":"{kind}","channel":"{}"}}"#, CHANNELS[channel]);
        self.rig.send_frame(&self.peers[at].client, &command);
        self.rig.work();
        let received = self.peers[at].client.received();
        let peer = &mut self.peers[at];
        let context = format!("{kind} {}: {:?} {received}", CHANNELS[channel], peer.token);
        if follows {
            assert!(received.contains(r#""type":"unsubscribed""#), "{context}");
            peer.follows.remove(&channel);
        } else if peer.token.granted.contains(&channel) {
            assert!(received.contains(r#""type":"subscribed""#), "{context}");
            peer.follows.insert(channel);
            self.seen.insert("subscribed");
        } else {
            assert!(received.contains(r#""code":"forbidden""#), "{context}");
            self.seen.insert("subscription denied");
        }
    }

    /// Revokes a token, or all that a user was issued.
    fn revoke(&mut self) {
        let now_s = self.rig.now_s();
        let revocation = if self.random.percent(50) {
            let at = self.random.below(USERS.len());
            self.revoked_before_s[at] = now_s + 1;
            Revocation::User { user: USERS[at].into(), before_s: now_s as u32 + 1 }
        } else {
            let Some(peer) = self.peers.last() else { return };
            self.revoked_ids.insert(peer.token.id.clone());
            Revocation::Token { id: TokenId::of(&peer.token.id), at_s: now_s as u32 }
        };
        let all = std::slice::from_ref(&revocation);
        self.revocations.revoke(all, now_s).expect("the disk takes it");
        let tags = self.access.tagger.of_revocation(&revocation);
        self.scan(ScanTarget::Sessions(vec![tags]), ScanAction::Revoke);
    }

    /// What the worker finds.
    fn scan(&mut self, target: ScanTarget, action: ScanAction) -> u64 {
        let (sender, answer) = mpsc::channel();
        let ticket = Ticket::new(move |scanned| drop(sender.send(scanned)));
        self.rig.queue.post(Notification::Scan(ConnectionScan::new(target, action, 1, ticket)));
        self.rig.work();
        answer.try_recv().expect("the worker is done").expect("an answer").count
    }

    fn count_user(&mut self) {
        let user = USERS[self.random.below(USERS.len())];
        let tags = self.access.tagger.of_user(user);
        let target = ScanTarget::User { inbox: ChannelName::user(user), tags };
        let found = self.scan(target, ScanAction::List { limit: 0 });
        let is_it = |peer: &&Peer| peer.state == State::Open && peer.token.user == Some(user);
        assert_eq!(found, self.peers.iter().filter(is_it).count() as u64, "connections of {user}");
        self.seen.insert("counted");
    }

    /// The key set with the late key is fetched, if a token has asked for it.
    fn learn_key(&mut self) {
        let tokens = self.access.tokens.as_ref().expect("it has keys");
        let now_s = self.rig.now_s();
        let now = Now { steady_ms: 1000 * now_s, unix_s: now_s };
        for source in tokens.begin(now) {
            let fetched = Fetched { keys: vec![key("b")], lifetime_ms: None };
            tokens.fetched(source, Some(fetched), now).expect("the keys fit");
            self.has_late_key = true;
            self.seen.insert("key learned");
        }
        self.rig.work();
    }

    fn leave(&mut self) {
        let here = |peer: &Peer| peer.state != State::Ended;
        let at = self.peers.iter().position(here);
        if let Some(at) = at {
            self.rig.hang_up(&self.peers[at].client);
            self.peers[at].state = State::Ended;
        }
    }
}

/// What has to happen over all seeds.
const INTERESTING: &[&str] = &[
    "counted",
    "delivered",
    "expired",
    "expiring",
    "kept away",
    "key learned",
    "opened",
    "process replaced",
    "refresh refused",
    "refreshed",
    "refused",
    "revoked",
    "subscribed",
    "subscription denied",
    "subscription ended",
    "subscription kept",
];

#[test]
fn no_message_reaches_a_client_that_may_not_have_it() {
    let only = std::env::var("THRONG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    let mut seen = BTreeSet::new();
    for seed in seeds.clone() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            assert_eq!(world.rig.count(Counter::ClosedForViolation), 0);
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
    let missing: Vec<_> = INTERESTING.iter().filter(|event| !seen.contains(*event)).collect();
    assert!(missing.is_empty() || seeds.end - seeds.start < SEEDS, "never happened: {missing:?}");
}

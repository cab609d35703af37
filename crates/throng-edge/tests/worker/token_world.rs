//! Random steps with tokens: clients of several users come with tokens that expire, that are
//! refreshed, revoked, or signed with a key that comes later; some show theirs only on a connection
//! that stands, in time or not; the application decides late or never; clients do not read for a
//! while; processes are replaced in the middle of all that.
//!
//! The oracle knows what each token grants, when it ends, and in which step each message began to
//! be written. It objects if a message reaches a connection that may not have it then, if one does
//! not reach a connection that may, and if a connection ends for no reason or does not end. A seed
//! that fails is printed; `THRONG_SEED=` runs it alone, and `THRONG_SEEDS=` runs as many.
//!
//! | module | what it is |
//! |---|---|
//! | `facts` | what the oracle knows |
//! | `peer` | a client, and the checks of what it is written |
//! | `stream` | splits that into pieces, each with the step in which it began |
//! | `late` | the application, which decides later |
//! | `random` | random numbers |

mod facts;
mod late;
mod peer;
pub(crate) mod random;
mod stream;

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, mpsc};

use throng_access::authenticator::{Fetched, Now};
use throng_access::keys::RefreshSettings;
use throng_access::revocation::RevocationStorage;
use throng_access::token::TokenId;
use throng_access::{Access, AccessControl, AccessRules, Policy, Revocation, RevocationLog};
use throng_core::{
    ChannelName, ConnectionScan, Notification, ScanAction, ScanTarget, Scanned, Ticket,
};
use throng_edge::{Counter, LateIdentity, Limits, Settings};

use crate::rig::Rig;
use crate::tokens::{bearer, control_and_revocations, key, token_of_key};
use facts::{Facts, Revoked, Token};
use late::LatePolicy;
use peer::{Command, Peer, State, Transport};
use random::Random;

const SEEDS: u64 = 60;
const STEPS: usize = 400;
const USERS: [&str; 3] = ["ann", "bob", "*"];
const CHANNELS: [&str; 7] =
    ["a", "b", "c", "private/ann", "private/bob", APP_DENIES, APP_ALLOWS_BRIEFLY];
/// The channel that the application denies to all.
const APP_DENIES: &str = "app/no";
/// The channel that the application allows for [`BRIEF_MS`] from its decision on.
const APP_ALLOWS_BRIEFLY: &str = "app/brief";
const BRIEF_MS: u64 = 8000;
/// Seconds for which the default policy accepts a token after its end.
const LEEWAY_S: u64 = 10;
/// How long a client may be nobody.
const NOBODY_MS: u64 = 10_000;
/// How long an answer about a client is awaited.
const WAIT_MS: u64 = 5_000;
/// Clients read again after this time: later, the server gives up what they have not read.
const STALLED_MS_MAX: u64 = 20_000;

#[derive(Default)]
pub(crate) struct Disk(Vec<u8>);

impl RevocationStorage for Disk {
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
    application: Arc<LatePolicy>,
    revocations: RevocationLog<Disk>,
    /// Scans for revoked tokens that are under way, with the index of their revocation.
    scans: Vec<(usize, mpsc::Receiver<Option<Scanned>>)>,
    peers: Vec<Peer>,
    tokens: u64,
    published: u64,
    facts: Facts,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let (access, revocations) = control_and_revocations(AccessRules::default());
        let percent = [0, 0, 20, 60][random.below(4)];
        let application = Arc::new(LatePolicy::new(percent, Random(seed + 1)));
        let policy = Arc::clone(&application) as Arc<dyn Access>;
        let access = Arc::new(AccessControl { policy, ..access });
        let tokens = access.tokens.as_ref().expect("it has keys");
        tokens.add_url(RefreshSettings::default(), Now { steady_ms: 1, unix_s: 0 });
        let slice_bytes = [60, 1000, 256 << 10][random.below(3)];
        let within = Some(std::time::Duration::from_millis(NOBODY_MS));
        let settings = Settings {
            late_identity: LateIdentity { within, may_sign_in: false },
            welcome: false,
            heartbeat: std::time::Duration::ZERO,
            ping_interval: std::time::Duration::ZERO,
            limits: Limits { slice_bytes, ..Limits::default() },
            ..Settings::for_tests()
        };
        let log = RevocationLog::open(Disk::default(), revocations, &Policy::default(), 1000, 0);
        let mut rig = Rig::with_control(settings, Arc::clone(&access));
        // From now on the worker has the time of the rig.
        rig.pass(1);
        let facts = Facts { is_late: application.is_late(), ..Facts::default() };
        World {
            random,
            rig,
            access,
            application,
            revocations: log.expect("an empty disk"),
            scans: Vec::new(),
            peers: Vec::new(),
            tokens: 0,
            published: 0,
            facts,
        }
    }

    fn step(&mut self) {
        self.begin_step();
        match self.random.below(100) {
            0..=12 => self.connect(),
            13..=15 => self.connect_as_nobody(),
            16..=33 => self.publish(),
            34..=47 => drop(self.rig.worker.work(true)),
            48..=57 => self.pass(),
            58..=64 => self.refresh(),
            65..=67 => self.sign_in(),
            68..=76 => self.command(),
            77..=79 => self.revoke(),
            80..=81 => self.learn_key(),
            82..=89 => self.stall_or_read(),
            90..=93 => self.decide(),
            94..=96 => {
                self.facts.seen.insert("process replaced");
                if self.application.open() > 0 {
                    self.facts.seen.insert("process replaced before a decision");
                }
                let now_ms = self.facts.now_ms();
                for peer in &mut self.peers {
                    peer.note_replaced(now_ms);
                }
                self.rig.replace_process();
            }
            97 => self.leave(),
            98 => self.count_user(),
            _ => self.rest(),
        }
        self.end_step();
    }

    fn begin_step(&mut self) {
        self.facts.times_ms.push(self.rig.now_ms());
        self.application.set_now(self.rig.now_ms());
    }

    fn end_step(&mut self) {
        self.rig.worker.check_invariants();
        self.peers.iter_mut().for_each(|peer| peer.look(&mut self.facts));
        let step = self.facts.step();
        self.scans.retain(|(revocation, answer)| match answer.try_recv() {
            Ok(scanned) => {
                assert!(scanned.is_some(), "a scan ends with an answer");
                self.facts.revocations[*revocation].1 = Some(step);
                false
            }
            Err(_) => true,
        });
    }

    /// Lets the worker do all that it can, and checks every client that reads.
    fn settle(&mut self) {
        self.rig.work();
        self.end_step();
        self.begin_step();
        let open = self.application.open();
        assert!(self.scans.is_empty(), "a scan ends when the worker has nothing else to do");
        self.peers.iter_mut().for_each(|peer| peer.check_at_rest(open, &self.facts));
    }

    fn pass(&mut self) {
        let ticks = 1 + self.random.below(40) as u32;
        self.settle();
        self.rig.pass(ticks);
        // A connection whose session needs attention has its other deadlines a tick later.
        self.rig.pass(1);
        // Output from now on is written at the new time.
        *self.facts.times_ms.last_mut().expect("this step") = self.rig.now_ms();
        self.application.set_now(self.rig.now_ms());
        let now_ms = self.facts.now_ms();
        for at in 0..self.peers.len() {
            if self.peers[at].stalled_ms.is_some_and(|since| since + STALLED_MS_MAX <= now_ms) {
                self.read(at);
            }
        }
        self.settle();
    }

    /// All clients read, all decisions are made, and what has waited too long is refused.
    fn rest(&mut self) {
        (0..self.peers.len()).for_each(|at| self.read(at));
        while self.application.open() > 0 {
            self.application.answer_one(&mut self.random);
            self.rig.work();
        }
        self.settle();
        self.facts.seen.insert("at rest");
    }

    fn token(&mut self, user: Option<&'static str>, is_late: bool) -> Token {
        self.tokens += 1;
        let now_s = self.rig.now_s();
        let granted: BTreeSet<usize> =
            (0..CHANNELS.len()).filter(|_| self.random.percent(60)).collect();
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
        let first = self.random.below(CHANNELS.len());
        let asked: Vec<usize> = match transport {
            Transport::V1 if self.random.percent(40) => Vec::new(),
            Transport::V1 if self.random.percent(40) => vec![first, (first + 1) % CHANNELS.len()],
            _ => vec![first],
        };
        let query: Vec<_> = asked.iter().map(|&at| format!("channel={}", CHANNELS[at])).collect();
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
        let path = format!("/subscribe?{}", query.join("&"));
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        let client = self.rig.connect(&head);
        self.peers.push(Peer::new(client, transport, token, asked, &self.facts));
    }

    /// A client comes without a token, which it shows later.
    fn connect_as_nobody(&mut self) {
        let user = self.random_user();
        let is_late = self.random.percent(25);
        let token = self.token(user, is_late);
        let client = self.rig.v1();
        self.peers.push(Peer::nobody(client, token, &self.facts));
    }

    /// A client that has come without a token shows one, or tries to follow something before.
    fn sign_in(&mut self) {
        let Some(at) = self.some(|peer| peer.state == State::Nobody) else { return };
        if self.random.percent(20) && self.peers[at].commands.is_empty() {
            let channel = self.random.below(CHANNELS.len());
            self.peers[at].commands.push_back(Command::Subscribe(channel));
            let command = format!(r#"{{"type":"subscribe","channel":"{}"}}"#, CHANNELS[channel]);
            return self.rig.send_frame(&self.peers[at].client, &command);
        }
        let token = if self.random.percent(50) {
            self.peers[at].token.clone()
        } else {
            let (user, is_late) = (self.random_user(), self.random.percent(20));
            self.token(user, is_late)
        };
        let was_good = self.facts.is_good(&token);
        let command = format!(r#"{{"type":"auth","token":"{}"}}"#, token.text);
        self.peers[at].commands.push_back(Command::Auth(token, was_good));
        self.rig.send_frame(&self.peers[at].client, &command);
    }

    fn publish(&mut self) {
        let at = self.random.below(CHANNELS.len());
        self.published += 1;
        let text = format!("<m{}>", self.published);
        self.rig.publish(CHANNELS[at], &text, None);
        self.facts.logs[at].push(text);
    }

    /// One of the clients for which this holds.
    fn some(&mut self, is_it: impl Fn(&Peer) -> bool) -> Option<usize> {
        let fit: Vec<_> = (0..self.peers.len()).filter(|&at| is_it(&self.peers[at])).collect();
        (!fit.is_empty()).then(|| fit[self.random.below(fit.len())])
    }

    fn open_v1(&mut self) -> Option<usize> {
        self.some(|peer| peer.state == State::Open && peer.transport == Transport::V1)
    }

    /// A client shows another token, mostly of its user.
    fn refresh(&mut self) {
        let Some(at) = self.open_v1() else { return };
        let own = self.peers[at].token.user;
        let user = if self.random.percent(80) { own } else { self.random_user() };
        let is_late = self.random.percent(20);
        let token = self.token(user, is_late);
        let was_good = self.facts.is_good(&token);
        let command = format!(r#"{{"type":"auth","token":"{}"}}"#, token.text);
        self.peers[at].commands.push_back(Command::Auth(token, was_good));
        self.rig.send_frame(&self.peers[at].client, &command);
    }

    /// A client follows or leaves a channel.
    fn command(&mut self) {
        let Some(at) = self.open_v1() else { return };
        let channel = self.random.below(CHANNELS.len());
        let is_about = |command: &Command| {
            matches!(command, Command::Subscribe(other) | Command::Unsubscribe(other)
                if *other == channel)
        };
        let peer = &mut self.peers[at];
        if peer.commands.iter().any(is_about) {
            return;
        }
        let kind = if peer.follows.contains_key(&channel) {
            peer.commands.push_back(Command::Unsubscribe(channel));
            "unsubscribe"
        } else {
            peer.note_asked(channel, &self.facts);
            peer.commands.push_back(Command::Subscribe(channel));
            "subscribe"
        };
        let command = format!(r#"{{"type":"{kind}","channel":"{}"}}"#, CHANNELS[channel]);
        self.rig.send_frame(&self.peers[at].client, &command);
    }

    /// Revokes a token, or all that a user was issued.
    fn revoke(&mut self) {
        let now_s = self.rig.now_s();
        let (revocation, revoked) = if self.random.percent(30) {
            let user = USERS[self.random.below(USERS.len())];
            let before_s = now_s as u32 + 1;
            let revocation = Revocation::User { user: user.into(), before_s };
            (revocation, Revoked::User(user, now_s + 1))
        } else {
            let is_here =
                |peer: &Peer| matches!(peer.state, State::Waiting | State::Open | State::Nobody);
            let Some(at) = self.some(is_here) else { return };
            let peer = &self.peers[at];
            let seen = if peer.stalled_ms.is_some() { "revoked, stalled" } else { "revoked id" };
            self.facts.seen.insert(seen);
            let id = peer.token.id.clone();
            let revocation = Revocation::Token { id: TokenId::of(&id), at_s: now_s as u32 };
            (revocation, Revoked::Id(id))
        };
        let all = std::slice::from_ref(&revocation);
        self.revocations.revoke(all, now_s).expect("the disk takes it");
        let tags = self.access.tagger.of_revocation(&revocation);
        let answer = self.scan(ScanTarget::Sessions(vec![tags]), ScanAction::Revoke);
        self.scans.push((self.facts.revocations.len(), answer));
        self.facts.revocations.push((revoked, None));
    }

    /// Begins a scan of the worker's connections.
    fn scan(&mut self, target: ScanTarget, action: ScanAction) -> mpsc::Receiver<Option<Scanned>> {
        let (sender, answer) = mpsc::channel();
        let ticket = Ticket::new(move |scanned| drop(sender.send(scanned)));
        self.rig.queue.post(Notification::Scan(ConnectionScan::new(target, action, 1, ticket)));
        answer
    }

    fn count_user(&mut self) {
        self.rest();
        let user = USERS[self.random.below(USERS.len())];
        let tags = self.access.tagger.of_user(user);
        let target = ScanTarget::User { inbox: ChannelName::user(user), tags };
        let answer = self.scan(target, ScanAction::List { limit: 0 });
        self.settle();
        let found = answer.try_recv().expect("the worker is done").expect("an answer").count;
        let count = |is_it: fn(&Peer) -> bool| {
            let is_of_user = |peer: &&Peer| peer.token.user == Some(user) && is_it(peer);
            self.peers.iter().filter(is_of_user).count() as u64
        };
        let open = count(|peer| peer.state == State::Open);
        let unnoticed = count(|peer| peer.state == State::Left && !peer.client.is_closed());
        let expected = open..=open + unnoticed;
        assert!(expected.contains(&found), "{found} connections of {user}, not {expected:?}");
        self.facts.seen.insert("counted");
    }

    /// The key set with the late key is fetched, if a token has asked for it.
    fn learn_key(&mut self) {
        let tokens = self.access.tokens.as_ref().expect("it has keys");
        let now_s = self.rig.now_s();
        let now = Now { steady_ms: 1000 * now_s, unix_s: now_s };
        for source in tokens.begin(now) {
            let fetched = Fetched { keys: vec![key("b")], lifetime_ms: None };
            tokens.fetched(source, Some(fetched), now).expect("the keys fit");
            self.facts.has_late_key = true;
            self.facts.seen.insert("key learned");
        }
    }

    /// A client stops reading after some bytes, or reads again.
    fn stall_or_read(&mut self) {
        let bytes = self.random.below(200);
        let Some(at) = self.some(|peer| peer.state == State::Open) else { return };
        if self.peers[at].stalled_ms.is_some() {
            return self.read(at);
        }
        self.peers[at].stall(bytes, &self.facts);
        self.facts.seen.insert("stalled");
    }

    fn read(&mut self, at: usize) {
        if self.peers[at].stalled_ms.is_some() {
            self.rig.read_again(&self.peers[at].client);
            // Everything until now was written while it was stalled.
            self.peers[at].look(&mut self.facts);
            self.peers[at].stalled_ms = None;
        }
    }

    fn decide(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            self.application.answer_one(&mut self.random);
        }
    }

    fn leave(&mut self) {
        let is_here =
            |peer: &Peer| matches!(peer.state, State::Waiting | State::Open | State::Nobody);
        if let Some(at) = self.some(is_here) {
            self.rig.hang_up(&self.peers[at].client);
            self.peers[at].state = State::Left;
        }
    }
}

/// Events that must happen over all seeds.
const INTERESTING: &[&str] = &[
    "at rest",
    "command: busy",
    "command: forbidden",
    "counted",
    "delivered",
    "delivered, stalled",
    "ended as nobody",
    "ended by the application",
    "expired",
    "expired, stalled",
    "expiring",
    "key learned",
    "nobody may do nothing",
    "opened",
    "opened as nobody",
    "process replaced",
    "process replaced before a decision",
    "refresh: another user",
    "refreshed",
    "refreshed with a late key",
    "refreshed, stalled",
    "refused: busy",
    "refused: forbidden",
    "refused: token",
    "revoked",
    "revoked id",
    "revoked, stalled",
    "signed in",
    "signed in after an upgrade",
    "signed in with a late key",
    "stalled",
    "subscribed",
    "subscription ended",
];

#[test]
fn no_message_reaches_a_client_that_may_not_have_it() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match number("THRONG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("THRONG_SEEDS").unwrap_or(SEEDS),
    };
    let mut seen = BTreeSet::new();
    for seed in seeds.clone() {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.begin_step();
            world.rest();
            assert_eq!(world.rig.count(Counter::ClosedForViolation), 0);
            world.facts.seen
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

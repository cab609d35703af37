//! Connections that are behind: the list of them, and how long they may be.

use std::sync::Arc;
use std::time::Duration;

use throng_access::{AccessControl, AllowAll};
use throng_core::{
    ChannelName, FoundConnection, HistoryQuery, Rule, Rules, ScanAction, ScanClose, ScanTarget,
};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};
use crate::scan::scan;

/// A rig whose connections have no heartbeats, which a socket might not take.
fn rig(rule: Rule) -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, ..Settings::for_tests() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    let mut rig = Rig::with_rules(settings, access, Rules::new(Vec::new(), rule));
    // Its clock goes from here on.
    rig.pass(1);
    rig
}

fn behind(rig: &mut Rig, limit: usize) -> (u64, Vec<FoundConnection>) {
    let found = scan(rig, ScanTarget::Behind, ScanAction::List { limit });
    (found.count, found.connections)
}

/// A stream without chunks, whose response head the client has read.
fn stream(rig: &mut Rig, target: &str) -> Client {
    let client = rig.connect(&format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    assert!(client.received().starts_with("HTTP/1.1 200"));
    client
}

/// The messages of a client, from its own bytes.
struct Reader {
    client: Client,
    channel: usize,
    /// The number of the channel's messages before it came.
    from: usize,
    /// Bytes that came after the response head.
    received: usize,
    is_stalled: bool,
    behind_since_ms: Option<u64>,
}

/// A message: its bytes on a stream, and what it counts against lag limits.
struct Sent {
    length: usize,
    weight: u64,
}

impl Reader {
    /// The number and the size of what it lacks.
    fn lacks(&self, channels: &[Vec<Sent>]) -> (u64, u64) {
        let (mut end, mut messages, mut bytes) = (0, 0, 0);
        for sent in &channels[self.channel][self.from..] {
            let start = end;
            end += sent.length;
            if start >= self.received {
                messages += 1;
                bytes += sent.weight;
            } else if end > self.received {
                // The rest of one that its socket has taken in part.
                bytes += (end - self.received) as u64;
            }
        }
        (messages, bytes)
    }
}

/// Clients that read now and then, and what they lack.
struct World {
    rig: Rig,
    channels: [Vec<Sent>; 2],
    readers: Vec<Reader>,
    random: u64,
}

impl World {
    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn step(&mut self) {
        let readers = self.readers.len();
        match self.below(12) {
            0 => {
                let channel = self.below(2);
                let client = stream(&mut self.rig, ["/channels/a", "/channels/b"][channel]);
                let from = self.channels[channel].len();
                self.readers.push(Reader {
                    client,
                    channel,
                    from,
                    received: 0,
                    is_stalled: false,
                    behind_since_ms: None,
                });
            }
            1..6 => {
                let (channel, length) = (self.below(2), 1 + self.below(600));
                self.publish(channel, length);
            }
            6 | 7 if readers > 0 => {
                let (nth, room) = (self.below(readers), self.below(900));
                let reader = &mut self.readers[nth];
                reader.is_stalled = true;
                self.rig.read_some(&reader.client, room);
            }
            8 if readers > 0 => {
                let nth = self.below(readers);
                let reader = &mut self.readers[nth];
                reader.is_stalled = false;
                self.rig.read_again(&reader.client);
            }
            9 if readers > 4 => {
                let nth = self.below(readers);
                let gone = self.readers.swap_remove(nth);
                self.rig.hang_up(&gone.client);
            }
            _ => {
                let ticks = 1 + self.below(20) as u32;
                self.rig.pass(ticks);
            }
        }
        self.rig.work();
        let now_ms = self.rig.now_ms();
        for reader in &mut self.readers {
            reader.received += reader.client.received_bytes().len();
            let is_behind = reader.lacks(&self.channels) != (0, 0);
            assert!(!is_behind || reader.is_stalled, "who reads has everything");
            let since_ms = reader.behind_since_ms.unwrap_or(now_ms);
            reader.behind_since_ms = is_behind.then_some(since_ms);
        }
    }

    fn publish(&mut self, channel: usize, length: usize) {
        let name = ["a", "b"][channel];
        self.rig.publish(name, &"x".repeat(length), None);
        let query = HistoryQuery::Newest;
        let history = self.rig.engine.history(1, &ChannelName::channel(name), query, 1);
        let weight = history.messages[0].weight_bytes() as u64;
        // With the end of its line.
        self.channels[channel].push(Sent { length: length + 1, weight });
    }

    /// The list is what the clients' own bytes say.
    fn check(&mut self, limit: usize) {
        let mut expected: Vec<_> = self
            .readers
            .iter()
            .filter(|reader| reader.behind_since_ms.is_some())
            .map(|reader| (reader.lacks(&self.channels), reader.behind_since_ms, reader.channel))
            .collect();
        expected.sort_by_key(|&((_, bytes), ..)| std::cmp::Reverse(bytes));
        let (count, found) = behind(&mut self.rig, limit);
        assert_eq!(count, expected.len() as u64);
        assert_eq!(found.len(), expected.len().min(limit));
        // Which of those come first that hold the same is not the matter here.
        let least = found.last().map_or(0, |last| last.lag.as_ref().unwrap().held_bytes());
        let held = |found: &FoundConnection| found.lag.as_ref().unwrap().held_bytes();
        assert!(found.windows(2).all(|pair| held(&pair[0]) >= held(&pair[1])));
        let mut shown: Vec<_> = found
            .iter()
            .map(|found| {
                let lag = found.lag.as_ref().unwrap();
                assert_eq!((lag.subscriptions, lag.channels.len()), (1, 1));
                let channel = usize::from(lag.channels[0].name() == "b");
                ((lag.messages, lag.bytes), Some(lag.since_ms), channel)
            })
            .collect();
        let cut = |list: &mut Vec<((u64, u64), Option<u64>, usize)>| {
            list.retain(|&((_, bytes), ..)| found.len() < limit || bytes > least);
            list.sort_unstable();
        };
        cut(&mut expected);
        cut(&mut shown);
        assert_eq!(shown, expected);
    }
}

#[test]
fn the_list_is_what_clients_lack_at_every_moment() {
    for seed in 0..60 {
        let rig = rig(Rule::default());
        let mut world = World { rig, channels: [vec![], vec![]], readers: vec![], random: seed };
        for step in 0..300 {
            world.step();
            world.check(if step % 3 == 0 { 2 } else { 1000 });
        }
    }
}

#[test]
fn a_long_list_in_slices_shows_the_largest_holders() {
    let mut rig = rig(Rule::default());
    let clients: Vec<_> = (0..3000)
        .map(|number| {
            let client = stream(&mut rig, "/channels/a?user=ann");
            client.stall_after(number % 100);
            client
        })
        .collect();
    rig.publish("a", &"x".repeat(200), None);
    rig.work();
    let (count, found) = behind(&mut rig, 30);
    assert_eq!((count, found.len()), (3000, 30));
    for one in &found {
        let lag = one.lag.as_ref().unwrap();
        assert_eq!(lag.user.as_deref(), Some("ann"));
        assert_eq!((lag.subscriptions, lag.messages, lag.kernel_bytes), (2, 1, 0));
    }
    drop(clients);
}

#[test]
fn those_of_the_list_are_closed_by_name_and_nobody_else() {
    let mut rig = rig(Rule::default());
    let (slow, other) = (stream(&mut rig, "/channels/a"), stream(&mut rig, "/channels/a"));
    slow.stall_after(0);
    rig.publish("a", "news", None);
    rig.work();
    let (_, found) = behind(&mut rig, 9);
    let close = ScanClose { code: 4100, reason: "slow".into(), may_return: true };
    let target = ScanTarget::Connections(vec![found[0].name]);
    let closed = scan(&mut rig, target.clone(), ScanAction::Close(close.clone()));
    assert_eq!((closed.count, rig.count(Counter::ClosedDisconnected)), (1, 1));
    assert_eq!(behind(&mut rig, 9).0, 0, "what closes is not listed");
    assert_eq!(scan(&mut rig, target, ScanAction::Close(close)).count, 0);
    other.received();
    rig.publish("a", "more", None);
    rig.work();
    assert!(other.received().contains("more"));
}

#[test]
fn a_client_that_does_not_catch_up_in_time_is_closed() {
    let slow = Rule { slow_timeout: Some(Duration::from_secs(5)), ..Rule::default() };
    let mut rig = rig(slow);
    let ws = |rig: &mut Rig| {
        rig.connect(
            "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
    };
    let [stuck, trickle, reader, stream] =
        [ws(&mut rig), ws(&mut rig), ws(&mut rig), stream(&mut rig, "/channels/a")];
    for client in [&stuck, &trickle, &reader] {
        client.received_bytes();
    }
    // The socket of one takes nothing at all of the message, the others' a part.
    stuck.stall_after(0);
    for client in [&trickle, &reader, &stream] {
        client.stall_after(2);
    }
    rig.publish("a", "news", None);
    rig.work();
    rig.pass(30);
    rig.read_again(&reader);
    rig.work();
    reader.stall_after(0);
    rig.publish("a", "more", None);
    rig.work();
    rig.read_some(&trickle, 3);
    rig.work();
    rig.pass(19);
    assert_eq!(rig.count(Counter::ClosedSlow), 0, "not yet");
    rig.pass(10);
    assert_eq!(rig.count(Counter::ClosedSlow), 3, "a part is not everything");
    assert_eq!(behind(&mut rig, 9).0, 1, "the other has caught up in between");
    rig.read_again(&stuck);
    let frame = stuck.received_bytes();
    assert_eq!(&frame[2..4], &4000_u16.to_be_bytes(), "{frame:?}");
}

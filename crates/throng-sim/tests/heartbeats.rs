//! The ticks at which parked connections get heartbeats and pings: one worker on fake sockets, with
//! a clock that the test sets.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use throng_access::AccessControl;
use throng_core::{
    Body, ChannelName, Channels, Epoch, MemoryEngine, Publication, Rules, WorkerId, WorkerQueue,
};
use throng_edge::Counter;
use throng_edge::worker::{Now, Setup, Worker};
use throng_edge::{Metrics, Settings};
use throng_sim::net::FakeNet;
use throng_sim::notes::Notes;
use throng_sim::pipe::{FakeSocket, Pipe, SharedPipe};
use throng_sim::stamp::Stamp;

const BEGINNING_MS: u64 = 1_700_000_000_000;
const TICK_MS: u64 = 100;
/// The heartbeat interval in ticks.
const HEARTBEAT: u32 = 250;
const PING: u32 = 9 * HEARTBEAT;
/// The time for the answer to a ping, in ticks.
const ANSWER: u32 = 2 * HEARTBEAT;

/// A worker, its channel, and the clients' ends.
struct Scene {
    worker: Worker<FakeNet>,
    engine: Arc<MemoryEngine>,
    metrics: Metrics,
    stamp: Arc<Stamp>,
    pipes: Vec<SharedPipe>,
    tick: u32,
}

/// Received bytes, each with tick and client.
type Seen = Vec<(u32, usize, Vec<u8>)>;

const PONG: &[u8] = &[0x8a, 0];
const PINGED: &[u8] = &[0x89, 0];
const V1: &str = "Sec-WebSocket-Protocol: throng.v1\r\n";

impl Scene {
    fn new(heartbeat: u32, ping: u32) -> Scene {
        let stamp = Arc::new(Stamp::new(BEGINNING_MS));
        let queue = Arc::new(WorkerQueue::new(|| {}));
        let rules = Arc::new(Rules::new(Vec::new(), throng_core::Rule::default()));
        let queues = vec![Arc::clone(&queue)];
        let epoch = Epoch::numbered(1);
        let engine = Arc::new(MemoryEngine::new(epoch, Arc::clone(&rules), queues, 1 << 30));
        let metrics = Metrics::new([100_000].into_iter());
        let ticks = |ticks: u32| Duration::from_millis(u64::from(ticks) * TICK_MS);
        let settings = Settings {
            heartbeat: ticks(heartbeat),
            ping_interval: ticks(ping),
            ..Settings::for_tests()
        };
        let setup = Setup {
            generation: 0,
            id: WorkerId(0),
            settings: Arc::new(settings),
            engine: Arc::new(Channels::new(Arc::clone(&engine), Vec::new())),
            access: AccessControl::allow_all(),
            rules,
            compression: Arc::default(),
            events: None,
            queue,
            pressure: Arc::default(),
            metrics: metrics.clone(),
        };
        let worker = Worker::new(setup, FakeNet::new(&Rc::new(Notes::default())));
        Scene { worker, engine, metrics, stamp, pipes: Vec::new(), tick: 0 }
    }

    fn connect(&mut self, headers: &str) -> usize {
        let number = self.pipes.len();
        let pipe = Rc::new(RefCell::new(Pipe::new(number, &self.stamp, 1 << 16, 1)));
        let request = format!("GET /channels/a HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        pipe.borrow_mut().client_sends(request.into_bytes());
        self.worker.accepted(FakeSocket(Rc::clone(&pipe)));
        assert!(!self.read(&pipe).is_empty(), "it is answered at once");
        self.pipes.push(pipe);
        number
    }

    fn websocket(&mut self, more: &str) -> usize {
        self.connect(&format!(
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}"
        ))
    }

    fn read(&self, pipe: &SharedPipe) -> Vec<u8> {
        pipe.borrow_mut().client_reads(usize::MAX)
    }

    fn publish(&mut self) {
        let publication = Publication::new(ChannelName::channel("a"), Body::Text("x".into()));
        self.engine.publish(self.stamp.now().now_ms, publication).expect("not busy");
    }

    /// Runs all fan-outs to their end.
    fn deliver(&mut self) {
        while self.worker.work(true) || self.worker.is_fanning_out() {}
    }

    /// Advances to the next tick.
    fn tick(&mut self) {
        self.tick += 1;
        let unix_ms = BEGINNING_MS + u64::from(self.tick) * TICK_MS;
        self.stamp.set_now(unix_ms);
        self.worker.set_now(Now::after(u64::from(self.tick) * TICK_MS, unix_ms));
        self.worker.tick();
    }

    /// Advances by `ticks`, without fanning out. Returns what clients received.
    fn pass(&mut self, ticks: u32) -> Seen {
        let mut seen = Vec::new();
        for _ in 0..ticks {
            self.tick();
            self.worker.work(false);
            for (number, pipe) in self.pipes.iter().enumerate() {
                let bytes = self.read(pipe);
                if !bytes.is_empty() {
                    seen.push((self.tick, number, bytes));
                }
            }
        }
        seen
    }

    /// A client answers a ping.
    fn pong(&mut self, number: usize) {
        self.send_pong(number);
        self.receive();
    }

    /// A client answers a ping; the worker does not read it.
    fn send_pong(&mut self, number: usize) {
        let pipe = Rc::clone(&self.pipes[number]);
        pipe.borrow_mut().client_sends([0x8a, 0x80, 0, 0, 0, 0]);
    }

    /// The worker reads what clients have sent.
    fn receive(&mut self) {
        for ready in self.worker.net().wait(usize::MAX, &mut throng_sim::random::Random::new(1)) {
            self.worker.readable(ready.token, ready.is_ended);
        }
        self.worker.work(false);
    }

    fn count(&self, counter: Counter) -> u64 {
        self.metrics.workers()[0].counters.get(counter)
    }
}

fn kinds(seen: &Seen) -> Vec<&[u8]> {
    seen.iter().map(|(_, _, bytes)| &bytes[..]).collect()
}

#[test]
fn an_idle_connection_gets_one_heartbeat_an_interval() {
    let mut scene = Scene::new(HEARTBEAT, 0);
    let v1_frame = b"\x81\x14{\"type\":\"heartbeat\"}".to_vec();
    let kinds = [
        (scene.websocket(""), PONG.to_vec()),
        (scene.websocket(V1), v1_frame),
        (scene.connect("Accept: text/event-stream\r\n"), b"3\r\n:\n\n\r\n".to_vec()),
        (scene.connect(""), b"1\r\n\n\r\n".to_vec()),
    ];
    let seen = scene.pass(10 * HEARTBEAT);
    for (number, expected) in kinds {
        let own: Vec<_> = seen.iter().filter(|(_, to, _)| *to == number).collect();
        assert!(own.iter().all(|(_, _, bytes)| *bytes == expected), "{own:?}");
        assert!((HEARTBEAT / 2..=HEARTBEAT).contains(&own[0].0), "the first at {}", own[0].0);
        let gaps: Vec<_> = own.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert_eq!(gaps, vec![HEARTBEAT; own.len() - 1]);
    }
    assert_eq!(scene.count(Counter::Heartbeats), seen.len() as u64);
}

#[test]
fn a_connection_with_messages_gets_no_heartbeat() {
    let mut scene = Scene::new(HEARTBEAT, 0);
    scene.websocket("");
    let mut heartbeats = 0;
    for _ in 0..40 {
        scene.publish();
        scene.deliver();
        let seen = scene.pass(HEARTBEAT / 2 - 5);
        heartbeats += kinds(&seen).iter().filter(|bytes| bytes.contains(&0x8a)).count();
    }
    assert_eq!(heartbeats, 0);
    assert_eq!(scene.count(Counter::Heartbeats), 0);
    // A silence ends within an interval, at whatever tick it begins.
    for _ in 0..HEARTBEAT {
        scene.publish();
        scene.deliver();
        let seen = scene.pass(HEARTBEAT + 1);
        let at = seen.iter().position(|(_, _, bytes)| bytes == PONG);
        assert!(at.is_some(), "silent for an interval: {seen:?}");
    }
}

#[test]
fn heartbeats_stay_spread_after_a_message_to_all() {
    const CLIENTS: usize = 6400;
    let mut scene = Scene::new(HEARTBEAT, 0);
    (0..CLIENTS).for_each(|_| _ = scene.websocket(""));
    scene.pass(2 * HEARTBEAT);
    scene.publish();
    scene.deliver();
    scene.pass(1);
    let quiet = scene.pass(HEARTBEAT / 2 - 1);
    assert!(quiet.is_empty(), "{} heartbeats although all were written to", quiet.len());
    let before = scene.tick;
    let seen = scene.pass(3 * HEARTBEAT);
    // From the second interval on they are spread as before.
    let mut counts = [0; 10];
    for (tick, ..) in &seen {
        let ago = tick - before;
        if ago > HEARTBEAT && ago <= 2 * HEARTBEAT {
            counts[((ago - HEARTBEAT - 1) / (HEARTBEAT / 10)) as usize] += 1;
        }
    }
    let fair = CLIENTS / 10;
    assert!(counts.iter().all(|&count| count >= fair / 2 && count <= fair * 2), "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), CLIENTS);
}

#[test]
fn deliveries_go_before_heartbeats() {
    let mut scene = Scene::new(HEARTBEAT, 0);
    (0..200).for_each(|_| _ = scene.websocket(""));
    scene.pass(4 * HEARTBEAT);
    scene.publish();
    // It takes the message but gets no permit.
    scene.worker.work(true);
    assert!(scene.worker.is_fanning_out());
    scene.pipes.iter().for_each(|pipe| drop(scene.read(pipe)));
    let sent = scene.count(Counter::Heartbeats);
    scene.pass(HEARTBEAT);
    let more = scene.count(Counter::Heartbeats) - sent;
    // Clients that have the message need a heartbeat within an interval; clients that wait for it
    // get none.
    assert!(more <= 96, "{more} heartbeats before the message");
    assert!(scene.worker.is_fanning_out());
}

#[test]
fn late_heartbeats_come_without_a_burst() {
    const CLIENTS: u32 = 12_800;
    let mut scene = Scene::new(HEARTBEAT, 0);
    (0..CLIENTS).for_each(|_| _ = scene.websocket(""));
    scene.pass(2 * HEARTBEAT);
    // The worker is suspended for four intervals.
    scene.tick += 4 * HEARTBEAT;
    let sent: Vec<u32> = (0..HEARTBEAT).map(|_| scene.pass(1).len() as u32).collect();
    // At most one second's allowance, which is twice the average, and the allowance saved before.
    let second = 10 * 2 * CLIENTS / HEARTBEAT;
    let most = sent.windows(10).map(|ticks| ticks.iter().sum::<u32>()).max();
    assert!(most <= Some(2 * second), "{most:?} in one second");
    let all: u32 = sent.iter().sum();
    // Missed heartbeats are not repeated: each client gets one, some get the next one too.
    assert!((CLIENTS..=2 * CLIENTS).contains(&all), "{all}");
}

#[test]
fn a_silent_websocket_is_pinged_and_closed() {
    let mut scene = Scene::new(HEARTBEAT, PING);
    let (answers, silent, stream) = (scene.websocket(""), scene.websocket(""), scene.connect(""));
    let v1 = scene.websocket(V1);
    let mut pings = Vec::new();
    let mut closed = None;
    for _ in 0..3 * PING {
        for (tick, number, bytes) in scene.pass(1) {
            if bytes.starts_with(PINGED) {
                assert_ne!(number, stream);
                if number == v1 {
                    assert_eq!(bytes[2..], *b"\x81\x14{\"type\":\"heartbeat\"}");
                }
                if number == answers {
                    pings.push(tick);
                }
                if number != silent {
                    scene.pong(number);
                }
            }
            if bytes[0] == 0x88 {
                assert_eq!((number, &bytes[2..4]), (silent, &4001_u16.to_be_bytes()[..]));
                closed = Some(tick);
            }
        }
    }
    assert!(pings.len() >= 2, "{pings:?}");
    assert!(pings.windows(2).all(|pair| pair[1] - pair[0] == PING), "{pings:?}");
    assert_eq!(closed, Some(pings[0] + ANSWER), "closed when its time is over");
    assert_eq!(scene.count(Counter::ClosedPingTimeout), 1);
}

/// Lets clients answer pings until the tick `silent_from`. Returns how many ticks later each is
/// closed.
fn closed_after(ping: u32, clients: usize, silent_from: impl Fn(usize) -> u32) -> Vec<Option<u32>> {
    let mut scene = Scene::new(HEARTBEAT, ping);
    (0..clients).for_each(|_| _ = scene.websocket(""));
    let mut closed = vec![None; clients];
    for _ in 0..3 * PING {
        for (tick, number, bytes) in scene.pass(1) {
            let is_there = tick < silent_from(number);
            if bytes == PINGED && is_there {
                scene.pong(number);
            }
            if bytes[0] == 0x88 {
                assert!(!is_there, "{number} is closed at {tick} although it answers");
                closed[number] = Some(tick - silent_from(number));
            }
        }
    }
    closed
}

#[test]
fn a_dead_client_is_detected_in_time() {
    for (ping, answer) in [(PING, ANSWER), (2 * HEARTBEAT, ANSWER), (HEARTBEAT, HEARTBEAT)] {
        let silent_from = |number: usize| HEARTBEAT + number as u32 * 37 % PING;
        for (number, after) in closed_after(ping, 320, silent_from).into_iter().enumerate() {
            let is_found = after.is_some_and(|ticks| ticks <= ping + answer);
            assert!(is_found, "with pings each {ping}: {number} after {after:?}");
        }
    }
}

#[test]
fn the_defaults_detect_a_dead_client_within_five_minutes() {
    let defaults = Settings::for_tests();
    let ticks = |ticks: u32| Duration::from_millis(u64::from(ticks) * TICK_MS);
    assert_eq!((defaults.heartbeat, defaults.ping_interval), (ticks(HEARTBEAT), ticks(PING)));
    assert!(ticks(PING + ANSWER) < Duration::from_secs(5 * 60));
}

#[test]
fn a_client_that_answers_just_in_time_stays() {
    for (ping, answer) in [(PING, ANSWER), (2 * HEARTBEAT, ANSWER), (HEARTBEAT, HEARTBEAT)] {
        let mut scene = Scene::new(HEARTBEAT, ping);
        let slow = scene.websocket("");
        let mut answers_at = None;
        for _ in 0..3 * PING {
            for (tick, _, bytes) in scene.pass(1) {
                assert_ne!(bytes[0], 0x88, "closed at {tick}, pinged each {ping}");
                if bytes == PINGED {
                    answers_at = Some(tick + answer - 1);
                }
            }
            if answers_at == Some(scene.tick) {
                scene.pong(slow);
            }
        }
        assert!(scene.count(Counter::Pings) >= 2);
    }
}

#[test]
fn a_suspended_worker_closes_no_client_that_answered() {
    let mut scene = Scene::new(HEARTBEAT, PING);
    let number = scene.websocket("");
    while !scene.pass(1).iter().any(|(_, _, bytes)| bytes == PINGED) {}
    scene.send_pong(number);
    scene.tick += ANSWER + HEARTBEAT;
    scene.pass(1);
    assert_eq!(scene.count(Counter::ClosedPingTimeout), 0);
    scene.receive();
    let seen = scene.pass(PING / 2);
    assert!(!seen.is_empty() && kinds(&seen).iter().all(|bytes| bytes[0] != 0x88), "{seen:?}");
}

#[test]
fn pings_replace_all_heartbeats_at_an_equal_interval() {
    let mut scene = Scene::new(HEARTBEAT, HEARTBEAT);
    scene.websocket("");
    let mut ticks = Vec::new();
    for _ in 0..6 * HEARTBEAT {
        for (tick, number, bytes) in scene.pass(1) {
            assert_eq!(bytes, PINGED);
            scene.pong(number);
            ticks.push(tick);
        }
    }
    assert!(ticks.len() >= 5 && ticks.windows(2).all(|pair| pair[1] - pair[0] == HEARTBEAT));
}

#[test]
fn without_heartbeats_there_are_no_pings_either() {
    let mut scene = Scene::new(0, PING);
    scene.websocket("");
    assert_eq!(scene.pass(4 * PING), []);
}

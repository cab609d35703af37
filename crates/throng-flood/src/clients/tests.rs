//! The fleet against small servers made of blocking sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use throng_wire::websocket::{Opcode, accept_key, write_close, write_frame};

use super::*;
use crate::marker::Mark;
use crate::plan::{Ping, Sources, Streams, Subscribed, Target, Transport};
use crate::tally::Failure;
use crate::template::Template;

mod closed_loop;
mod elsewhere;
mod gaps;

/// Ends a test that would hang otherwise; never waited for when all is well.
const DEADLINE: Duration = Duration::from_secs(20);

const IN_FLIGHT: usize = 64;

/// A server's end of a connection, with what was asked.
struct Peer {
    stream: TcpStream,
    request: String,
}

impl Peer {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    fn receive<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).expect("received");
        bytes
    }

    /// Waits until the client has closed.
    fn await_end(&mut self) {
        match self.stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }

    /// The next request on the same connection.
    fn next_request(&mut self) -> String {
        self.request = read_head(&mut self.stream);
        self.request.clone()
    }
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text")
}

/// A server that answers each request with what `answer` makes of it, and hands over the peers.
fn serve(answer: fn(&str) -> Vec<u8>) -> (u16, Receiver<Peer>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (peers, peer): (Sender<Peer>, _) = channel();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
            let request = read_head(&mut stream);
            stream.write_all(&answer(&request)).expect("answered");
            if peers.send(Peer { stream, request }).is_err() {
                return;
            }
        }
    });
    (port, peer)
}

fn upgrade(request: &str) -> Vec<u8> {
    let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
    let accept = accept_key(key.expect("a key").as_bytes());
    let accept = String::from_utf8_lossy(&accept);
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    format!("{head}Sec-WebSocket-Accept: {accept}\r\n\r\n").into_bytes()
}

fn plan(transport: Transport, url: &str) -> Plan {
    Plan {
        name: "test".to_owned(),
        profile: crate::plan::Profile::Custom,
        target: Target {
            transport,
            url: Template::parse(url).expect("a template"),
            ports: Vec::new(),
            headers: Vec::new(),
            subprotocol: None,
            hello: Vec::new(),
            subscribed: Subscribed::Handshake,
            refused: Vec::new(),
            pings: Vec::new(),
            handshake_timeout: DEADLINE,
            publish: None,
            streams: Streams::One,
        },
        sources: Sources { addresses: Vec::new(), ports: None },
        network: Network::Sockets,
        threads: Some(2),
        keep: false,
        seed: 1,
        phases: Vec::new(),
        assertions: Vec::new(),
        server_pids: Vec::new(),
        deadline: DEADLINE,
    }
}

/// A fleet with what it has seen since its start.
struct Watched {
    fleet: Fleet,
    all: Tally,
}

impl Watched {
    fn start(plan: &Plan, clients: usize) -> Watched {
        let fleet = Fleet::start(plan, clients).expect("started");
        fleet.ramp(clients, None, IN_FLIGHT);
        Watched { fleet, all: Tally::default() }
    }

    fn wait(&mut self, what: &str, is_so: impl Fn(&Tally) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let tally = self.fleet.tally();
            let states = tally.states;
            self.all.merge(&tally);
            self.all.states = states;
            if is_so(&self.all) {
                return;
            }
            let (states, failures) = (self.all.states, &self.all.failures);
            assert!(Instant::now() < deadline, "{what}: {states:?} {failures:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_active(&mut self, count: u64) {
        self.wait("active", |tally| tally.states.active == count);
    }

    fn wait_failure(&mut self, failure: &Failure, count: u64) {
        self.wait("failure", |tally| tally.failures.get(failure) == Some(&count));
    }

    fn payload(&self, stream: u32, sequence: u32) -> Vec<u8> {
        self.fleet.board().published(stream, sequence);
        let mut payload = Vec::new();
        let mark = Mark { run: self.fleet.run(), stream, sequence, intended_ns: now_ns() };
        mark.write_payload(80, &mut payload);
        payload
    }

    fn frame(&self, sequence: u32) -> Vec<u8> {
        let mut frame = Vec::new();
        write_frame(&mut frame, Opcode::Text, &self.payload(0, sequence));
        frame
    }

    fn audit(&self, last: u64) -> Audit {
        self.fleet.audit([last].into())
    }
}

fn websockets(count: usize, change: impl FnOnce(&mut Plan)) -> (Watched, Vec<Peer>) {
    let (port, peers) = serve(upgrade);
    let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/u{{i}}"));
    change(&mut plan);
    let watched = Watched::start(&plan, count);
    let peers = peers.iter().take(count).collect();
    (watched, peers)
}

#[test]
fn every_client_has_its_own_number_and_source() {
    let (mut watched, peers) = websockets(20, |_| {});
    watched.wait_active(20);
    let mut asked: Vec<_> = peers
        .iter()
        .map(|peer| peer.request.split(' ').nth(1).expect("a path").to_owned())
        .collect();
    asked.sort_unstable();
    let mut expected: Vec<_> = (0..20).map(|number| format!("/u{number}")).collect();
    expected.sort_unstable();
    assert_eq!(asked, expected);
    let source = peers[0].stream.peer_addr().expect("an address").ip();
    assert_eq!(source, Ipv4Addr::new(127, 0, 2, 1));
    assert_eq!((watched.fleet.audience(0), watched.all.subscribed), (20, 20));
    watched.fleet.stop();
}

#[test]
fn what_is_lost_again_or_late_is_found() {
    let (mut watched, mut peers) = websockets(4, |_| {});
    watched.wait_active(4);
    let frames: Vec<_> = (1..=5).map(|sequence| watched.frame(sequence)).collect();
    for (peer, order) in peers.iter_mut().zip([&[1, 2, 3, 4, 5][..], &[1, 3, 2, 4, 5], &[1, 1, 4]])
    {
        let bytes: Vec<_> = order.iter().map(|&sequence| &frames[sequence - 1][..]).collect();
        peer.send(&bytes.concat());
    }
    watched.wait("all that was sent", |tally| tally.received == 12);
    let audit = watched.audit(5);
    let expected =
        Audit { expected: 20, received: 12, lost: 8, missed: 0, duplicated: 1, reordered: 1 };
    assert_eq!(audit, expected);
    watched.fleet.board().refused(0, 5);
    assert_eq!(watched.audit(5).lost, 6);
    let seen = watched.fleet.publishes(Duration::ZERO);
    let counts: Vec<_> =
        seen.iter().map(|publish| (publish.sequence, publish.latencies_us.len())).collect();
    assert_eq!(counts, [(1, 3), (2, 2), (3, 2), (4, 3), (5, 2)]);
}

#[test]
fn one_that_joins_later_expects_what_comes_later() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let fleet = Fleet::start(&plan, 1).expect("started");
    fleet.board().published(0, 3);
    fleet.ramp(1, None, 1);
    let mut watched = Watched { fleet, all: Tally::default() };
    watched.wait_active(1);
    let mut peer = peers.recv().expect("a peer");
    // The third was on the way meanwhile.
    peer.send(&[watched.frame(3), watched.frame(4)].concat());
    watched.wait("both", |tally| (tally.early, tally.received) == (1, 1));
    let audit = watched.audit(5);
    assert_eq!((audit.expected, audit.received, audit.lost), (2, 1, 1));
}

#[test]
fn pings_of_either_kind_are_answered() {
    let (mut watched, mut peers) = websockets(1, |plan| {
        plan.target.hello = vec![Template::parse("hello {i}").expect("a template")];
        plan.target.subscribed = Subscribed::Message("\"welcome\"".to_owned());
        plan.target.pings = vec![Ping { ask: "{}".to_owned(), answer: "{}".to_owned() }];
    });
    let peer = &mut peers[0];
    assert_eq!(&peer.receive::<13>(), b"\x81\x87\0\0\0\0hello 0");
    let mut frames = Vec::new();
    write_frame(&mut frames, Opcode::Text, b"{\"type\":\"notice\"}");
    peer.send(&frames);
    watched.wait("a notice", |tally| tally.unmarked == 1);
    assert_eq!(watched.all.states.connecting, 1);
    frames.clear();
    write_frame(&mut frames, Opcode::Text, b"{\"type\":\"welcome\"}");
    write_frame(&mut frames, Opcode::Ping, b"hi");
    write_frame(&mut frames, Opcode::Text, b"{}");
    peer.send(&frames);
    assert_eq!(&peer.receive::<8>(), b"\x8a\x82\0\0\0\0hi");
    assert_eq!(&peer.receive::<8>(), b"\x81\x82\0\0\0\0{}");
    watched.wait("pings", |tally| tally.pings == 2 && tally.states.active == 1);
}

#[test]
fn ports_are_used_up_and_said_to_be() {
    let (port, peers) = serve(upgrade);
    let (other_port, other_peers) = serve(upgrade);
    let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    plan.target.ports = vec![other_port];
    let address = Ipv4Addr::new(127, 0, 201, 1);
    plan.sources = Sources { addresses: vec![address.into()], ports: Some((20_001, 20_003)) };
    let mut watched = Watched::start(&plan, 8);
    // Three ports to each of two.
    watched.wait_failure(&Failure::NoPorts, 2);
    watched.wait_active(6);
    for peers in [peers, other_peers] {
        let mut sources: Vec<_> = peers
            .iter()
            .take(3)
            .map(|peer| peer.stream.peer_addr().expect("an address").to_string())
            .collect();
        sources.sort_unstable();
        assert_eq!(sources, [20_001, 20_002, 20_003].map(|port| format!("{address}:{port}")));
    }
}

#[test]
fn failures_have_their_reasons() {
    type Answer = fn(&str) -> Vec<u8>;
    let refusal = |text: &str| Failure::Refusal(400, text.to_owned());
    let answers: [(Answer, Failure); 7] = [
        (
            |_| b"HTTP/1.1 400 No\r\nContent-Length: 20\r\n\r\nuse \"match\"\nor \"more\"".to_vec(),
            refusal("use \"match\""),
        ),
        // What is not whole when the time is over is told as far as it came.
        (
            |_| b"HTTP/1.1 400 No\r\nContent-Length: 99\r\n\r\nnot without a to".to_vec(),
            refusal("not without a to"),
        ),
        (|_| b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n".to_vec(), Failure::Status(503)),
        (|_| b"SSH-2.0-x\r\n".to_vec(), Failure::Handshake("the answer is not HTTP/1")),
        (
            |_| b"HTTP/1.1 101 Yes\r\nSec-WebSocket-Accept: x\r\n\r\n".to_vec(),
            Failure::Handshake("Sec-WebSocket-Accept is wrong"),
        ),
        (
            |_| b"HTTP/1.1 101 Later\r\nRetry-After: 3\r\n\r\n\x88\x02\x03\xf5".to_vec(),
            Failure::Handshake("told to come back later"),
        ),
        (|_| Vec::new(), Failure::HandshakeTimeout),
    ];
    for (answer, failure) in answers {
        let (port, peers) = serve(answer);
        let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
        plan.target.handshake_timeout = Duration::from_millis(100);
        let mut watched = Watched::start(&plan, 3);
        watched.wait_failure(&failure, 3);
        assert_eq!((watched.all.failures.len(), watched.all.states.closed), (1, 3));
        drop(peers);
    }
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    let port = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    Watched::start(&plan, 3).wait_failure(&Failure::Refused, 3);
}

#[test]
fn what_the_server_ends_is_lost_and_counted() {
    let (mut watched, mut peers) = websockets(3, |_| {});
    watched.wait_active(3);
    watched.fleet.board().published(0, 2);
    let mut close = Vec::new();
    write_close(&mut close, 1012, "");
    peers[0].send(&close);
    peers[1].stream.shutdown(Shutdown::Both).expect("closed");
    peers[2].send(&[0x81, 0x80]);
    watched.wait("three closed", |tally| tally.states.closed == 3);
    let reasons: Vec<_> = watched.all.failures.keys().cloned().collect();
    let broken = Failure::Protocol("the frame's mask bit is wrong");
    assert_eq!(reasons, [Failure::Closed(None), Failure::Closed(Some(1012)), broken]);
    assert_eq!((watched.audit(2).lost, watched.fleet.audience(0)), (6, 0));
}

#[test]
fn after_a_storm_all_are_back_and_begin_anew() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 10);
    watched.wait_active(10);
    let first: Vec<_> = peers.iter().take(10).collect();
    watched.fleet.board().published(0, 7);
    watched.fleet.storm(IN_FLIGHT);
    first.into_iter().for_each(|mut peer| peer.await_end());
    watched.wait("all back", |tally| tally.subscribed == 20 && tally.states.active == 10);
    assert!(watched.all.failures.is_empty());
    assert_eq!(watched.audit(7), Audit::default());
    assert_eq!(watched.audit(8).lost, 10);
}

#[test]
fn a_storm_lasts_until_all_are_back() {
    static REFUSALS: AtomicUsize = AtomicUsize::new(usize::MAX);
    let (port, peers) = serve(|request| {
        let is_refused = REFUSALS.fetch_add(1, Ordering::Relaxed) < 4;
        if is_refused { b"HTTP/1.1 503 Full\r\n\r\n".to_vec() } else { upgrade(request) }
    });
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    // Wraps around to 0 with the first request of the storm.
    REFUSALS.store(usize::MAX - 5, Ordering::Relaxed);
    let mut watched = Watched::start(&plan, 6);
    watched.wait_active(6);
    watched.fleet.storm(IN_FLIGHT);
    watched.wait("all back", |tally| tally.subscribed == 12 && tally.states.active == 6);
    assert_eq!(watched.all.failures, [(Failure::Status(503), 4)].into());
    drop(peers);
}

#[test]
fn clients_come_and_go() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 10);
    watched.wait_active(10);
    watched.fleet.churn(500.0);
    watched.wait("some churn", |tally| tally.ended >= 20);
    watched.fleet.churn(0.0);
    watched.wait("all back", |tally| {
        tally.states.active == 10 && tally.subscribed == 10 + tally.ended
    });
    watched.fleet.ramp(3, Some(1000.0), IN_FLIGHT);
    watched.wait("seven closed", |tally| tally.states.active == 3 && tally.states.closed == 7);
    watched.fleet.ramp(5, None, IN_FLIGHT);
    watched.wait_active(5);
    drop(peers);
}

#[test]
fn a_ramp_keeps_its_rate() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let fleet = Fleet::start(&plan, 100).expect("started");
    let started = Instant::now();
    fleet.ramp(100, Some(400.0), IN_FLIGHT);
    let mut watched = Watched { fleet, all: Tally::default() };
    watched.wait_active(100);
    assert!(started.elapsed() >= Duration::from_millis(247), "{:?}", started.elapsed());
    drop(peers);
}

#[test]
fn slow_ones_do_not_read() {
    let (mut watched, mut peers) = websockets(4, |_| {});
    watched.wait_active(4);
    watched.fleet.slow(0.5, true);
    // Commands are obeyed in turn: once the tally is there, they do not read.
    watched.wait("slow", |_| true);
    let frame = watched.frame(1);
    peers.iter_mut().for_each(|peer| peer.send(&frame));
    watched.wait("two", |tally| tally.received == 2);
    thread::sleep(Duration::from_millis(20));
    watched.wait("still two", |tally| tally.received == 2);
    watched.fleet.slow(0.5, false);
    watched.wait("all", |tally| tally.received == 4);
}

fn event_stream(request: &str) -> Vec<u8> {
    assert!(request.contains("\r\nAccept: text/event-stream\r\n"), "{request}");
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec()
}

#[test]
fn event_streams_go_on_where_they_were() {
    let (port, peers) = serve(event_stream);
    let plan = plan(Transport::Sse, &format!("http://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 1);
    watched.fleet.keep(true);
    watched.wait_active(1);
    let event = |watched: &Watched, sequence: u32| {
        let payload = String::from_utf8(watched.payload(0, sequence)).expect("text");
        let event = format!("id: e-{sequence}\ndata: {payload}\n\n");
        format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
    };
    let mut peer = peers.recv().expect("a peer");
    // Cut in the middle of an event.
    let bytes = [event(&watched, 1), event(&watched, 2)].concat();
    peer.send(&bytes[..150]);
    watched.wait("the first", |tally| tally.received == 1);
    peer.send(&bytes[150..]);
    watched.wait("the second", |tally| tally.received == 2);
    peer.stream.shutdown(Shutdown::Both).expect("closed");
    let mut peer = peers.recv().expect("the same client again");
    assert!(peer.request.contains("\r\nLast-Event-ID: e-2\r\n"), "{}", peer.request);
    watched.wait_active(1);
    assert_eq!(watched.audit(4).lost, 2);
    peer.send(&[event(&watched, 3), event(&watched, 4)].concat());
    watched.wait("the rest", |tally| tally.received == 4);
    assert_eq!(watched.audit(4).lost, 0);
}

#[test]
fn a_long_poll_asks_again_from_where_it_was() {
    let (port, peers) = serve(|_| Vec::new());
    let plan = plan(Transport::LongPoll, &format!("http://127.0.0.1:{port}/c?wait=1"));
    let mut watched = Watched::start(&plan, 1);
    watched.wait_active(1);
    let mut peer = peers.recv().expect("a peer");
    // Published before the server knew the request, perhaps.
    watched.fleet.board().published(0, 4);
    let answer = |watched: &Watched, sequences: &[u32], close: &str| {
        let payloads: Vec<_> = sequences.iter().map(|&at| watched.payload(0, at)).collect();
        let body = payloads.join(&b'\n');
        let head = format!("HTTP/1.1 200 OK\r\nThrong-Id: e-{}\r\n{close}", sequences.len());
        let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), &body].concat()
    };
    peer.send(&answer(&watched, &[5, 6], ""));
    let asked = peer.next_request();
    assert!(asked.starts_with("GET /c?wait=1&since=e-2 HTTP/1.1\r\n"), "{asked}");
    peer.send(b"HTTP/1.1 204 No Content\r\nThrong-Id: e-9\r\n\r\n");
    assert!(peer.next_request().contains("since=e-9 "));
    peer.send(&answer(&watched, &[7], "Connection: close\r\n"));
    let peer = peers.recv().expect("the same client on a new connection");
    assert!(peer.request.contains("since=e-1 "), "{}", peer.request);
    watched.wait("three", |tally| tally.received == 3 && tally.states.active == 1);
    assert!(watched.all.failures.is_empty());
    assert_eq!(watched.audit(8).lost, 1);
}

#[test]
fn long_polls_that_are_held_ask_when_they_are_released() {
    let (port, peers) = serve(|_| Vec::new());
    let plan = plan(Transport::LongPoll, &format!("http://127.0.0.1:{port}/c?wait=1"));
    let mut watched = Watched::start(&plan, 1);
    let mut peer = peers.recv().expect("a peer");
    watched.fleet.hold_polls(true);
    // A thread that has answered this has heard of that.
    watched.wait_active(1);
    let answer = b"HTTP/1.1 200 OK\r\nThrong-Id: a-1\r\nContent-Length: 2\r\n\r\nhi";
    peer.send(answer);
    watched.wait("the answer", |tally| tally.unmarked == 1);
    // It has asked for nothing: what comes next is asked for after the release.
    peer.stream.set_nonblocking(true).expect("a socket");
    assert!(peer.stream.read(&mut [0; 1]).is_err());
    peer.stream.set_nonblocking(false).expect("a socket");
    watched.fleet.hold_polls(false);
    assert!(peer.next_request().contains("since=a-1"));
}

#[test]
fn friends_are_followed_each_for_itself() {
    let (mut watched, mut peers) = websockets(6, |plan| {
        plan.target.streams = Streams::Friends { edges: 2 };
        plan.target.url = Template::parse(&plan.target.url.text().replace("u{i}", "{streams:,}"))
            .expect("a template");
    });
    watched.wait_active(6);
    let (mut sent, mut received) = (vec![0; 6], 0);
    for stream in 0..6_u32 {
        let mut frame = Vec::new();
        write_frame(&mut frame, Opcode::Text, &watched.payload(stream, 1));
        sent[stream as usize] = 1;
        for peer in &mut peers {
            let path = peer.request.split(' ').nth(1).expect("a path");
            if path[1..].split(',').any(|followed| followed == stream.to_string()) {
                peer.send(&frame);
                received += 1;
            }
        }
        assert!(watched.fleet.audience(stream) <= 6);
    }
    assert_eq!(received, 12);
    watched.wait("all", |tally| tally.received == 12);
    let audit = watched.fleet.audit(sent.into());
    assert_eq!((audit.expected, audit.lost), (12, 0));
    let mut stray = Vec::new();
    let first = peers[0].request.split(' ').nth(1).expect("a path")[1..].to_owned();
    let other = (0..6).find(|stream| !first.contains(&stream.to_string())).expect("another");
    write_frame(&mut stray, Opcode::Text, &watched.payload(other, 2));
    peers[0].send(&stray);
    watched.wait("a stray one", |tally| tally.stray == 1);
}

#[test]
fn threads_follow_clients_cores_and_descriptors() {
    assert_eq!(thread_count(10, None, 8, 20_000), 1);
    assert_eq!(thread_count(10_000, None, 8, 20_000), 8);
    assert_eq!(thread_count(1_000_000, None, 2, 20_000), 52);
    assert_eq!(thread_count(100_000, Some(1), 2, 20_000), 6);
    assert_eq!(thread_count(0, None, 2, 0), 1);
}

//! A pool against small servers with blocking sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use throng_wire::websocket::{Opcode, accept_key, write_close, write_frame};

use super::pool::thread_count;
use super::*;
use crate::audit::Audit;
use crate::counts::ClientCounts;
use crate::failure::Failure;
use crate::marker::{Mark, now_ns};
use crate::plan::{
    Network, Ping, Plan, PortRange, Sources, Streams, Subscribed, Target, TlsSettings, Transport,
};
use crate::publish::tests::refusing_port;
use crate::template::Template;

mod closed_loop;
mod elsewhere;
mod gaps;
mod readers;

/// Ends a test that would hang. Never reached in a good run.
const DEADLINE: Duration = Duration::from_secs(20);

const IN_FLIGHT: usize = 64;

/// A server's end of a connection, with the request.
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

/// A server that answers each request with the result of `answer`, and passes its connections on.
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
            nodes: Vec::new(),
            failover: Vec::new(),
            headers: Vec::new(),
            subprotocol: None,
            deflate: false,
            hello: Vec::new(),
            subscribed: Subscribed::Handshake,
            refused: Vec::new(),
            pings: Vec::new(),
            handshake_timeout: DEADLINE,
            publish: None,
            streams: Streams::One,
            streams_each: 1,
            tls: TlsSettings::default(),
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
        options: crate::plan::Options::default(),
    }
}

/// A pool with its counts since the start.
struct Watched {
    pool: ClientPool,
    all: ClientCounts,
}

impl Watched {
    fn start(plan: &Plan, clients: usize) -> Watched {
        let pool = ClientPool::start(plan, clients).expect("started");
        pool.command(ClientCommand::Ramp { to: clients, rate: None, in_flight: IN_FLIGHT });
        Watched { pool, all: ClientCounts::default() }
    }

    fn wait(&mut self, what: &str, is_so: impl Fn(&ClientCounts) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let counts = self.pool.counts();
            let states = counts.states;
            self.all += &counts;
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
        self.wait("active", |counts| counts.states.active == count);
    }

    fn wait_failure(&mut self, failure: &Failure, count: u64) {
        self.wait("failure", |counts| counts.failures.get(failure) == Some(&count));
    }

    fn payload(&self, stream: u32, sequence: u32) -> Vec<u8> {
        self.pool.counters().published(stream, sequence);
        let mut payload = Vec::new();
        let mark = Mark { run: self.pool.run(), stream, sequence, intended_ns: now_ns() };
        mark.write_payload(80, &mut payload);
        payload
    }

    fn frame(&self, sequence: u32) -> Vec<u8> {
        let mut frame = Vec::new();
        write_frame(&mut frame, Opcode::Text, &self.payload(0, sequence));
        frame
    }

    fn audit(&self, last: u64) -> Audit {
        self.pool.audit([last].into())
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
    assert_eq!((watched.pool.audience(0), watched.all.subscribed), (20, 20));
    watched.pool.stop();
}

#[test]
fn lost_duplicated_and_late_messages_are_counted() {
    let (mut watched, mut peers) = websockets(4, |_| {});
    watched.wait_active(4);
    let frames: Vec<_> = (1..=5).map(|sequence| watched.frame(sequence)).collect();
    for (peer, order) in peers.iter_mut().zip([&[1, 2, 3, 4, 5][..], &[1, 3, 2, 4, 5], &[1, 1, 4]])
    {
        let bytes: Vec<_> = order.iter().map(|&sequence| &frames[sequence - 1][..]).collect();
        peer.send(&bytes.concat());
    }
    watched.wait("all that was sent", |counts| counts.received == 12);
    let audit = watched.audit(5);
    let expected =
        Audit { expected: 20, received: 12, lost: 8, missed: 0, duplicated: 1, reordered: 1 };
    assert_eq!(audit, expected);
    watched.pool.counters().refused(0, 5);
    assert_eq!(watched.audit(5).lost, 6);
    let deliveries = watched.pool.publishes(u64::MAX);
    let counts: Vec<_> =
        deliveries.iter().map(|publish| (publish.sequence, publish.latencies_us.len())).collect();
    assert_eq!(counts, [(1, 3), (2, 2), (3, 2), (4, 3), (5, 2)]);
}

#[test]
fn a_later_subscriber_expects_only_later_messages() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let pool = ClientPool::start(&plan, 1).expect("started");
    pool.counters().published(0, 3);
    pool.command(ClientCommand::Ramp { to: 1, rate: None, in_flight: 1 });
    let mut watched = Watched { pool, all: ClientCounts::default() };
    watched.wait_active(1);
    let mut peer = peers.recv().expect("a peer");
    // The third message was in transit meanwhile.
    peer.send(&[watched.frame(3), watched.frame(4)].concat());
    watched.wait("both", |counts| (counts.early, counts.received) == (1, 1));
    let audit = watched.audit(5);
    assert_eq!((audit.expected, audit.received, audit.lost), (2, 1, 1));
}

#[test]
fn pings_of_websocket_and_protocol_are_answered() {
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
    watched.wait("a notice", |counts| counts.unmarked == 1);
    assert_eq!(watched.all.states.connecting, 1);
    frames.clear();
    write_frame(&mut frames, Opcode::Text, b"{\"type\":\"welcome\"}");
    write_frame(&mut frames, Opcode::Ping, b"hi");
    write_frame(&mut frames, Opcode::Text, b"{}");
    peer.send(&frames);
    assert_eq!(&peer.receive::<8>(), b"\x8a\x82\0\0\0\0hi");
    assert_eq!(&peer.receive::<8>(), b"\x81\x82\0\0\0\0{}");
    watched.wait("pings", |counts| counts.pings == 2 && counts.states.active == 1);
}

#[test]
fn exhausted_ports_are_a_failure() {
    let (port, peers) = serve(upgrade);
    let (other_port, other_peers) = serve(upgrade);
    let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    plan.target.ports = vec![other_port];
    let address = Ipv4Addr::new(127, 0, 201, 1);
    plan.sources =
        Sources { addresses: vec![address.into()], ports: Some(PortRange((20_001, 20_003))) };
    let mut watched = Watched::start(&plan, 8);
    // Three ports to each of two targets.
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
fn failures_have_reasons() {
    type Answer = fn(&str) -> Vec<u8>;
    let refusal = |text: &str| Failure::Refusal(400, text.to_owned());
    let answers: [(Answer, Failure); 7] = [
        (
            |_| b"HTTP/1.1 400 No\r\nContent-Length: 20\r\n\r\nuse \"match\"\nor \"more\"".to_vec(),
            refusal("use \"match\""),
        ),
        // A rejection is reported as far as it arrived before the timeout.
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
        // The timeout is short where it has to pass: these servers have more to say, or nothing.
        if failure == refusal("not without a to") || failure == Failure::HandshakeTimeout {
            plan.target.handshake_timeout = Duration::from_secs(1);
        }
        let mut watched = Watched::start(&plan, 3);
        watched.wait_failure(&failure, 3);
        assert_eq!((watched.all.failures.len(), watched.all.states.closed), (1, 3));
        drop(peers);
    }
}

#[test]
fn a_closed_port_refuses() {
    let (_bound, port) = refusing_port();
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    Watched::start(&plan, 3).wait_failure(&Failure::Refused, 3);
}

#[test]
fn messages_after_a_close_by_the_server_are_lost() {
    let (mut watched, mut peers) = websockets(3, |_| {});
    watched.wait_active(3);
    watched.pool.counters().published(0, 2);
    let mut close = Vec::new();
    write_close(&mut close, 1012, "");
    peers[0].send(&close);
    peers[1].stream.shutdown(Shutdown::Both).expect("closed");
    peers[2].send(&[0x81, 0x80]);
    watched.wait("three closed", |counts| counts.states.closed == 3);
    let reasons: Vec<_> = watched.all.failures.keys().cloned().collect();
    let broken = Failure::Protocol("the frame's mask bit is wrong");
    assert_eq!(reasons, [Failure::Closed(None), Failure::Closed(Some(1012)), broken]);
    assert_eq!((watched.audit(2).lost, watched.pool.audience(0)), (6, 0));
}

#[test]
fn a_storm_reconnects_all_with_a_new_audit() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 10);
    watched.wait_active(10);
    let first: Vec<_> = peers.iter().take(10).collect();
    watched.pool.counters().published(0, 7);
    watched.pool.command(ClientCommand::Storm { in_flight: IN_FLIGHT });
    first.into_iter().for_each(|mut peer| peer.await_end());
    watched.wait("all back", |counts| counts.subscribed == 20 && counts.states.active == 10);
    assert!(watched.all.failures.is_empty());
    assert_eq!(watched.audit(7), Audit::default());
    assert_eq!(watched.audit(8).lost, 10);
}

#[test]
fn a_storm_ends_when_all_are_back() {
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
    watched.pool.command(ClientCommand::Storm { in_flight: IN_FLIGHT });
    watched.wait("all back", |counts| counts.subscribed == 12 && counts.states.active == 6);
    assert_eq!(watched.all.failures, [(Failure::Status(503), 4)].into());
    drop(peers);
}

#[test]
fn churn_closes_and_opens_clients() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 10);
    watched.wait_active(10);
    watched.pool.command(ClientCommand::Churn { rate: 500.0 });
    watched.wait("some churn", |counts| counts.ended >= 20);
    watched.pool.command(ClientCommand::Churn { rate: 0.0 });
    watched.wait("all back", |counts| {
        counts.states.active == 10 && counts.subscribed == 10 + counts.ended
    });
    watched.pool.command(ClientCommand::Ramp { to: 3, rate: Some(1000.0), in_flight: IN_FLIGHT });
    watched.wait("seven closed", |counts| counts.states.active == 3 && counts.states.closed == 7);
    watched.pool.command(ClientCommand::Ramp { to: 5, rate: None, in_flight: IN_FLIGHT });
    watched.wait_active(5);
    drop(peers);
}

#[test]
fn a_ramp_keeps_its_rate() {
    let (port, peers) = serve(upgrade);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let pool = ClientPool::start(&plan, 100).expect("started");
    let started = Instant::now();
    pool.command(ClientCommand::Ramp { to: 100, rate: Some(400.0), in_flight: IN_FLIGHT });
    let mut watched = Watched { pool, all: ClientCounts::default() };
    watched.wait_active(100);
    assert!(started.elapsed() >= Duration::from_millis(247), "{:?}", started.elapsed());
    drop(peers);
}

#[test]
fn slow_clients_do_not_read() {
    let (mut watched, mut peers) = websockets(4, |_| {});
    watched.wait_active(4);
    watched.pool.command(ClientCommand::Slow { share: 0.5, is_slow: true, speed: 0 });
    // Commands are executed in order, so after the counts they do not read.
    watched.wait("slow", |_| true);
    let frame = watched.frame(1);
    peers.iter_mut().for_each(|peer| peer.send(&frame));
    watched.wait("two", |counts| counts.received == 2);
    thread::sleep(Duration::from_millis(20));
    watched.wait("still two", |counts| counts.received == 2);
    watched.pool.command(ClientCommand::Slow { share: 0.5, is_slow: false, speed: 0 });
    watched.wait("all", |counts| counts.received == 4);
}

fn event_stream(request: &str) -> Vec<u8> {
    assert!(request.contains("\r\nAccept: text/event-stream\r\n"), "{request}");
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec()
}

#[test]
fn event_streams_resume() {
    let (port, peers) = serve(event_stream);
    let plan = plan(Transport::Sse, &format!("http://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 1);
    watched.pool.command(ClientCommand::Keep(true));
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
    watched.wait("the first", |counts| counts.received == 1);
    peer.send(&bytes[150..]);
    watched.wait("the second", |counts| counts.received == 2);
    peer.stream.shutdown(Shutdown::Both).expect("closed");
    let mut peer = peers.recv().expect("the same client again");
    assert!(peer.request.contains("\r\nLast-Event-ID: e-2\r\n"), "{}", peer.request);
    watched.wait_active(1);
    assert_eq!(watched.audit(4).lost, 2);
    peer.send(&[event(&watched, 3), event(&watched, 4)].concat());
    watched.wait("the rest", |counts| counts.received == 4);
    assert_eq!(watched.audit(4).lost, 0);
}

#[test]
fn a_long_poll_resumes_after_the_last_id() {
    let (port, peers) = serve(|_| Vec::new());
    let plan = plan(Transport::LongPoll, &format!("http://127.0.0.1:{port}/c?wait=1"));
    let mut watched = Watched::start(&plan, 1);
    watched.wait_active(1);
    let mut peer = peers.recv().expect("a peer");
    // May have been published before the server knew the request.
    watched.pool.counters().published(0, 4);
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
    watched.wait("three", |counts| counts.received == 3 && counts.states.active == 1);
    assert!(watched.all.failures.is_empty());
    assert_eq!(watched.audit(8).lost, 1);
}

#[test]
fn held_long_polls_poll_when_released() {
    let (port, peers) = serve(|_| Vec::new());
    let plan = plan(Transport::LongPoll, &format!("http://127.0.0.1:{port}/c?wait=1"));
    let mut watched = Watched::start(&plan, 1);
    let mut peer = peers.recv().expect("a peer");
    watched.pool.command(ClientCommand::HoldPolls(true));
    // A thread that has replied has executed the earlier command.
    watched.wait_active(1);
    let answer = b"HTTP/1.1 200 OK\r\nThrong-Id: a-1\r\nContent-Length: 2\r\n\r\nhi";
    peer.send(answer);
    watched.wait("the answer", |counts| counts.unmarked == 1);
    // The client has not polled: the next response belongs to a poll after the release.
    peer.stream.set_nonblocking(true).expect("a socket");
    assert!(peer.stream.read(&mut [0; 1]).is_err());
    peer.stream.set_nonblocking(false).expect("a socket");
    watched.pool.command(ClientCommand::HoldPolls(false));
    assert!(peer.next_request().contains("since=a-1"));
}

#[test]
fn each_followed_stream_has_its_own_audit() {
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
        assert!(watched.pool.audience(stream) <= 6);
    }
    assert_eq!(received, 12);
    watched.wait("all", |counts| counts.received == 12);
    let audit = watched.pool.audit(sent.into());
    assert_eq!((audit.expected, audit.lost), (12, 0));
    let mut stray = Vec::new();
    let first = peers[0].request.split(' ').nth(1).expect("a path")[1..].to_owned();
    let other = (0..6).find(|stream| !first.contains(&stream.to_string())).expect("another");
    write_frame(&mut stray, Opcode::Text, &watched.payload(other, 2));
    peers[0].send(&stray);
    watched.wait("a stray one", |counts| counts.stray == 1);
}

#[test]
fn thread_count_follows_clients_cores_and_descriptors() {
    assert_eq!(thread_count(10, None, 8, 20_000), 1);
    assert_eq!(thread_count(10_000, None, 8, 20_000), 8);
    assert_eq!(thread_count(1_000_000, None, 2, 20_000), 52);
    assert_eq!(thread_count(100_000, Some(1), 2, 20_000), 6);
    assert_eq!(thread_count(0, None, 2, 0), 1);
}

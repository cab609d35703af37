//! Publishers against small servers that respond well, badly or not at all.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::failure::Failure;
use crate::marker::{Mark, now_ns};
use crate::plan::{
    Pattern, Ping, PublishBy, PublishTarget, Publishing, Streams, Subscribed, Target, TlsSettings,
    Transport,
};
use crate::streams::StreamCounters;
use crate::template::Template;

pub(crate) const RUN: u32 = 0xf00d;

const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const CREATED: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";

pub(crate) fn template(text: &str) -> Template {
    Template::parse(text).expect("a template")
}

pub(crate) fn target(port: u16, connections: usize, pipeline: usize) -> Target {
    let by = PublishBy::Http {
        method: "POST".to_owned(),
        url: template(&format!("http://127.0.0.1:{port}/channels/c{{stream}}")),
        headers: vec![("X-Stream".to_owned(), template("{stream}"))],
        body: template("{payload}"),
    };
    Target {
        transport: Transport::WebSocket,
        url: template(&format!("ws://127.0.0.1:{port}/ws/{{i}}")),
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
        handshake_timeout: LIMIT,
        publish: Some(PublishTarget { by, connections, pipeline, refused: None }),
        streams: Streams::Spread(4),
        streams_each: 1,
        tls: TlsSettings::default(),
    }
}

/// A port that refuses connections, and what keeps others from it.
pub(crate) fn refusing_port() -> (OwnedFd, u16) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
    let address = SocketAddr::try_from(getsockname(&bound).expect("bound")).expect("an address");
    (bound, address.port())
}

/// Decides the response to a request, and whether the server closes after it.
pub(crate) type Behaviour = fn(usize) -> (&'static [u8], bool);

/// A server that reports the paths and marks of the requests it got.
pub(crate) fn serve(behaviour: Behaviour) -> (u16, Receiver<(String, Mark)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || speak(stream, behaviour, &sender));
        }
    });
    (port, requests)
}

fn speak(mut stream: TcpStream, behaviour: Behaviour, sender: &Sender<(String, Mark)>) {
    let mut received = Vec::new();
    let mut part = [0; 4096];
    let mut count = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut request = httparse::Request::new(&mut headers);
        if let Ok(httparse::Status::Complete(head)) = request.parse(&received) {
            let path = request.path.unwrap_or_default().to_owned();
            let length = request.headers.iter().find(|header| header.name == "Content-Length");
            let length: usize = length
                .and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok())
                .expect("a length");
            if let Some(body) = received.get(head..head + length) {
                let (mark, _) = Mark::find(body).expect("a mark");
                // The test may have ended.
                let _ = sender.send((path, mark));
                received.drain(..head + length);
                let (answer, closes) = behaviour(count);
                count += 1;
                if stream.write_all(answer).is_err() || closes {
                    return;
                }
                continue;
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => received.extend_from_slice(&part[..bytes]),
        }
    }
}

struct Run {
    publishers: Publishers,
    counters: Arc<StreamCounters>,
    start_ns: u64,
    counts: PublishCounts,
}

fn start(target: &Target, streams: u32) -> Run {
    let counters = Arc::new(StreamCounters::new(streams));
    let setting = PublisherSettings {
        target,
        run: RUN,
        counters: Arc::clone(&counters),
        max_clients: 100,
        max_rate: 40_000.0,
    };
    let publishers = Publishers::start(&setting).expect("started");
    Run { publishers, counters, start_ns: 0, counts: PublishCounts::default() }
}

impl Run {
    fn publish(&mut self, rate: f64, count: u64, to: Pattern) {
        self.publishers.open(LIMIT / 40);
        self.start_ns = now_ns();
        let publishing = Publishing { rate, count: Some(count), size: 100, to };
        let streams = self.counters.streams();
        let schedule = Schedule::new(&publishing, self.start_ns, LIMIT, streams, 0, 1);
        self.publishers.begin(schedule, publishing.size);
    }

    fn finish(&mut self) {
        let deadline = Instant::now() + LIMIT;
        while !self.publishers.is_idle() {
            assert!(Instant::now() < deadline, "the publishers do not end: {:?}", self.counts);
            std::thread::sleep(POLL_STEP);
            self.counts += &self.publishers.counts();
        }
        self.counts += &self.publishers.counts();
    }

    /// Sequences of stream 0 that were rejected.
    fn refused(&self, last: u32) -> Vec<u32> {
        (1..=last).filter(|&number| self.counters.refused_between(0, number, number) > 0).collect()
    }

    fn failures(&self) -> Vec<(String, u64)> {
        self.counts.failures.iter().map(|(failure, count)| (failure.to_string(), *count)).collect()
    }
}

#[test]
fn messages_are_sent_in_order_and_on_time() {
    let (port, requests) = serve(|_| (CREATED, false));
    let mut run = start(&target(port, 3, 1), 4);
    run.publish(2000.0, 400, Pattern::InTurn);
    run.finish();
    let counts = &run.counts;
    assert_eq!((counts.due, counts.sent, counts.published), (400, 400, 400));
    assert_eq!((run.failures(), counts.unsure, counts.answer.len()), (vec![], 0, 400));
    assert_eq!(*sent(&run.counters), [100, 100, 100, 100]);
    // None is sent before its time.
    assert!(counts.sending.first_ns() >= Some(run.start_ns));
    assert!(counts.sending.last_ns() >= Some(run.start_ns + 399 * 500_000));
    let mut last = BTreeMap::new();
    for (path, mark) in requests.try_iter() {
        assert_eq!((path, mark.run), (format!("/channels/c{}", mark.stream), RUN));
        let before = last.insert(mark.stream, mark.sequence).unwrap_or_default();
        assert_eq!(mark.sequence, before + 1);
        let number = u64::from(mark.sequence - 1) * 4 + u64::from(mark.stream);
        assert_eq!(mark.intended_ns, run.start_ns + number * 500_000);
    }
    assert_eq!(last.len(), 4);
}

#[test]
fn a_slow_response_delays_messages_but_not_the_schedule() {
    let slow: Behaviour = |_| {
        std::thread::sleep(Duration::from_millis(20));
        (CREATED, false)
    };
    let (port, _requests) = serve(slow);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 20, Pattern::One);
    run.finish();
    assert_eq!(run.counts.published, 20);
    // The last one was due after 19 ms, and was sent after 19 responses of 20 ms.
    let lateness_ms = run.counts.lateness.max() / 1_000_000;
    assert!(lateness_ms >= 350, "{lateness_ms}");
}

#[test]
fn pipelined_requests_do_not_wait_for_responses() {
    // The first two responses wait for the third request.
    const THREE: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok\
        HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok\
        HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
    let slow: Behaviour = |count| {
        if count < 2 {
            return (b"", false);
        }
        std::thread::sleep(Duration::from_millis(200));
        (THREE, false)
    };
    let (port, _requests) = serve(slow);
    let mut run = start(&target(port, 1, 64), 1);
    run.publish(1000.0, 3, Pattern::One);
    run.finish();
    assert_eq!((run.counts.published, run.failures()), (3, vec![]));
    assert!(run.counts.answer.max() >= 190_000_000, "{}", run.counts.answer.max());
}

#[test]
fn a_rejected_message_is_not_expected() {
    let refusing: Behaviour = |count| match count % 3 {
        0 => (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", false),
        _ => (CREATED, false),
    };
    let (port, _requests) = serve(refusing);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 9, Pattern::One);
    run.finish();
    assert_eq!((run.counts.published, run.counts.unsure), (6, 0));
    assert_eq!(run.failures(), [("status 503".to_owned(), 3)]);
    assert_eq!(run.refused(9), [1, 4, 7]);
}

#[test]
fn a_closed_connection_is_reopened() {
    let closing: Behaviour = |_| (b"HTTP/1.1 200 OK\r\n\r\nok", true);
    let (port, _requests) = serve(closing);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 10, Pattern::One);
    run.finish();
    assert_eq!((run.counts.published, run.failures()), (10, vec![]));
}

#[test]
fn a_lost_connection_leaves_one_message_unsure() {
    let cutting: Behaviour =
        |count| if count == 2 { (b"HTTP/1.1 2", true) } else { (CREATED, false) };
    let (port, _requests) = serve(cutting);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 5, Pattern::One);
    run.finish();
    assert_eq!((run.counts.published, run.counts.unsure), (4, 1));
    assert_eq!(run.failures(), [("closed by the server".to_owned(), 1)]);
    assert_eq!(run.refused(5), [3]);
}

#[test]
fn a_missing_response_times_out() {
    let (port, _requests) = serve(|_| (b"", false));
    let mut target = target(port, 1, 4);
    target.handshake_timeout = Duration::from_millis(300);
    let mut run = start(&target, 1);
    run.publish(1000.0, 2, Pattern::One);
    run.finish();
    assert_eq!(run.counts.failures, BTreeMap::from([(Failure::Unanswered, 2)]));
}

#[test]
fn without_a_server_every_message_fails() {
    let (_bound, port) = refusing_port();
    let mut run = start(&target(port, 2, 1), 4);
    run.publish(1000.0, 50, Pattern::Random);
    run.finish();
    let refused = Failure::Refused;
    assert_eq!(run.counts.failures, BTreeMap::from([(refused, 50)]));
    assert_eq!((run.counts.sent, run.counts.due), (0, 50));
}

#[test]
fn waiting_messages_can_be_given_up() {
    let (port, _requests) = serve(|count| {
        std::thread::sleep(LIMIT * u32::from(count > 0));
        (CREATED, false)
    });
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(10_000.0, 10, Pattern::One);
    let deadline = Instant::now() + LIMIT;
    while run.counts.due < 10 || run.counts.sent < 2 {
        assert!(Instant::now() < deadline);
        run.counts += &run.publishers.counts();
    }
    run.publishers.abandon();
    run.finish();
    let failures = [(Failure::Unanswered, 1), (Failure::Unsent, 8)];
    assert_eq!((run.counts.published, &run.counts.failures), (1, &BTreeMap::from(failures)));
}

#[test]
fn a_response_body_can_reject() {
    const REFUSAL: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n\
        {\"error\":{\"code\": 102 }}";
    let (port, _requests) = serve(|count| (if count == 1 { REFUSAL } else { CREATED }, false));
    let mut target = target(port, 1, 1);
    target.publish = target
        .publish
        .map(|publish| PublishTarget { refused: Some("\"error\":".to_owned()), ..publish });
    let mut run = start(&target, 1);
    run.publish(1000.0, 3, Pattern::One);
    run.finish();
    let said = Failure::Message("{\"error\":{\"code\": 102 }}".to_owned());
    let failures = BTreeMap::from([(said, 1)]);
    assert_eq!((run.counts.published, &run.counts.failures), (2, &failures));
}

#[test]
fn an_unusable_publish_url_is_an_error() {
    let mut target = target(1, 1, 1);
    let counters = Arc::new(StreamCounters::new(1));
    let refusal = |target: &Target| {
        let counters = Arc::clone(&counters);
        let setting =
            PublisherSettings { target, run: RUN, counters, max_clients: 1, max_rate: 1.0 };
        Publishers::start(&setting).err().map(|error| error.to_string()).unwrap_or_default()
    };
    if let Some(publish) = &mut target.publish
        && let PublishBy::Http { url, .. } = &mut publish.by
    {
        *url = template("gopher://127.0.0.1/c{stream}");
    }
    assert!(refusal(&target).starts_with("the target \"gopher://127.0.0.1/c0\" cannot be loaded"));
    target.publish = None;
    assert_eq!(refusal(&target), "the plan does not say how to publish");
}

#[test]
fn frames_of_one_client_are_published() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, texts) = channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut socket = tungstenite::accept(stream).expect("a handshake");
        let mut next = || socket.read().expect("a frame");
        // After the hello of the client, the server confirms the subscription and pings.
        sender.send(next().to_string()).expect("heard");
        let mut say = |message| socket.send(message).expect("sent");
        say(tungstenite::Message::Ping(b"p".to_vec().into()));
        say(tungstenite::Message::text("{}\nare you there"));
        say(tungstenite::Message::text("{\"subscribed\":true}"));
        while let Ok(message) = socket.read() {
            let text = match &message {
                tungstenite::Message::Pong(bytes) => format!("pong {}", bytes.len()),
                message => message.to_string(),
            };
            sender.send(text).expect("heard");
        }
    });
    let mut target = target(port, 1, 1);
    target.hello = vec![template("hello {i}")];
    target.subscribed = Subscribed::Message("\"subscribed\"".to_owned());
    target.pings = vec![Ping { ask: "are you there".to_owned(), answer: "yes".to_owned() }];
    let by = PublishBy::WebSocket { frame: template("{\"to\":{stream},\"data\":\"{payload}\"}") };
    target.publish = Some(PublishTarget { by, connections: 1, pipeline: 1, refused: None });
    let mut run = start(&target, 2);
    run.publish(1000.0, 4, Pattern::InTurn);
    run.finish();
    assert_eq!((run.counts.published, run.failures()), (4, vec![]));
    let heard: Vec<String> = (0..7).map(|_| texts.recv_timeout(LIMIT).expect("a frame")).collect();
    assert_eq!(heard[..3], ["hello 100", "pong 1", "yes"]);
    for (number, text) in heard[3..].iter().enumerate() {
        assert!(text.starts_with(&format!("{{\"to\":{},\"data\":\"~thr1.", number % 2)), "{text}");
    }
}

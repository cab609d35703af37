//! Publishers against small servers that answer well, badly or not at all.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::tally::PublishFailure;
use super::*;
use crate::clients::board::Board;
use crate::marker::{Mark, now_ns};
use crate::plan::{
    Pattern, Ping, PublishTarget, Publishing, Streams, Subscribed, Target, Transport,
};
use crate::tally::Failure;
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
        headers: Vec::new(),
        subprotocol: None,
        hello: Vec::new(),
        subscribed: Subscribed::Handshake,
        refused: Vec::new(),
        pings: Vec::new(),
        handshake_timeout: Duration::from_millis(300),
        publish: Some(PublishTarget { by, connections, pipeline, refused: None }),
        streams: Streams::Spread(4),
    }
}

/// What a server makes of a request: what it answers, and whether it closes then.
pub(crate) type Behaviour = fn(usize) -> (&'static [u8], bool);

/// A server that tells the paths and marks of the requests that came.
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
                // The test may have seen enough.
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
    board: Arc<Board>,
    start_ns: u64,
    tally: PublishTally,
}

fn start(target: &Target, streams: u32) -> Run {
    let board = Arc::new(Board::new(streams));
    let setting = Setting {
        target,
        run: RUN,
        board: Arc::clone(&board),
        clients_max: 100,
        rate_max: 40_000.0,
    };
    let publishers = Publishers::start(&setting).expect("started");
    Run { publishers, board, start_ns: 0, tally: PublishTally::default() }
}

impl Run {
    fn publish(&mut self, rate: f64, count: u64, to: Pattern) {
        self.publishers.open(LIMIT / 40);
        self.start_ns = now_ns();
        let publishing = Publishing { rate, count: Some(count), size: 100, to };
        let streams = self.board.streams();
        let schedule = Schedule::new(&publishing, self.start_ns, LIMIT, streams, 0, 1);
        self.publishers.begin(schedule, publishing.size);
    }

    fn finish(&mut self) {
        let deadline = Instant::now() + LIMIT;
        while !self.publishers.is_idle() {
            assert!(Instant::now() < deadline, "the publishers do not end: {:?}", self.tally);
            std::thread::sleep(POLL_STEP);
            self.tally.merge(&self.publishers.tally());
        }
        self.tally.merge(&self.publishers.tally());
    }

    /// Sequences of stream 0 that nobody is to expect.
    fn refused(&self, last: u32) -> Vec<u32> {
        (1..=last).filter(|&number| self.board.refused_between(0, number, number) > 0).collect()
    }

    fn failures(&self) -> Vec<(String, u64)> {
        self.tally.failures.iter().map(|(failure, count)| (failure.to_string(), *count)).collect()
    }
}

#[test]
fn every_message_goes_out_in_order_at_its_time() {
    let (port, requests) = serve(|_| (CREATED, false));
    let mut run = start(&target(port, 3, 1), 4);
    run.publish(2000.0, 400, Pattern::InTurn);
    run.finish();
    let tally = &run.tally;
    assert_eq!((tally.due, tally.sent, tally.published), (400, 400, 400));
    assert_eq!((run.failures(), tally.unsure, tally.answer.len()), (vec![], 0, 400));
    assert_eq!(*run.publishers.sent(), [100, 100, 100, 100]);
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
fn a_slow_answer_makes_messages_late_and_does_not_hold_up_the_schedule() {
    let slow: Behaviour = |_| {
        std::thread::sleep(Duration::from_millis(20));
        (CREATED, false)
    };
    let (port, _requests) = serve(slow);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 20, Pattern::One);
    run.finish();
    assert_eq!(run.tally.published, 20);
    // The last was due after 19 ms, and its turn came after 19 answers of 20 ms.
    let lateness_ms = run.tally.lateness.max() / 1_000_000;
    assert!(lateness_ms >= 350, "{lateness_ms}");
}

#[test]
fn pipelined_requests_do_not_wait_for_answers() {
    let slow: Behaviour = |count| {
        if count == 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
        (CREATED, false)
    };
    let (port, _requests) = serve(slow);
    let mut run = start(&target(port, 1, 64), 1);
    run.publish(1000.0, 20, Pattern::One);
    run.finish();
    assert_eq!(run.tally.published, 20);
    assert!(run.tally.lateness.max() < 100_000_000, "{}", run.tally.lateness.max());
    assert!(run.tally.answer.max() >= 190_000_000, "{}", run.tally.answer.max());
}

#[test]
fn a_refused_message_is_nobodys_due() {
    let refusing: Behaviour = |count| match count % 3 {
        0 => (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", false),
        _ => (CREATED, false),
    };
    let (port, _requests) = serve(refusing);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 9, Pattern::One);
    run.finish();
    assert_eq!((run.tally.published, run.tally.unsure), (6, 0));
    assert_eq!(run.failures(), [("status 503".to_owned(), 3)]);
    assert_eq!(run.refused(9), [1, 4, 7]);
}

#[test]
fn a_server_that_closes_is_connected_to_again() {
    let closing: Behaviour = |_| (b"HTTP/1.1 200 OK\r\n\r\nok", true);
    let (port, _requests) = serve(closing);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 10, Pattern::One);
    run.finish();
    assert_eq!((run.tally.published, run.failures()), (10, vec![]));
}

#[test]
fn a_connection_lost_leaves_its_message_unsure_and_the_others_go_on() {
    let cutting: Behaviour =
        |count| if count == 2 { (b"HTTP/1.1 2", true) } else { (CREATED, false) };
    let (port, _requests) = serve(cutting);
    let mut run = start(&target(port, 1, 1), 1);
    run.publish(1000.0, 5, Pattern::One);
    run.finish();
    assert_eq!((run.tally.published, run.tally.unsure), (4, 1));
    assert_eq!(run.failures(), [("closed by the server".to_owned(), 1)]);
    assert_eq!(run.refused(5), [3]);
}

#[test]
fn no_answer_is_waited_for_for_ever() {
    let (port, _requests) = serve(|_| (b"", false));
    let mut run = start(&target(port, 1, 4), 1);
    run.publish(1000.0, 2, Pattern::One);
    run.finish();
    assert_eq!(run.tally.failures, BTreeMap::from([(PublishFailure::Unanswered, 2)]));
}

#[test]
fn nobody_there_is_a_failure_of_each_message() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let mut run = start(&target(port, 2, 1), 4);
    run.publish(1000.0, 50, Pattern::Random);
    run.finish();
    let refused = PublishFailure::Connection(Failure::Refused);
    assert_eq!(run.tally.failures, BTreeMap::from([(refused, 50)]));
    assert_eq!((run.tally.sent, run.tally.due), (0, 50));
}

#[test]
fn what_waits_can_be_given_up() {
    let (port, _requests) = serve(|count| {
        std::thread::sleep(LIMIT * u32::from(count > 0));
        (CREATED, false)
    });
    let mut target = target(port, 1, 1);
    target.handshake_timeout = LIMIT;
    let mut run = start(&target, 1);
    run.publish(10_000.0, 10, Pattern::One);
    let deadline = Instant::now() + LIMIT;
    while run.tally.due < 10 || run.tally.sent < 2 {
        assert!(Instant::now() < deadline);
        run.tally.merge(&run.publishers.tally());
    }
    run.publishers.abandon();
    run.finish();
    let failures = [(PublishFailure::Unanswered, 1), (PublishFailure::Unsent, 8)];
    assert_eq!((run.tally.published, &run.tally.failures), (1, &BTreeMap::from(failures)));
}

#[test]
fn an_answer_may_refuse_in_its_body() {
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
    let said = Failure::Said("{\"error\":{\"code\": 102 }}".to_owned());
    let failures = BTreeMap::from([(PublishFailure::Connection(said), 1)]);
    assert_eq!((run.tally.published, &run.tally.failures), (2, &failures));
}

#[test]
fn a_url_that_cannot_be_published_to_is_refused() {
    let mut target = target(1, 1, 1);
    let board = Arc::new(Board::new(1));
    let refusal = |target: &Target| {
        let board = Arc::clone(&board);
        let setting = Setting { target, run: RUN, board, clients_max: 1, rate_max: 1.0 };
        Publishers::start(&setting).err().map(|error| error.to_string()).unwrap_or_default()
    };
    if let Some(publish) = &mut target.publish
        && let PublishBy::Http { url, .. } = &mut publish.by
    {
        *url = template("https://127.0.0.1/c{stream}");
    }
    assert!(refusal(&target).starts_with("\"https://127.0.0.1/c0\" cannot be published to"));
    target.publish = None;
    assert_eq!(refusal(&target), "the plan does not say how to publish");
}

#[test]
fn frames_of_one_client_are_publishes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, texts) = channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut socket = tungstenite::accept(stream).expect("a handshake");
        let mut next = || socket.read().expect("a frame");
        // Once the client has said hello, it is told that it is subscribed, and pinged.
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
    assert_eq!((run.tally.published, run.failures()), (4, vec![]));
    let heard: Vec<String> = (0..7).map(|_| texts.recv_timeout(LIMIT).expect("a frame")).collect();
    assert_eq!(heard[..3], ["hello 100", "pong 1", "yes"]);
    for (number, text) in heard[3..].iter().enumerate() {
        assert!(text.starts_with(&format!("{{\"to\":{},\"data\":\"~thr1.", number % 2)), "{text}");
    }
}

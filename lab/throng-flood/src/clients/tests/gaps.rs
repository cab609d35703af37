//! Gaps that the server announces.

use super::*;

#[test]
fn an_announced_gap_is_missed_and_not_lost() {
    let (port, peers) = serve(|_| Vec::new());
    let plan = plan(Transport::LongPoll, &format!("http://127.0.0.1:{port}/c?wait=1"));
    let mut watched = Watched::start(&plan, 1);
    watched.wait_active(1);
    let mut peer = peers.recv().expect("a peer");
    let answer = |watched: &Watched, sequence: u32, recovered: &str| {
        let body = watched.payload(0, sequence);
        let head = format!("HTTP/1.1 200 OK\r\nThrong-Id: e-{sequence}\r\n{recovered}");
        let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), &body].concat()
    };
    peer.send(&answer(&watched, 1, ""));
    peer.next_request();
    // One of the missing messages was rejected.
    watched.pool.counters().refused(0, 3);
    peer.send(&answer(&watched, 6, "Throng-Recovered: false\r\n"));
    peer.next_request();
    // This gap is not announced.
    peer.send(&answer(&watched, 8, "Throng-Recovered: true\r\n"));
    watched.wait("three", |counts| counts.received == 3);
    let audit = watched.audit(9);
    assert_eq!((audit.expected, audit.received), (8, 3));
    assert_eq!((audit.missed, audit.lost), (3, 2));
}

#[test]
fn a_resumed_event_stream_announces_a_gap() {
    let (port, peers) = serve(|request| {
        let recovered = if request.contains("Last-Event-ID") { "false" } else { "true" };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nThrong-Recovered: ";
        format!("{head}{recovered}\r\n\r\n").into_bytes()
    });
    let plan = plan(Transport::Sse, &format!("http://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 1);
    watched.pool.command(ClientCommand::Keep(true));
    watched.wait_active(1);
    let event = |watched: &Watched, sequence: u32| {
        let payload = String::from_utf8(watched.payload(0, sequence)).expect("text");
        format!("id: e-{sequence}\ndata: {payload}\n\n").into_bytes()
    };
    let mut peer = peers.recv().expect("a peer");
    peer.send(&event(&watched, 1));
    watched.wait("the first", |counts| counts.received == 1);
    peer.stream.shutdown(Shutdown::Both).expect("closed");
    let mut peer = peers.recv().expect("the same client again");
    peer.send(&[event(&watched, 5), event(&watched, 7)].concat());
    watched.wait("the rest", |counts| counts.received == 3);
    let audit = watched.audit(7);
    assert_eq!((audit.expected, audit.missed, audit.lost), (7, 3, 1));
}

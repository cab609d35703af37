//! Rejections, several messages in one frame, reconnecting clients, and large storms.

use super::*;

fn joining(plan: &mut Plan) {
    plan.target.subscribed = Subscribed::Message("joined".to_owned());
    plan.target.refused = vec!["\"error\":".to_owned()];
    plan.target.pings = vec![Ping { ask: "{}".to_owned(), answer: "pong".to_owned() }];
}

fn text(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    write_frame(&mut frame, Opcode::Text, text);
    frame
}

#[test]
fn a_ping_among_the_lines_of_a_frame_is_answered() {
    let (mut watched, mut peers) = websockets(1, joining);
    peers[0].send(&text(b"joined\n{}"));
    // The mask is zero.
    const PONG: [u8; 10] = *b"\x81\x84\0\0\0\0pong";
    assert_eq!(peers[0].receive(), PONG);
    watched.wait_active(1);
    let payload = watched.payload(0, 1);
    peers[0].send(&text(&[b"{}\n".as_slice(), &payload, b"\n{}"].concat()));
    assert_eq!(peers[0].receive::<20>(), [PONG, PONG].concat()[..]);
    watched.wait("the message", |counts| counts.received == 1 && counts.pings == 3);
}

#[test]
fn a_rejection_is_reported_at_once_with_its_text() {
    let (mut watched, mut peers) = websockets(2, joining);
    let denied = "{\"id\":2,\"error\":{\"code\":103}}";
    peers[0].send(&text(format!("{{\"id\":1}}\n{denied}").as_bytes()));
    watched.wait_failure(&Failure::Message(denied.to_owned()), 1);
    // A subscribed client gets messages, whatever their text.
    peers[1].send(&text(b"joined"));
    watched.wait_active(1);
    peers[1].send(&text(b"{\"error\":\"of another client\"}"));
    watched.wait("a message", |counts| counts.unmarked == 2);
    assert_eq!((watched.all.states.active, watched.all.failures.len()), (1, 1));
}

#[test]
fn kept_clients_reconnect() {
    let (port, peers) = serve(upgrade);
    let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    plan.keep = true;
    let mut watched = Watched::start(&plan, 3);
    watched.wait_active(3);
    drop(peers.recv().expect("a peer"));
    watched.wait("back", |counts| counts.subscribed == 4 && counts.states.active == 3);
    assert_eq!(watched.all.failures, [(Failure::Closed(None), 1)].into());
    watched.pool.command(ClientCommand::Ramp { to: 1, rate: None, in_flight: IN_FLIGHT });
    watched.wait("two closed", |counts| counts.states.active == 1 && counts.states.closed == 2);
    drop(peers);
}

#[test]
fn a_storm_closes_all_before_it_opens_any() {
    const CLIENTS: usize = 700;
    let (port, peers) = serve(upgrade);
    let mut plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    plan.threads = Some(1);
    let mut watched = Watched::start(&plan, CLIENTS);
    watched.wait_active(CLIENTS as u64);
    let first: Vec<_> = peers.iter().take(CLIENTS).collect();
    watched.pool.command(ClientCommand::Storm { in_flight: IN_FLIGHT });
    // The first client that is back finds all others closed.
    let back = peers.recv().expect("one that is back");
    for mut peer in first {
        peer.stream.set_nonblocking(true).expect("set");
        let ended = peer.stream.read(&mut [0; 64]);
        let is_open = ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!is_open, "{:?}", peer.stream);
    }
    let all = CLIENTS as u64;
    watched.wait("all back", |counts| counts.subscribed == 2 * all && counts.states.active == all);
    watched.pool.command(ClientCommand::Ramp { to: 0, rate: None, in_flight: IN_FLIGHT });
    watched.wait("all closed", |counts| counts.states.closed == all);
    drop((back, peers));
}

/// Tells each second client to come back after some milliseconds, and lets in all that come later.
fn tell_some(request: &str) -> Vec<u8> {
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let mut answer = upgrade(request);
    if (10..20).contains(&number) {
        answer.truncate(answer.len() - 2);
        answer.extend_from_slice(b"Retry-After: 3600\r\n\r\n");
        write_close(&mut answer, 1013, "reconnect in 7 ms");
    }
    answer
}

#[test]
fn clients_reconnect_when_the_server_tells_them_to() {
    let (port, peers) = serve(tell_some);
    let plan = plan(Transport::WebSocket, &format!("ws://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 10);
    watched.wait_active(10);
    watched.pool.command(ClientCommand::Storm { in_flight: IN_FLIGHT });
    watched.wait("all back", |counts| counts.subscribed == 20 && counts.states.active == 10);
    assert_eq!((watched.all.told, watched.all.attempts), (10, 30));
    assert_eq!(watched.all.failures, [].into(), "who comes back has not failed");
    drop(peers);
}

#[test]
fn polls_of_a_storm_come_back_and_others_fail() {
    const LATER: &[u8] = b"HTTP/1.1 503 Later\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n";
    let (port, peers) = serve(|_| Vec::new());
    let plan = plan(Transport::LongPoll, &format!("http://127.0.0.1:{port}/"));
    let mut watched = Watched::start(&plan, 2);
    watched.wait_active(2);
    let (mut first, second) = (peers.recv().expect("a peer"), peers.recv().expect("another"));
    first.send(LATER);
    watched.wait_failure(&Failure::Status(503), 1);
    watched.pool.command(ClientCommand::Storm { in_flight: IN_FLIGHT });
    let mut back = peers.recv().expect("it is back");
    back.send(LATER);
    let again = peers.recv().expect("it has come again");
    watched.wait("a moment", |counts| counts.told == 1 && counts.states.active == 1);
    assert_eq!(watched.all.failures, [(Failure::Status(503), 1)].into());
    drop((first, second, back, again));
}

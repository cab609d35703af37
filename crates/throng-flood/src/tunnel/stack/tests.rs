//! A client against a simple server, over a wire that loses, delays and repeats.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::publish::random::{below, random};
use crate::tunnel::timers::ATTEMPTS_MAX;

/// A server's end: takes what is in order, sends all that the window allows, and everything again
/// after [`PATIENCE_NS`].
struct Peer {
    end: SocketAddrV4,
    client: Option<SocketAddrV4>,
    to_send: Vec<u8>,
    /// The number of the first byte of `to_send`.
    first: u32,
    acknowledged: usize,
    sent: usize,
    window: usize,
    expected: u32,
    received: Vec<u8>,
    has_heard_end: bool,
    is_reset: bool,
    sent_at_ns: u64,
}

const PATIENCE_NS: u64 = 200_000_000;
const STEP_NS: u64 = 10_000_000;
const SERVER: &str = "127.0.0.1:80";

/// Packets on their way, each with the time of its arrival.
#[derive(Default)]
struct Way(Vec<(u64, Vec<u8>)>);

impl Way {
    fn due(&mut self, now_ns: u64) -> VecDeque<Vec<u8>> {
        let (due, later) =
            std::mem::take(&mut self.0).into_iter().partition(|each| each.0 <= now_ns);
        self.0 = later;
        let due: Vec<(u64, Vec<u8>)> = due;
        due.into_iter().map(|(_, packet)| packet).collect()
    }
}

/// What goes wrong.
struct Fate {
    seed: u64,
    asked: u64,
    /// Shares of 256 that are lost, late and doubled.
    shares: (u8, u8, u8),
    /// The same packet is lost twice at most, so that hardly anybody gives up.
    lost: HashMap<Vec<u8>, u8>,
}

impl Fate {
    /// Puts a packet on its way: never, once or twice, now or later.
    fn put(&mut self, way: &mut Way, now_ns: u64, segment: &Segment<'_>) {
        let mut packet = Vec::new();
        packet::write(segment, &mut packet);
        let mut is = |share: u8| {
            self.asked += 1;
            below(random(self.seed, self.asked), 256) < u32::from(share)
        };
        let (lost, late, doubled) = self.shares;
        if is(lost) {
            let times = self.lost.entry(packet.clone()).or_default();
            *times += 1;
            if *times <= 2 {
                return;
            }
        }
        if is(doubled) {
            way.0.push((now_ns + 2 * STEP_NS, packet.clone()));
        }
        let delay_ns = if is(late) { 3 * STEP_NS } else { 0 };
        way.0.push((now_ns + delay_ns, packet));
    }
}

#[derive(Default)]
struct Caught(Vec<Vec<u8>>);

impl Wire for Caught {
    fn send(&mut self, segment: &Segment<'_>) {
        let mut packet = Vec::new();
        packet::write(segment, &mut packet);
        self.0.push(packet);
    }
}

impl Caught {
    /// What was sent since the last time.
    fn flags(&mut self) -> Vec<(Flags, u32, u32, usize)> {
        let read = |packet: Vec<u8>| {
            let segment = packet::parse(&packet).expect("a segment");
            (segment.flags, segment.sequence, segment.acknowledged, segment.payload.len())
        };
        self.0.drain(..).map(read).collect()
    }
}

impl Peer {
    fn new(to_send: Vec<u8>, first: u32) -> Peer {
        Peer {
            end: SERVER.parse().expect("an address"),
            client: None,
            to_send,
            first,
            acknowledged: 0,
            sent: 0,
            window: 0,
            expected: 0,
            received: Vec::new(),
            has_heard_end: false,
            is_reset: false,
            sent_at_ns: 0,
        }
    }

    fn segment<'a>(&self, flags: Flags, sequence: u32, payload: &'a [u8]) -> Segment<'a> {
        Segment {
            from: self.end,
            to: self.client.expect("a client"),
            sequence,
            acknowledged: self.expected,
            flags,
            window: 1_000,
            segment_bytes_max: None,
            payload,
        }
    }

    fn receive(&mut self, packet: &[u8], now_ns: u64, send: &mut impl FnMut(&Segment<'_>)) {
        let segment = packet::parse(packet).expect("a segment");
        if segment.flags.has(Flags::RST) {
            self.is_reset = true;
            return;
        }
        if segment.flags.has(Flags::SYN) && self.window > 0 {
            // One that was late.
            let next = self.first.wrapping_add(self.sent as u32);
            return send(&self.segment(Flags::ACK, next, &[]));
        }
        if segment.flags.has(Flags::SYN) {
            self.client = Some(segment.from);
            self.expected = segment.sequence.wrapping_add(1);
            let flags = Flags::SYN.and(Flags::ACK);
            send(&self.segment(flags, self.first.wrapping_sub(1), &[]));
            return;
        }
        let acknowledged = segment.acknowledged.wrapping_sub(self.first) as usize;
        // One more for `FIN`.
        if acknowledged <= self.to_send.len() + 1 && acknowledged >= self.acknowledged {
            self.acknowledged = acknowledged;
            self.window = usize::from(segment.window);
            self.sent = self.sent.max(acknowledged);
        }
        if segment.length() > 0 {
            if segment.sequence == self.expected {
                self.received.extend_from_slice(segment.payload);
                self.expected = self.expected.wrapping_add(segment.length());
                self.has_heard_end |= segment.flags.has(Flags::FIN);
            }
            let next = self.first.wrapping_add(self.sent as u32);
            send(&self.segment(Flags::ACK, next, &[]));
        }
        self.send_on(now_ns, send);
    }

    /// What the window allows; at the end, that there is no more.
    fn send_on(&mut self, now_ns: u64, send: &mut impl FnMut(&Segment<'_>)) {
        let edge = self.acknowledged + self.window;
        while self.sent < self.to_send.len() && self.sent < edge {
            let to = self.to_send.len().min(edge).min(self.sent + 1_400);
            let sequence = self.first.wrapping_add(self.sent as u32);
            send(&self.segment(Flags::ACK, sequence, &self.to_send[self.sent..to]));
            (self.sent, self.sent_at_ns) = (to, now_ns);
        }
        if self.sent == self.to_send.len() {
            let sequence = self.first.wrapping_add(self.sent as u32);
            send(&self.segment(Flags::FIN.and(Flags::ACK), sequence, &[]));
            (self.sent, self.sent_at_ns) = (self.sent + 1, now_ns);
        }
    }

    fn repeat(&mut self, now_ns: u64, send: &mut impl FnMut(&Segment<'_>)) {
        if self.client.is_none() || self.is_over() || now_ns - self.sent_at_ns < PATIENCE_NS {
            return;
        }
        self.sent_at_ns = now_ns;
        if self.expected != 0 && self.window == 0 && self.acknowledged == 0 {
            // The answer to `SYN`, or the last word of the handshake, is lost.
            let flags = Flags::SYN.and(Flags::ACK);
            send(&self.segment(flags, self.first.wrapping_sub(1), &[]));
        }
        self.sent = self.acknowledged;
        if self.window == 0 && self.sent < self.to_send.len() {
            // Is there still no room?
            let sequence = self.first.wrapping_add(self.sent as u32);
            send(&self.segment(Flags::ACK, sequence, &self.to_send[self.sent..=self.sent]));
        }
        self.send_on(now_ns, send);
    }

    fn is_over(&self) -> bool {
        self.acknowledged == self.to_send.len() + 1
    }
}

fn stack() -> Stack {
    let targets = Targets { addresses: vec![SERVER.parse().unwrap()], first: 0, step: 1 };
    Stack::new(Addresses::of_device(3), targets, 1_000)
}

/// What both sides got when a client says `request` and a server `answer`, from a time on. The
/// client does not read half of the time if it `is_slow`. Nothing if it gave up.
fn talk(
    request: &[u8],
    answer: &[u8],
    (began_ns, first): (u64, u32),
    (seed, shares): (u64, (u8, u8, u8)),
    is_slow: bool,
) -> Option<(Vec<u8>, Vec<u8>)> {
    const POSITION: u32 = 70_000;
    let (mut stack, mut peer) = (stack(), Peer::new(answer.to_vec(), first));
    let mut fate = Fate { seed, asked: 0, shares, lost: HashMap::new() };
    let (mut to_peer, mut to_client) = (Way::default(), Way::default());
    let (mut received, mut unsent, mut caught) = (Vec::new(), request, Caught::default());
    let mut now_ns = began_ns;
    let mut has_ended = false;
    stack.open(POSITION, now_ns, &mut caught);
    for step in 0_u64.. {
        assert!(step < 100_000, "{} of {}", received.len(), answer.len());
        now_ns += STEP_NS;
        if stack.expire(now_ns, &mut caught).is_some() {
            return None;
        }
        let is_blind = is_slow && step % 200 < 100;
        if !is_blind && let Some(held) = stack.release(POSITION, &mut caught) {
            received.extend(held.bytes);
            has_ended |= held.is_finished;
        }
        for packet in to_client.due(now_ns) {
            let Some(arrival) = stack.receive(&packet, now_ns, &mut caught) else { continue };
            assert_eq!(arrival.position, POSITION);
            let has_room = arrival.has_room;
            if is_blind && !arrival.bytes.is_empty() {
                stack.hold(POSITION, arrival.bytes);
            } else {
                received.extend_from_slice(arrival.bytes);
            }
            assert!(matches!(arrival.end, None | Some(End::Finished)), "{:?}", arrival.end);
            has_ended |= arrival.end.is_some() && !is_blind;
            if has_room {
                let taken = stack.send(POSITION, unsent, now_ns, &mut caught);
                unsent = &unsent[taken..];
            }
        }
        stack.flush(&mut caught);
        let entry = stack.unacknowledged.get(&POSITION);
        let is_all_sent = entry.is_none_or(|entry| entry.sent == entry.bytes.len());
        if has_ended && stack.is_open(POSITION) && unsent.is_empty() && is_all_sent {
            stack.close(POSITION, now_ns, &mut caught);
        }
        for packet in caught.0.drain(..) {
            let segment = packet::parse(&packet).expect("a segment");
            fate.put(&mut to_peer, now_ns, &segment);
        }
        let mut send = |segment: &Segment<'_>| fate.put(&mut to_client, now_ns, segment);
        for packet in to_peer.due(now_ns) {
            peer.receive(&packet, now_ns, &mut send);
        }
        peer.repeat(now_ns, &mut send);
        let is_forgotten = stack.unacknowledged.is_empty() && stack.held.is_empty();
        if peer.has_heard_end && peer.is_over() && is_forgotten {
            break;
        }
        // What is left of a connection that the client has closed answers with a reset.
        if peer.is_reset && has_ended {
            break;
        }
    }
    Some((received, peer.received))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_sent_arrives_whole(
        request_bytes in 1_usize..200_000,
        answer_bytes in 0_usize..300_000,
        from in any::<u32>(),
        first in prop_oneof![any::<u32>(), (u32::MAX - 100_000)..],
        seed in any::<u64>(),
        shares in (0_u8..60, 0_u8..100, 0_u8..100),
        is_slow in any::<bool>(),
    ) {
        let bytes = |count: usize| (0..count).map(|at| (at / 7 % 251) as u8).collect::<Vec<_>>();
        let (request, answer) = (bytes(request_bytes), bytes(answer_bytes));
        // So that numbers of both sides go round within a talk, often.
        let began_ns = (u64::from(from) << CLOCK_SHIFT) + (1 << 40);
        let talked = talk(&request, &answer, (began_ns, first), (seed, shares), is_slow);
        // Who loses enough gives up, as he may.
        prop_assert!(talked.is_some() || shares.0 > 0);
        prop_assume!(talked.is_some());
        let (received, sent) = talked.unwrap_or_default();
        prop_assert!(received == answer, "{} of {}", received.len(), answer.len());
        prop_assert!(sent == request, "{} of {}", sent.len(), request.len());
    }
}

/// A connection that is there, with the server's next number, and what was sent for it.
fn connected(stack: &mut Stack, position: u32) -> (Peer, Caught) {
    let (mut peer, mut caught) = (Peer::new(Vec::new(), 1_000), Caught::default());
    stack.open(position, 1 << 40, &mut caught);
    let syn = caught.0.remove(0);
    let mut answers = Vec::new();
    peer.receive(&syn, 0, &mut |segment| packet::write(segment, &mut answers));
    let arrival = stack.receive(&answers, 1 << 40, &mut caught).expect("connected");
    assert!(arrival.has_room && arrival.end.is_none());
    assert_eq!(caught.0.len(), 0, "an acknowledgement waits for the batch to end");
    (peer, caught)
}

fn deliver<'a>(
    stack: &mut Stack,
    segment: &Segment<'a>,
    caught: &mut Caught,
) -> Option<(Vec<u8>, Option<End>)> {
    let mut packet = Vec::new();
    packet::write(segment, &mut packet);
    let arrival = stack.receive(&packet, 1 << 40, caught)?;
    Some((arrival.bytes.to_vec(), arrival.end))
}

#[test]
fn a_request_goes_with_the_last_word_of_the_handshake() {
    let mut stack = stack();
    let (_, mut caught) = connected(&mut stack, 5);
    assert_eq!(stack.send(5, b"hello", 1 << 40, &mut caught), 5);
    stack.flush(&mut caught);
    let flags = caught.flags();
    assert_eq!(flags.len(), 1);
    assert_eq!((flags[0].2, flags[0].3), (1_000, 5));
}

#[test]
fn several_segments_of_a_batch_are_acknowledged_once() {
    let mut stack = stack();
    let (peer, mut caught) = connected(&mut stack, 5);
    stack.flush(&mut caught);
    assert_eq!(caught.flags().len(), 1);
    for at in 0..3 {
        let segment = peer.segment(Flags::ACK, 1_000 + at, b"x");
        assert_eq!(deliver(&mut stack, &segment, &mut caught), Some((b"x".to_vec(), None)));
    }
    stack.flush(&mut caught);
    stack.flush(&mut caught);
    let acknowledged: Vec<u32> = caught.flags().iter().map(|each| each.2).collect();
    assert_eq!(acknowledged, [1_003]);
}

#[test]
fn what_is_not_expected_is_answered_with_what_is() {
    let mut stack = stack();
    let (peer, mut caught) = connected(&mut stack, 5);
    stack.flush(&mut caught);
    caught.flags();
    let odd = [
        ("a keepalive probe", Flags::ACK, 999, &b""[..]),
        ("old bytes", Flags::ACK, 990, b"0123456789"),
        ("bytes after a gap", Flags::ACK, 1_001, b"x"),
        ("a reset that is guessed", Flags::RST, 1_001, b""),
        ("another connection", Flags::SYN, 1_000, b""),
    ];
    for (what, flags, sequence, payload) in odd {
        let arrival = deliver(&mut stack, &peer.segment(flags, sequence, payload), &mut caught);
        assert_eq!(arrival, None, "{what}");
        let answers = caught.flags();
        assert_eq!(answers.len(), 1, "{what}");
        assert_eq!((answers[0].0, answers[0].2), (Flags::ACK, 1_000), "{what}");
    }
    let half_old = peer.segment(Flags::ACK, 998, b"abcd");
    let arrival = deliver(&mut stack, &half_old, &mut caught);
    assert_eq!(arrival, Some((b"cd".to_vec(), None)));
    assert_eq!(stack.repeated, 2);
}

#[test]
fn who_is_not_there_resets() {
    let mut stack = stack();
    let (mut peer, mut caught) = connected(&mut stack, 5);
    let others = [Addresses::of_device(3).of(4), Addresses::of_device(3).of(99)];
    for client in others.into_iter().chain(["198.18.0.9:1".parse().unwrap()]) {
        peer.client = Some(client);
        assert_eq!(deliver(&mut stack, &peer.segment(Flags::ACK, 7, b"x"), &mut caught), None);
        let answers = caught.flags();
        assert_eq!(answers, [(Flags::RST, peer.expected, 0, 0)]);
        let reset = peer.segment(Flags::RST, 7, b"");
        assert_eq!(deliver(&mut stack, &reset, &mut caught), None);
        assert_eq!(caught.flags(), [], "a reset is not answered");
    }
    // Nor is a stranger's segment taken for the server's.
    peer.client = Some(Addresses::of_device(3).of(5));
    peer.end = "127.0.0.1:81".parse().unwrap();
    assert_eq!(deliver(&mut stack, &peer.segment(Flags::ACK, 1_000, b"x"), &mut caught), None);
    assert_eq!(caught.flags()[0].0, Flags::RST);
}

#[test]
fn a_reset_and_a_refusal_are_told() {
    let mut stack = stack();
    let (peer, mut caught) = connected(&mut stack, 5);
    let reset = peer.segment(Flags::RST, 1_000, b"");
    assert_eq!(deliver(&mut stack, &reset, &mut caught), Some((Vec::new(), Some(End::Reset))));
    assert!(!stack.is_open(5));
    caught.flags();
    stack.open(5, 1 << 41, &mut caught);
    let [(flags, sequence, ..)] = caught.flags()[..] else { panic!("one segment") };
    assert_eq!(flags, Flags::SYN);
    let refusal = Segment {
        acknowledged: sequence.wrapping_add(1),
        ..peer.segment(Flags::RST.and(Flags::ACK), 0, b"")
    };
    assert_eq!(deliver(&mut stack, &refusal, &mut caught), Some((Vec::new(), Some(End::Refused))));
    assert!(stack.unacknowledged.is_empty());
}

#[test]
fn an_old_connection_of_the_server_is_ended_before_a_new_one() {
    let mut stack = stack();
    let (peer, mut caught) = connected(&mut stack, 5);
    stack.forget(5);
    stack.open(5, (1 << 40) + (1 << 30), &mut caught);
    caught.flags();
    // It asks whether that was meant.
    let challenge = peer.segment(Flags::ACK, 1_000, b"");
    assert_eq!(deliver(&mut stack, &challenge, &mut caught), None);
    assert_eq!(caught.flags(), [(Flags::RST, peer.expected, 0, 0)]);
    assert!(stack.is_open(5));
}

#[test]
fn a_server_that_is_silent_is_given_up() {
    let mut stack = stack();
    let (_, mut caught) = connected(&mut stack, 5);
    stack.send(5, b"hello", 1 << 40, &mut caught);
    stack.open(6, 1 << 40, &mut caught);
    caught.flags();
    let mut given_up = Vec::new();
    let mut sent = 0;
    while let Some(due_ns) = stack.next_ns() {
        given_up.extend(stack.expire(due_ns, &mut caught));
        sent += caught.flags().len();
    }
    assert_eq!(given_up, [5, 6]);
    // Each five times again, and a reset.
    assert_eq!(sent, 2 * ATTEMPTS_MAX);
    assert!(!stack.is_open(5) && !stack.is_open(6) && stack.unacknowledged.is_empty());
}

#[test]
fn who_does_not_read_shows_a_window_that_closes() {
    let mut stack = stack();
    let (peer, mut caught) = connected(&mut stack, 5);
    stack.flush(&mut caught);
    caught.0.clear();
    let (chunk, mut next) = (vec![7; 30_000], 1_000);
    let mut windows = Vec::new();
    for _ in 0..3 {
        let segment = peer.segment(Flags::ACK, next, &chunk);
        if let Some((bytes, _)) = deliver(&mut stack, &segment, &mut caught) {
            next += bytes.len() as u32;
            stack.hold(5, &bytes);
        }
        stack.flush(&mut caught);
        for packet in caught.0.drain(..) {
            windows.push(packet::parse(&packet).expect("a segment").window);
        }
    }
    // The third one does not fit, and its first part fills the window.
    assert_eq!(windows, [35_535, 5_535, 0]);
    assert_eq!(next, 1_000 + WINDOW as u32);
    let probe = peer.segment(Flags::ACK, next, b"x");
    assert_eq!(deliver(&mut stack, &probe, &mut caught), None);
    assert_eq!(packet::parse(&caught.0.pop().unwrap()).unwrap().window, 0);
    let end = peer.segment(Flags::FIN.and(Flags::ACK), next, b"");
    deliver(&mut stack, &end, &mut caught);
    let held = stack.release(5, &mut caught).expect("held");
    assert_eq!((held.bytes.len(), held.is_finished), (WINDOW, true));
    assert_eq!(usize::from(packet::parse(&caught.0.pop().unwrap()).unwrap().window), WINDOW);
}

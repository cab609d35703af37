//! The stack against a simple server, over a link that loses, delays and duplicates packets.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::timers::ATTEMPTS_MAX;

/// The server: accepts what is in order, sends what the window allows, and retransmits everything
/// after [`RETRANSMIT_NS`].
struct Peer {
    end: SocketAddrV4,
    client: Option<SocketAddrV4>,
    to_send: Vec<u8>,
    /// The sequence number of the first byte of `to_send`.
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

const RETRANSMIT_NS: u64 = 200_000_000;
const STEP_NS: u64 = 10_000_000;
const SERVER: &str = "127.0.0.1:80";

/// Packets in transit, each with the time of its arrival.
#[derive(Default)]
struct Link(Vec<(u64, Vec<u8>)>);

impl Link {
    fn due(&mut self, now_ns: u64) -> VecDeque<Vec<u8>> {
        let (due, later) =
            std::mem::take(&mut self.0).into_iter().partition(|each| each.0 <= now_ns);
        self.0 = later;
        let due: Vec<(u64, Vec<u8>)> = due;
        due.into_iter().map(|(_, packet)| packet).collect()
    }
}

/// Decides which packets are lost, delayed or duplicated.
struct Faults {
    seed: u64,
    drawn: u64,
    /// Probabilities of loss, delay and duplication, in 1/256.
    shares: (u8, u8, u8),
    /// The same packet is lost at most twice, so that connections are rarely given up.
    lost: HashMap<Vec<u8>, u8>,
}

impl Faults {
    /// Sends a packet over the link: never, once or twice, now or later.
    fn put(&mut self, link: &mut Link, now_ns: u64, segment: &Segment<'_>) {
        let mut packet = Vec::new();
        packet::write(segment, &mut packet);
        let mut is = |share: u8| {
            self.drawn += 1;
            random_byte(self.seed, self.drawn) < share
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
            link.0.push((now_ns + 2 * STEP_NS, packet.clone()));
        }
        let delay_ns = if is(late) { 3 * STEP_NS } else { 0 };
        link.0.push((now_ns + delay_ns, packet));
    }
}

/// A random byte that depends on seed and index only (`SplitMix64`).
fn random_byte(seed: u64, index: u64) -> u8 {
    let mut word = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word.to_be_bytes()[0]
}

#[derive(Default)]
struct Captured(Vec<Vec<u8>>);

impl PacketSink for Captured {
    fn send(&mut self, segment: &Segment<'_>) {
        let mut packet = Vec::new();
        packet::write(segment, &mut packet);
        self.0.push(packet);
    }
}

impl Captured {
    /// The headers captured since the last call: flags, sequence, acknowledgement, payload bytes.
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
            max_segment_bytes: None,
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
            // A late duplicate.
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

    /// Sends what the window allows, and `FIN` at the end.
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
        if self.client.is_none() || self.is_over() || now_ns - self.sent_at_ns < RETRANSMIT_NS {
            return;
        }
        self.sent_at_ns = now_ns;
        if self.expected != 0 && self.window == 0 && self.acknowledged == 0 {
            // The `SYN-ACK`, or the acknowledgement of it, is lost.
            let flags = Flags::SYN.and(Flags::ACK);
            send(&self.segment(flags, self.first.wrapping_sub(1), &[]));
        }
        self.sent = self.acknowledged;
        if self.window == 0 && self.sent < self.to_send.len() {
            // A window probe.
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

/// Runs one exchange, from a given time and sequence number, and returns what client and server
/// received; `None` if the client gave up. A slow client does not read half of the time.
fn exchange(
    request: &[u8],
    answer: &[u8],
    (began_ns, first): (u64, u32),
    (seed, shares): (u64, (u8, u8, u8)),
    is_slow: bool,
) -> Option<(Vec<u8>, Vec<u8>)> {
    const POSITION: u32 = 70_000;
    let (mut stack, mut peer) = (stack(), Peer::new(answer.to_vec(), first));
    let mut faults = Faults { seed, drawn: 0, shares, lost: HashMap::new() };
    let (mut to_peer, mut to_client) = (Link::default(), Link::default());
    let (mut received, mut unsent, mut captured) = (Vec::new(), request, Captured::default());
    let mut now_ns = began_ns;
    let mut has_ended = false;
    stack.open(POSITION, now_ns, &mut captured);
    for step in 0_u64.. {
        assert!(step < 100_000, "{} of {}", received.len(), answer.len());
        now_ns += STEP_NS;
        if stack.expire(now_ns, &mut captured).is_some() {
            return None;
        }
        let is_paused = is_slow && step % 200 < 100;
        if !is_paused && let Some(unread) = stack.take_unread(POSITION, &mut captured) {
            received.extend(unread.bytes);
            has_ended |= unread.is_finished;
        }
        for packet in to_client.due(now_ns) {
            let Some(arrival) = stack.receive(&packet, now_ns, &mut captured) else { continue };
            assert_eq!(arrival.position, POSITION);
            let is_writable = arrival.is_writable;
            if is_paused && !arrival.bytes.is_empty() {
                stack.keep_unread(POSITION, arrival.bytes);
            } else {
                received.extend_from_slice(arrival.bytes);
            }
            assert!(matches!(arrival.end, None | Some(End::Finished)), "{:?}", arrival.end);
            has_ended |= arrival.end.is_some() && !is_paused;
            if is_writable {
                let taken = stack.send(POSITION, unsent, now_ns, &mut captured);
                unsent = &unsent[taken..];
            }
        }
        stack.flush(&mut captured);
        let entry = stack.unacknowledged.get(&POSITION);
        let is_all_sent = entry.is_none_or(|entry| entry.sent == entry.bytes.len());
        if has_ended && stack.is_open(POSITION) && unsent.is_empty() && is_all_sent {
            stack.close(POSITION, now_ns, &mut captured);
        }
        for packet in captured.0.drain(..) {
            let segment = packet::parse(&packet).expect("a segment");
            faults.put(&mut to_peer, now_ns, &segment);
        }
        let mut send = |segment: &Segment<'_>| faults.put(&mut to_client, now_ns, segment);
        for packet in to_peer.due(now_ns) {
            peer.receive(&packet, now_ns, &mut send);
        }
        peer.repeat(now_ns, &mut send);
        let is_forgotten = stack.unacknowledged.is_empty() && stack.unread.is_empty();
        if peer.has_heard_end && peer.is_over() && is_forgotten {
            break;
        }
        // Packets of a connection that the client has closed are answered with a reset.
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
        // Often the sequence numbers of both sides wrap within the exchange.
        let began_ns = (u64::from(from) << CLOCK_SHIFT) + (1 << 40);
        let exchanged = exchange(&request, &answer, (began_ns, first), (seed, shares), is_slow);
        // With enough loss the client gives up.
        prop_assert!(exchanged.is_some() || shares.0 > 0);
        prop_assume!(exchanged.is_some());
        let (received, sent) = exchanged.unwrap_or_default();
        prop_assert!(received == answer, "{} of {}", received.len(), answer.len());
        prop_assert!(sent == request, "{} of {}", sent.len(), request.len());
    }
}

/// An established connection: the server, and what was captured.
fn connected(stack: &mut Stack, position: u32) -> (Peer, Captured) {
    let (mut peer, mut captured) = (Peer::new(Vec::new(), 1_000), Captured::default());
    stack.open(position, 1 << 40, &mut captured);
    let syn = captured.0.remove(0);
    let mut answers = Vec::new();
    peer.receive(&syn, 0, &mut |segment| packet::write(segment, &mut answers));
    let arrival = stack.receive(&answers, 1 << 40, &mut captured).expect("connected");
    assert!(arrival.is_writable && arrival.end.is_none());
    assert_eq!(captured.0.len(), 0, "an acknowledgement waits for the batch to end");
    (peer, captured)
}

fn deliver<'a>(
    stack: &mut Stack,
    segment: &Segment<'a>,
    captured: &mut Captured,
) -> Option<(Vec<u8>, Option<End>)> {
    let mut packet = Vec::new();
    packet::write(segment, &mut packet);
    let arrival = stack.receive(&packet, 1 << 40, captured)?;
    Some((arrival.bytes.to_vec(), arrival.end))
}

#[test]
fn the_request_carries_the_acknowledgement_of_the_handshake() {
    let mut stack = stack();
    let (_, mut captured) = connected(&mut stack, 5);
    assert_eq!(stack.send(5, b"hello", 1 << 40, &mut captured), 5);
    stack.flush(&mut captured);
    let flags = captured.flags();
    assert_eq!(flags.len(), 1);
    assert_eq!((flags[0].2, flags[0].3), (1_000, 5));
}

#[test]
fn segments_of_one_batch_share_an_acknowledgement() {
    let mut stack = stack();
    let (peer, mut captured) = connected(&mut stack, 5);
    stack.flush(&mut captured);
    assert_eq!(captured.flags().len(), 1);
    for at in 0..3 {
        let segment = peer.segment(Flags::ACK, 1_000 + at, b"x");
        assert_eq!(deliver(&mut stack, &segment, &mut captured), Some((b"x".to_vec(), None)));
    }
    stack.flush(&mut captured);
    stack.flush(&mut captured);
    let acknowledged: Vec<u32> = captured.flags().iter().map(|each| each.2).collect();
    assert_eq!(acknowledged, [1_003]);
}

#[test]
fn unacceptable_segments_are_answered_with_the_expected_number() {
    let mut stack = stack();
    let (peer, mut captured) = connected(&mut stack, 5);
    stack.flush(&mut captured);
    captured.flags();
    let odd = [
        ("a keepalive probe", Flags::ACK, 999, &b""[..]),
        ("old bytes", Flags::ACK, 990, b"0123456789"),
        ("bytes after a gap", Flags::ACK, 1_001, b"x"),
        ("a reset that is guessed", Flags::RST, 1_001, b""),
        ("another connection", Flags::SYN, 1_000, b""),
    ];
    for (what, flags, sequence, payload) in odd {
        let arrival = deliver(&mut stack, &peer.segment(flags, sequence, payload), &mut captured);
        assert_eq!(arrival, None, "{what}");
        let answers = captured.flags();
        assert_eq!(answers.len(), 1, "{what}");
        assert_eq!((answers[0].0, answers[0].2), (Flags::ACK, 1_000), "{what}");
    }
    let half_old = peer.segment(Flags::ACK, 998, b"abcd");
    let arrival = deliver(&mut stack, &half_old, &mut captured);
    assert_eq!(arrival, Some((b"cd".to_vec(), None)));
    assert_eq!(stack.retransmitted, 2);
}

#[test]
fn segments_without_a_connection_are_reset() {
    let mut stack = stack();
    let (mut peer, mut captured) = connected(&mut stack, 5);
    let others = [Addresses::of_device(3).of(4), Addresses::of_device(3).of(99)];
    for client in others.into_iter().chain(["198.18.0.9:1".parse().unwrap()]) {
        peer.client = Some(client);
        assert_eq!(deliver(&mut stack, &peer.segment(Flags::ACK, 7, b"x"), &mut captured), None);
        let answers = captured.flags();
        assert_eq!(answers, [(Flags::RST, peer.expected, 0, 0)]);
        let reset = peer.segment(Flags::RST, 7, b"");
        assert_eq!(deliver(&mut stack, &reset, &mut captured), None);
        assert_eq!(captured.flags(), [], "a reset is not answered");
    }
    // A segment from another server does not belong to the connection either.
    peer.client = Some(Addresses::of_device(3).of(5));
    peer.end = "127.0.0.1:81".parse().unwrap();
    assert_eq!(deliver(&mut stack, &peer.segment(Flags::ACK, 1_000, b"x"), &mut captured), None);
    assert_eq!(captured.flags()[0].0, Flags::RST);
}

#[test]
fn a_reset_and_a_refusal_reach_the_client() {
    let mut stack = stack();
    let (peer, mut captured) = connected(&mut stack, 5);
    let reset = peer.segment(Flags::RST, 1_000, b"");
    assert_eq!(deliver(&mut stack, &reset, &mut captured), Some((Vec::new(), Some(End::Reset))));
    assert!(!stack.is_open(5));
    captured.flags();
    stack.open(5, 1 << 41, &mut captured);
    let [(flags, sequence, ..)] = captured.flags()[..] else { panic!("one segment") };
    assert_eq!(flags, Flags::SYN);
    let refusal = Segment {
        acknowledged: sequence.wrapping_add(1),
        ..peer.segment(Flags::RST.and(Flags::ACK), 0, b"")
    };
    assert_eq!(
        deliver(&mut stack, &refusal, &mut captured),
        Some((Vec::new(), Some(End::Refused)))
    );
    assert!(stack.unacknowledged.is_empty());
}

#[test]
fn a_stale_connection_of_the_server_is_reset() {
    let mut stack = stack();
    let (peer, mut captured) = connected(&mut stack, 5);
    stack.forget(5);
    stack.open(5, (1 << 40) + (1 << 30), &mut captured);
    captured.flags();
    // The server sends a challenge acknowledgement.
    let challenge = peer.segment(Flags::ACK, 1_000, b"");
    assert_eq!(deliver(&mut stack, &challenge, &mut captured), None);
    assert_eq!(captured.flags(), [(Flags::RST, peer.expected, 0, 0)]);
    assert!(stack.is_open(5));
}

#[test]
fn a_silent_server_is_given_up() {
    let mut stack = stack();
    let (_, mut captured) = connected(&mut stack, 5);
    stack.send(5, b"hello", 1 << 40, &mut captured);
    stack.open(6, 1 << 40, &mut captured);
    captured.flags();
    let mut given_up = Vec::new();
    let mut sent = 0;
    while let Some(due_ns) = stack.next_ns() {
        given_up.extend(stack.expire(due_ns, &mut captured));
        sent += captured.flags().len();
    }
    assert_eq!(given_up, [5, 6]);
    // Five retransmissions each, and a reset.
    assert_eq!(sent, 2 * ATTEMPTS_MAX);
    assert!(!stack.is_open(5) && !stack.is_open(6) && stack.unacknowledged.is_empty());
}

#[test]
fn a_client_that_does_not_read_closes_its_window() {
    let mut stack = stack();
    let (peer, mut captured) = connected(&mut stack, 5);
    stack.flush(&mut captured);
    captured.0.clear();
    let (chunk, mut next) = (vec![7; 30_000], 1_000);
    let mut windows = Vec::new();
    for _ in 0..3 {
        let segment = peer.segment(Flags::ACK, next, &chunk);
        if let Some((bytes, _)) = deliver(&mut stack, &segment, &mut captured) {
            next += bytes.len() as u32;
            stack.keep_unread(5, &bytes);
        }
        stack.flush(&mut captured);
        for packet in captured.0.drain(..) {
            windows.push(packet::parse(&packet).expect("a segment").window);
        }
    }
    // The third segment does not fit; its first part fills the window.
    assert_eq!(windows, [35_535, 5_535, 0]);
    assert_eq!(next, 1_000 + WINDOW as u32);
    let probe = peer.segment(Flags::ACK, next, b"x");
    assert_eq!(deliver(&mut stack, &probe, &mut captured), None);
    assert_eq!(packet::parse(&captured.0.pop().unwrap()).unwrap().window, 0);
    let end = peer.segment(Flags::FIN.and(Flags::ACK), next, b"");
    deliver(&mut stack, &end, &mut captured);
    let unread = stack.take_unread(5, &mut captured).expect("unread");
    assert_eq!((unread.bytes.len(), unread.is_finished), (WINDOW, true));
    assert_eq!(usize::from(packet::parse(&captured.0.pop().unwrap()).unwrap().window), WINDOW);
}

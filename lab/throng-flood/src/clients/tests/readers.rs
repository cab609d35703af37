//! Clients that read at a set speed, and those that are measured by themselves.

use std::time::Instant;

use throng_wire::websocket::{Opcode, write_frame};

use super::{Peer, websockets};
use crate::clients::{ClientCommand, ClientSet};
use crate::plan::{Streams, Subscribed};
use crate::template::Template;

#[test]
fn slow_clients_read_at_their_speed() {
    let (mut watched, mut peers) = websockets(1, |_| {});
    watched.wait_active(1);
    watched.pool.command(ClientCommand::Slow { share: 1.0, is_slow: true, speed: 4000 });
    watched.wait("slow", |_| true);
    let before = watched.all.received_bytes;
    let began = Instant::now();
    // Each has some 82 bytes, so that they take a fifth of a second.
    let frames: Vec<u8> = (1..=10).flat_map(|sequence| watched.frame(sequence)).collect();
    peers[0].send(&frames);
    watched.wait("all", |counts| counts.received == 10);
    let (took, bytes) = (began.elapsed(), watched.all.received_bytes - before);
    assert!(took.as_secs_f64() >= bytes as f64 / 4000.0 - 0.05, "{bytes} bytes in {took:?}");
}

#[test]
fn a_client_with_several_channels_is_measured_by_itself() {
    let (mut watched, mut peers) = websockets(2, |plan| {
        plan.target.hello = vec![Template::parse("follow {stream}").expect("a template")];
        plan.target.subscribed = Subscribed::Message("followed".to_owned());
        (plan.target.streams, plan.target.streams_each) = (Streams::Spread(3), 2);
    });
    let confirmed = |peer: &mut Peer| {
        let mut frame = Vec::new();
        write_frame(&mut frame, Opcode::Text, b"followed");
        peer.send(&frame);
    };
    peers.iter_mut().for_each(confirmed);
    // One confirmation of two is not enough.
    watched.wait("one of two each", |counts| counts.unmarked == 2);
    assert_eq!(watched.all.states.active, 0);
    peers.iter_mut().for_each(confirmed);
    watched.wait_active(2);
    // Of three streams, the first client follows 0 and 1, the second 2 and 0.
    assert_eq!([0, 1, 2].map(|stream| watched.pool.audience(stream)), [2, 1, 1]);
    let mut frame = Vec::new();
    write_frame(&mut frame, Opcode::Text, &watched.payload(0, 1));
    peers.iter_mut().for_each(|peer| peer.send(&frame));
    watched.wait("both", |counts| counts.received == 2);
    let readers = watched.pool.counts().readers;
    assert!(readers.iter().all(|age| age.behind_us == 0 && age.max_us > 0), "{readers:?}");
    watched.payload(1, 1);
    let mut behind: Vec<_> =
        watched.pool.counts().readers.iter().map(|age| age.behind_us).collect();
    behind.sort_unstable();
    assert!(behind.len() == 2 && behind[0] == 0 && behind[1] > 0, "{behind:?}");
    assert_eq!(watched.pool.audit([1, 1, 0].into()).lost, 1);
}

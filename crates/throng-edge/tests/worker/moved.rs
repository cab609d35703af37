//! Channels that have another journal once another process has taken over.

use std::sync::Arc;

use throng_access::{AccessControl, AllowAll};
use throng_core::conformance::TestJournal;
use throng_core::{
    Answer, Body, ChannelName, Channels, Epoch, JournalId, Later, MemoryThaw, Publication, Rule,
    Rules, Ticket,
};
use throng_edge::Settings;
use throng_edge::worker::WorkerThaw;

use crate::rig::{Client, Rig, Socket};

/// The close frame that tells a client to connect again.
const CLOSE: [u8; 2] = 1012u16.to_be_bytes();

fn rules(journal: Option<JournalId>) -> Rules {
    let rule =
        |pattern: &str, journal| Rule { pattern: pattern.into(), journal, ..Rule::default() };
    Rules::new(vec![rule("moves*", journal)], Rule::default())
}

fn access() -> Arc<AccessControl> {
    Arc::new(AccessControl::open(Arc::new(AllowAll)))
}

fn settings() -> Settings {
    Settings { welcome: false, ..Settings::for_tests() }
}

/// The worker and its engine in another process, where a journal has the logs of `moves*`. If the
/// records are `checked`, all of them come twice.
fn take_over(mut rig: Rig, checked: bool) -> (Rig, Arc<Channels>) {
    rig.worker.prepare_to_freeze();
    let vacant = rig.new_worker();
    let mut records: Vec<(Vec<u8>, Option<Socket>)> = Vec::new();
    let frozen = std::mem::replace(&mut rig.worker, vacant);
    frozen.freeze(&mut |record, socket| records.push((record, socket)));
    let mut channels = None;
    let memory = |rules, queues| {
        let mut thaw = MemoryThaw::new(rules, queues, 1 << 30);
        rig.engine.freeze(|record| thaw.record(&record)).expect("it was frozen just now");
        let memory = thaw.finish().expect("all records came");
        memory.with_epoch_of_positions(Epoch::numbered(99))
    };
    let mut next =
        Rig::with_memory(settings(), (access(), rules(Some(JournalId(0)))), memory, |memory| {
            let journal = Arc::new(TestJournal::new(Arc::clone(&memory), usize::MAX));
            channels = Some(Arc::new(Channels::new(Arc::clone(&memory), vec![journal.clone()])));
            Channels::new(memory, vec![journal])
        });
    let mut thaw = WorkerThaw::new(next.new_worker());
    if checked {
        records.iter().for_each(|(record, _)| thaw.check(record).expect("a record"));
        thaw.end_check().expect("all records came");
    }
    for (record, socket) in records {
        thaw.record(&record, socket).expect("a record");
    }
    next.worker = thaw.finish().expect("all records came");
    next.worker.check_invariants();
    (next, channels.expect("the rig has them"))
}

fn publish(rig: &Rig, channels: &Channels, channel: &str, text: &str) {
    let body = Body::Text(text.into());
    let publication = Publication::new(ChannelName::channel(channel), body);
    let mut issue = || Ticket::new(drop);
    let answer = channels.publish(rig.now_ms(), publication, Later::new(&mut issue));
    assert!(matches!(answer, Answer::Now(Ok(_))), "{channel}");
}

fn subscribers(rig: &Rig, channel: &str) -> u64 {
    rig.engine.audience(&ChannelName::channel(channel)).subscribers
}

fn websocket(rig: &mut Rig, channel: &str) -> Client {
    rig.connect(&format!(
        "GET /channels/{channel} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
}

fn closes(received: &[u8]) -> bool {
    received.windows(2).any(|pair| pair == CLOSE)
}

fn has(received: &[u8], text: &str) -> bool {
    received.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn connections_of_moved_channels_are_closed_to_resume() {
    for checked in [false, true] {
        let mut rig = Rig::with_rules(settings(), access(), rules(None));
        let moved = [websocket(&mut rig, "moves"), rig.v1(), rig.get("/channels/moves")];
        rig.send_frame(&moved[1], r#"{"type":"subscribe","channel":"stays"}"#);
        rig.send_frame(&moved[1], r#"{"type":"subscribe","channel":"moves-too"}"#);
        let stays = [websocket(&mut rig, "stays"), rig.v1()];
        rig.send_frame(&stays[1], r#"{"type":"subscribe","channel":"stays"}"#);
        rig.work();
        rig.publish("moves", "before", None);
        rig.publish("moves", "at once", None);
        rig.work();
        let poll = rig.get("/channels/moves?wait=30");
        let both = rig.get("/subscribe?channel=stays&channel=moves&wait=30");
        rig.work();
        moved.iter().chain(&stays).for_each(|client| drop(client.received()));
        let (mut rig, channels) = take_over(rig, checked);
        assert_eq!((subscribers(&rig, "moves"), subscribers(&rig, "stays")), (0, 4));
        // Nobody gets it who has followed the other log.
        publish(&rig, &channels, "moves", "after");
        publish(&rig, &channels, "stays", "for all");
        let new = rig.get("/channels/moves?since=z-2");
        rig.work();
        rig.worker.check_invariants();
        let poll = poll.received();
        assert!(poll.starts_with("HTTP/1.1 204 ") && poll.ends_with("\r\n\r\n"), "{poll}");
        assert!(poll.contains("Throng-Id: z-2\r\n"), "its former id: {poll}");
        let [socket, v1] = [0, 1].map(|at| moved[at].received_bytes());
        assert!(closes(&socket) && closes(&v1) && !has(&socket, "after") && !has(&v1, "after"));
        let stream = moved[2].received();
        assert!(stream.ends_with("\r\n0\r\n\r\n") && !stream.contains("after"), "{stream}");
        for client in &stays {
            let bytes = client.received_bytes();
            assert!(has(&bytes, "for all") && !closes(&bytes), "{checked}");
        }
        let both = both.received();
        assert!(both.contains(",z-2\r\n"), "{both}");
        let received = new.received();
        assert!(received.contains("after"), "{received}");
        assert_eq!(subscribers(&rig, "moves"), 1);
        publish(&rig, &channels, "moves", "next");
        rig.work();
        assert!(new.received().contains("next"));
    }
}

#[test]
fn a_second_process_finds_nobody_of_the_former_log() {
    let mut rig = Rig::with_rules(settings(), access(), rules(None));
    let clients: Vec<_> = (0..500).map(|_| websocket(&mut rig, "moves")).collect();
    rig.work();
    let (mut rig, _channels) = take_over(rig, true);
    // Before a slice has closed the first.
    assert!(!clients.iter().any(|client| closes(&client.received_bytes())));
    rig.replace_process();
    assert!(clients.iter().all(|client| closes(&client.received_bytes())));
    assert_eq!(rig.worker.subscriptions_in_all(), 0);
}

//! A worker as bytes. The simulation freezes what random steps lead to; here the bytes are damaged
//! and connections are lost.

use throng_core::frozen::{ThawError, VERSION};
use throng_core::{ChannelName, ScanAction, ScanTarget};
use throng_edge::Settings;
use throng_edge::worker::{Now, Worker, WorkerThaw};

use crate::rig::{Rig, Socket, Sockets};
use crate::scan::scan;

const WEBSOCKET: &str = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The kind of a connection's record.
const CONNECTION: u8 = 19;

/// The kind of the record with the times of acceptance.
const ACCEPTANCES: u8 = 23;

type Records = Vec<(Vec<u8>, Option<Socket>)>;

/// Ends the rig's worker. Returns its records and the thaw of another in its place.
fn freeze(rig: &mut Rig) -> (Records, WorkerThaw<Sockets>) {
    rig.worker.prepare_to_freeze();
    let vacant = rig.new_worker();
    let mut records = Vec::new();
    let frozen = std::mem::replace(&mut rig.worker, vacant);
    frozen.freeze(&mut |record, socket| records.push((record, socket)));
    (records, WorkerThaw::new(rig.new_worker()))
}

fn thaw(mut thaw: WorkerThaw<Sockets>, records: Records) -> Result<Worker<Sockets>, ThawError> {
    for (record, socket) in records {
        thaw.record(&record, socket)?;
    }
    let worker = thaw.finish()?;
    worker.check_invariants();
    Ok(worker)
}

/// Followers of `a`, of which one has sent half a frame, and a long-poll.
fn rig() -> (Rig, [crate::rig::Client; 3]) {
    let mut rig = Rig::with(Settings { welcome: false, ..Settings::for_tests() });
    let stream = rig.get("/channels/a");
    let socket = rig.connect(WEBSOCKET);
    rig.send(&socket, &[0x81, 0x85, 0, 0, 0, 0, b'h', b'a']);
    let poll = rig.get("/channels/b?wait=30");
    [&stream, &socket, &poll].iter().for_each(|client| drop(client.received()));
    (rig, [stream, socket, poll])
}

fn subscribers(rig: &Rig, channel: &str) -> u64 {
    rig.engine.audience(&ChannelName::channel(channel)).subscribers
}

#[test]
fn a_thawed_worker_knows_since_when_its_connections_are_there() {
    let (mut rig, clients) = rig();
    let list = |rig: &mut Rig| {
        let target = ScanTarget::Channel(ChannelName::channel("a"));
        let found = scan(rig, target, ScanAction::List { limit: 9 }).connections;
        found.iter().map(|found| (found.name, found.since_ms)).collect::<Vec<_>>()
    };
    let before = list(&mut rig);
    assert!(before.len() == 2 && before.iter().all(|(_, since_ms)| since_ms.is_some()));
    let (records, begun) = freeze(&mut rig);
    rig.worker = thaw(begun, records).expect("it was frozen just now");
    assert_eq!(list(&mut rig), before);
    drop(clients);
}

/// True if a worker's records pass the look that comes before the thaw.
fn passes<'r>(rig: &Rig, records: impl Iterator<Item = &'r Vec<u8>>) -> bool {
    let mut thaw = WorkerThaw::new(rig.new_worker());
    // All of them, also behind one that does not pass.
    let refused = records.filter(|record| thaw.check(record).is_err()).count();
    thaw.end_check().is_ok() && refused == 0
}

#[test]
fn what_was_looked_at_is_thawed_and_damage_is_found_before() {
    let (mut rig, clients) = rig();
    let (records, mut begun) = freeze(&mut rig);
    let all: Vec<Vec<u8>> = records.iter().map(|(record, _)| record.clone()).collect();
    assert!(passes(&rig, all.iter()));
    for lost in 0..all.len() {
        let others = all.iter().enumerate().filter(|(at, _)| *at != lost);
        assert!(!passes(&rig, others.map(|(_, record)| record)), "without record {lost}");
        let twice = all[..=lost].iter().chain(&all[lost..]);
        // The times of acceptance may be told again.
        assert_eq!(passes(&rig, twice), all[lost][0] == ACCEPTANCES, "record {lost} twice");
        let mut cut = all.clone();
        cut[lost].pop();
        assert!(!passes(&rig, cut.iter()), "record {lost} cut");
    }
    all.iter().for_each(|record| begun.check(record).expect("it was frozen just now"));
    begun.end_check().expect("all records came");
    rig.worker = thaw(begun, records).expect("it was checked");
    assert_eq!((rig.worker.connection_count(), rig.worker.subscriptions_in_all()), (3, 3));
    rig.publish("a", "news", None);
    rig.work();
    assert!(clients[0].received().contains("news"));
}

#[test]
fn a_thawed_worker_goes_on_with_what_was_half_done() {
    let (mut rig, [stream, socket, poll]) = rig();
    rig.publish("a", "before", None);
    let (records, begun) = freeze(&mut rig);
    rig.publish("a", "meanwhile", None);
    rig.worker = thaw(begun, records).expect("it was frozen just now");
    assert_eq!((rig.worker.connection_count(), rig.worker.subscriptions_in_all()), (3, 3));
    rig.send(&socket, b"llo");
    rig.publish("b", "polled", None);
    for _ in 0..5 {
        rig.worker.work(true);
    }
    let received = stream.received();
    let at = |text| received.find(text).unwrap_or_else(|| panic!("{text} in {received}"));
    assert!(at("before") < at("meanwhile") && at("meanwhile") < at("hallo"));
    assert!(socket.received().contains("hallo") && poll.received().ends_with("polled"));
    assert_eq!((subscribers(&rig, "a"), subscribers(&rig, "b")), (2, 0));
}

#[test]
fn connections_that_are_lost_are_not_counted_any_more() {
    let (mut rig, _clients) = rig();
    let (records, mut begun) = freeze(&mut rig);
    let mut lost = 0;
    for (record, socket) in records {
        let socket = socket.filter(|_| std::mem::take(&mut lost) > 0);
        if record[0] == CONNECTION && socket.is_none() {
            assert!(begun.record(&record, socket).is_err());
            lost = 1;
        } else {
            begun.record(&record, socket).expect("it was frozen just now");
        }
    }
    rig.worker = begun.finish().expect("connections are lost, not the worker");
    rig.worker.check_invariants();
    assert_eq!((rig.worker.connection_count(), subscribers(&rig, "a")), (1, 1));
    assert_eq!((subscribers(&rig, "b"), rig.worker.subscriptions_in_all()), (0, 1));
    rig.publish("a", "news", None);
    rig.worker.work(true);
}

/// Freezes the same worker again for each way to damage its records.
fn is_refused(damage: impl FnOnce(&mut Records)) -> bool {
    let (mut rig, _clients) = rig();
    let (mut records, begun) = freeze(&mut rig);
    damage(&mut records);
    thaw(begun, records).is_err()
}

#[test]
fn every_part_of_a_frozen_worker_is_refused() {
    let (mut rig, _clients) = rig();
    let (records, _) = freeze(&mut rig);
    let lengths: Vec<usize> = records.iter().map(|(record, _)| record.len()).collect();
    assert!(!is_refused(|_| {}));
    for (at, length) in lengths.into_iter().enumerate() {
        assert!(is_refused(|records| records.truncate(at)), "cut before record {at}");
        assert!(is_refused(|records| drop(records.remove(at))), "without record {at}");
        assert!(is_refused(|records| records[at].0.push(0)), "record {at} with a byte more");
        // The first record has the texts of all counters.
        for end in (0..length).step_by(if at == 0 { 31 } else { 1 }) {
            let cut = |records: &mut Records| records[at].0.truncate(end);
            assert!(is_refused(cut), "record {at} cut at {end}");
        }
    }
}

#[test]
fn a_worker_of_a_newer_version_is_refused_by_name() {
    let (mut rig, _clients) = rig();
    let (mut records, begun) = freeze(&mut rig);
    records[0].0[7] += 1;
    assert_eq!(thaw(begun, records).err(), Some(ThawError::Newer(VERSION + 1)));
}

#[test]
fn deadlines_go_on_in_a_process_whose_ticks_begin_anew() {
    let (mut rig, [_, _, poll]) = rig();
    rig.worker.set_now(Now::after(20_100, 20_001));
    let (records, _) = freeze(&mut rig);
    let mut new = rig.new_worker();
    // 5 s on the way.
    new.set_now(Now::after(100, 25_001));
    let mut worker = thaw(WorkerThaw::new(new), records).expect("it was frozen just now");
    worker.set_now(Now::after(5000, 29_900));
    worker.tick();
    assert_eq!(poll.received(), "");
    worker.set_now(Now::after(5200, 30_101));
    worker.tick();
    assert!(poll.received().starts_with("HTTP/1.1 204"));
}

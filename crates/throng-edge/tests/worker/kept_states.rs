//! Frozen states of all versions of the format, which every later version has to thaw.
//!
//! `kept/N` has the state that version N writes at the end of one scenario: the engine, a segment
//! of its messages, and a worker with clients in all kinds of states. To keep the state of a new
//! version, run `THRONG_KEEP=1 cargo test -p throng-edge --test worker kept_states`, and commit the
//! files. Kept files are never written anew.

use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use throng_access::{AccessControl, AccessRules, AllowAll, ChannelAccess};
use throng_core::frozen::VERSION;
use throng_core::{
    Attributes, Body, ChannelName, Channels, HistoryQuery, KeyQuery, Kind, LagPolicy, LogChange,
    LogRecord, Mark, MarkerKey, MembersRule, MemoryThaw, Publication, RecordChange, ResumeRule,
    Rule, Rules, SegmentSink, Sender, SharedBytes,
};
use throng_edge::Settings;
use throng_edge::worker::WorkerThaw;

use crate::rig::{Client, Rig};
use crate::tokens::{control, has_close, token, websocket};

const WEBSOCKET: &str = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The kind of a connection's record.
const CONNECTION: u8 = 19;

/// Bytes that the stalled client's socket took, of the message that it is in the middle of.
const TAKEN: usize = 1_000;

/// The clients of the scenario, in the order of their records.
const EVENTS: usize = 0;
const HALF_FRAME: usize = 1;
const FRAGMENTED: usize = 2;
const LONG_POLL: usize = 3;
const ENVELOPES: usize = 4;
const HALF_HEAD: usize = 5;
const STALLED: usize = 6;
/// Those that version 1 cannot keep: one with options, one that has to show who it is, and one
/// whose subscription has terms.
const OPTIONS: usize = 7;
const STRANGER: usize = 8;
const TERMS: usize = 9;
/// One that version 2 cannot keep: it has half a message with the number of its channel.
const COMPACT: usize = 10;
/// Another one: its subscription has a pace.
const PACED: usize = 11;
/// One that version 3 cannot keep: it has to acknowledge a frame.
const OWING: usize = 12;
/// One that version 6 keeps without the name of its user for people.
const NAMED: usize = 13;
/// One that version 7 cannot keep: it is in the middle of the state of its channel.
const STATE: usize = 14;
const CLIENTS: usize = 15;

/// What the subscription of [`TERMS`] shows of its member, up to version 8.
const MEMBER: &str = " as {ann}";

/// Places in the record of a connection.
const ENCODING: usize = 14;
const FLAGS: usize = 15;

fn settings() -> Settings {
    Settings { welcome: false, ..Settings::for_tests() }
}

fn directory(version: u16) -> PathBuf {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/worker/kept");
    PathBuf::from(kept).join(version.to_string())
}

fn long() -> String {
    "long ".repeat(4_000)
}

/// Publishes a message with a key; returns its id.
fn publish_once(rig: &Rig) -> String {
    let publication = Publication {
        attributes: Attributes::of(&[(1, b"price"), (9_999, b"unknown")]).ok(),
        idempotency_key: Some("key".into()),
        ..Publication::new(ChannelName::channel("a"), Body::Json("{\"n\":1}".into()))
    };
    rig.engine.publish(rig.now_ms(), publication).expect("the queue has room").id.to_string()
}

/// Messages of the channel show the names of their publishers.
fn named() -> Rule {
    let (kind, pattern) = (Some(Kind::Channel), "n".to_owned());
    Rule { kind, pattern, sender: Sender::Name, ..Rule::default() }
}

/// Channels with members.
fn with_members() -> Rule {
    let (kind, pattern) = (Some(Kind::Channel), "ends*".to_owned());
    let members = Some(MembersRule { are_connections: false, grace_ms: 0 });
    Rule { kind, pattern, members, ..Rule::default() }
}

/// Channels in which users have read markers.
fn marked() -> Rule {
    let (kind, pattern) = (Some(Kind::Channel), "marked".to_owned());
    let resume = Some(ResumeRule { is_at_least_once: true, for_ms: 3_600_000 });
    Rule { kind, pattern, read_markers: true, resume, ..Rule::default() }
}

/// Where a user goes on in one.
fn bookmark(rig: &Rig) -> Option<u64> {
    let place = rig.engine.bookmark(rig.now_ms(), "ann", marker().log());
    place.map(|place| place.offset)
}

/// The read marker of a user in one.
fn marker() -> MarkerKey {
    MarkerKey::channel(ChannelName::channel("marked"), "ann")
}

/// Publishes two messages, of which the user has read one.
fn mark(rig: &Rig) {
    let read = Publication::new(marker().log().clone(), Body::Text("read".into()));
    let read = rig.engine.publish(rig.now_ms(), read).expect("the queue has room").id;
    rig.publish("marked", "unread", None);
    let mark = Some(Mark::new(read, false));
    rig.engine.read_marker(rig.now_ms(), &marker(), mark).expect("there is room");
    rig.engine.leave_bookmark(rig.now_ms(), "ann", marker().log(), read);
}

/// The record of a log.
fn record() -> LogRecord {
    LogRecord::of(&[(1, b"text/plain"), (9_999, b"unknown")]).expect("they are in order")
}

/// Puts all messages into one segment.
struct Sink(Vec<u8>);

impl SegmentSink for Sink {
    type Error = Infallible;

    fn append(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn seal(&mut self) -> Result<SharedBytes, Infallible> {
        Ok(Box::new(self.0.clone()))
    }

    fn freed(&mut self, _: usize) {}
}

/// Everything that happens before it is frozen. Returns its segment and the clients.
fn scenario() -> (Rig, Vec<u8>, Vec<Client>) {
    let access = control(AccessRules::new(Vec::new(), ChannelAccess::OPEN));
    let bounded = Rule {
        kind: Some(Kind::Channel),
        pattern: "h".to_owned(),
        lag_policy: LagPolicy::Latest,
        max_staleness_ms: 1_000,
        ..Rule::default()
    };
    let rules = vec![bounded, named(), with_members(), marked()];
    let rules = Rules::new(rules, Rule::default());
    let mut rig = Rig::with_rules(settings(), Arc::new(access), rules);
    publish_once(&rig);
    rig.publish("a", "sealed", None);
    let mut sink = Sink(Vec::new());
    let Ok(()) = rig.engine.seal(&mut sink);
    assert!(!sink.0.is_empty());
    rig.publish("a", "not sealed", None);
    let created = LogChange {
        record: RecordChange::Write(record()),
        ..LogChange::append(ChannelName::channel("created"), Vec::new())
    };
    rig.engine.change(rig.now_ms(), created).expect("it keeps a history");
    mark(&rig);
    // The engine notes an empty channel that is read, because its reader may resume it.
    let quiet = ChannelName::channel("quiet");
    rig.engine.history(rig.now_ms(), &quiet, HistoryQuery::Newest, 1);
    let get = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    let mut clients = vec![rig.connect(get), rig.connect(WEBSOCKET), rig.connect(WEBSOCKET)];
    rig.send(&clients[HALF_FRAME], &[0x81, 0x85, 0, 0, 0, 0, b'h', b'a']);
    rig.send(&clients[FRAGMENTED], &[0x01, 0x83, 0, 0, 0, 0, b'f', b'r', b'a']);
    clients.push(rig.get("/channels/b?wait=30"));
    clients.push(rig.v1());
    for channel in ["a", "c"] {
        let command = format!("{{\"type\":\"subscribe\",\"channel\":\"{channel}\"}}");
        rig.send_frame(&clients[ENVELOPES], &command);
    }
    clients.push(rig.connect("GET /channels/a HTTP/1.1\r\nHos"));
    clients.push(rig.get("/channels/long"));
    clients.push(rig.connect(&get.replace("/channels/a", "/channels/d?heartbeat=3600s")));
    clients.push(rig.connect(&WEBSOCKET.replace("/channels/a", "/testing/")));
    clients.push(rig.connect(&WEBSOCKET.replace("/channels/a", "/testing/e")));
    rig.send_frame(&clients[TERMS], r#"1 sub ends 200 bob {"name":"Bob"}"#);
    rig.work();
    assert!(clients[TERMS].received().contains("subscribed ends"));
    let v1 = "Sec-WebSocket-Protocol: throng.v1\r\nSec-WebSocket-Key";
    let compact = WEBSOCKET.replace("Sec-WebSocket-Key", v1);
    let compact = |target: &str| compact.replace("/channels/a", target);
    clients.push(rig.connect(&compact("/channels/f?envelope=compact")));
    rig.work();
    clients[COMPACT].received();
    clients[COMPACT].stall_after(1);
    rig.publish("f", "half", None);
    clients.push(rig.connect(&get.replace("/channels/a", "/channels/g?pace=500ms")));
    clients.push(rig.connect(&compact("/channels/h?envelope=compact")));
    rig.publish("h", "asked", None);
    let claims = r#""sub": "ann", "name": "Ann A.", "info": {"age":7}"#;
    clients.push(websocket(&mut rig, "/channels/n", &token(3600, claims), "throng.v1"));
    for (key, text) in [("old", "1"), ("gone", "2"), ("last", "3"), ("last", "4")] {
        rig.set_key("prices", key, text);
    }
    rig.remove_key("prices", "gone");
    let state = "GET /channels/prices?state=true HTTP/1.0\r\nHost: localhost\r\n\r\n";
    clients.push(rig.connect_stalled(state, 1));
    clients[STALLED].received();
    clients[STALLED].stall_after(TAKEN);
    rig.publish("long", &long(), None);
    rig.work();
    assert_eq!(clients.len(), CLIENTS);
    (rig, sink.0, clients)
}

/// Writes records, each behind its length.
fn joined(records: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let with_length = |record: Vec<u8>| [&(record.len() as u32).to_le_bytes(), &*record].concat();
    records.into_iter().flat_map(with_length).collect()
}

fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut records) = (bytes, Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (record, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        records.push(record);
        rest = behind;
    }
    records
}

/// The record with `throng.v1` in place of the dialect of tests, whose number may become another
/// dialect's.
fn without_testing(mut record: Vec<u8>) -> Vec<u8> {
    const TESTING: u8 = 22;
    const ENVELOPES: u8 = 1;
    const IS_V1: u8 = 1 << 2;
    if record[0] == CONNECTION && record[ENCODING] == TESTING {
        record[ENCODING] = ENVELOPES;
        record[FLAGS] |= IS_V1;
    }
    record
}

fn keep() {
    let (mut rig, segment, _clients) = scenario();
    rig.worker.prepare_to_freeze();
    let vacant = rig.new_worker();
    let (mut engine, mut worker) = (Vec::new(), Vec::new());
    std::mem::replace(&mut rig.worker, vacant).freeze(&mut |record, _| {
        worker.push(without_testing(record));
    });
    let Ok(()) = rig.engine.freeze(|record| {
        engine.push(record);
        Ok::<(), Infallible>(())
    });
    let directory = directory(VERSION);
    fs::create_dir_all(&directory).unwrap();
    for (name, bytes) in
        [("segment", segment), ("engine", joined(engine)), ("worker", joined(worker))]
    {
        fs::write(directory.join(name), bytes).unwrap();
    }
}

/// The worker and clients thawed from the state of a version.
fn thawed(version: u16) -> (Rig, Vec<Client>) {
    let read = |name| {
        let path = directory(version).join(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let rules = Rules::new(vec![named(), with_members(), marked()], Rule::default());
    let access = (Arc::new(AccessControl::open(Arc::new(AllowAll))), rules);
    let memory = |rules, queues| {
        let mut thaw = MemoryThaw::new(rules, queues, 1 << 30);
        thaw.segment(Box::new(read("segment"))).expect("a kept segment");
        let engine = read("engine");
        records(&engine).iter().for_each(|it| thaw.record(it).expect("a kept engine"));
        thaw.finish().expect("a kept engine")
    };
    let mut rig =
        Rig::with_memory(settings(), access, memory, |memory| Channels::new(memory, Vec::new()));
    let (mut thaw, mut clients) = (WorkerThaw::new(rig.new_worker()), Vec::new());
    let worker = read("worker");
    for record in records(&worker) {
        let is_connection = record[0] == CONNECTION;
        let socket = is_connection.then(|| {
            let (socket, client) = Rig::pair();
            clients.push(client);
            socket
        });
        thaw.record(record, socket).expect("a kept worker");
    }
    rig.worker = thaw.finish().expect("a kept worker");
    rig.worker.check_invariants();
    (rig, clients)
}

#[test]
fn the_state_of_this_version_is_kept() {
    if !directory(VERSION).exists() && std::env::var_os("THRONG_KEEP").is_some() {
        keep();
    }
    assert!(directory(VERSION).exists(), "no state of version {VERSION}: see the top of this file");
}

#[test]
fn every_version_thaws_the_states_of_all_before() {
    for version in 1..=VERSION {
        let (mut rig, clients) = thawed(version);
        let next = publish_once(&rig);
        rig.send(&clients[HALF_FRAME], b"llo");
        rig.send(&clients[FRAGMENTED], &[0x80, 0x84, 0, 0, 0, 0, b'g', b'm', b'n', b't']);
        rig.send(&clients[HALF_HEAD], b"t: localhost\r\n\r\n");
        rig.publish("b", "polled", None);
        rig.publish("c", "enveloped", None);
        rig.read_again(&clients[STALLED]);
        rig.work();
        let received: Vec<String> = clients.iter().map(Client::received).collect();
        for (client, text) in [
            (EVENTS, "data: hallo"),
            (EVENTS, "data: fragmnt"),
            (HALF_FRAME, "fragmnt"),
            (FRAGMENTED, "hallo"),
            (LONG_POLL, "polled"),
            (ENVELOPES, "\"data\":\"enveloped\""),
            (ENVELOPES, "\"data\":\"hallo\""),
            (HALF_HEAD, "200 OK"),
        ] {
            assert!(received[client].contains(text), "{version}: {text} in {}", received[client]);
        }
        let rest = long().len() - TAKEN;
        let stalled = &received[STALLED];
        assert!(stalled.contains(&long()[..rest - 100]) && stalled.len() < rest + 100, "{version}");
        // The retried publication was not published again.
        let history = rig.get("/channels/a?history=10");
        rig.work();
        let history = history.received();
        assert_eq!(history.matches("{\"n\":1}").count(), 1, "{version}: {next} in {history}");
        let at = |text| history.find(text).unwrap_or_else(|| panic!("{text} in {history}"));
        let order = ["{\"n\":1}", "sealed", "not sealed", "hallo", "fragmnt"].map(at);
        assert!(order.is_sorted(), "{version}: {history}");
    }
}

#[test]
fn deadlines_options_and_terms_are_kept_since_version_2() {
    for version in 2..=VERSION {
        let (mut rig, clients) = thawed(version);
        rig.send_frame(&clients[STRANGER], r#"{"type":"subscribe","channel":"c"}"#);
        rig.work();
        let received = clients[STRANGER].received();
        assert!(received.contains(r#""code":"unauthorized""#), "{version}: {received}");
        (0..1_000).for_each(|_| rig.pass(1));
        assert!(has_close(&clients[STRANGER], 4003), "{version}");
        let heartbeats = clients[OPTIONS].received().matches(":\n\n").count();
        assert!(heartbeats <= 1, "{version}: {heartbeats} within 100 s");
        assert!(!clients[TERMS].received().contains("unsubscribed"), "{version}");
        (0..1_010).for_each(|_| rig.pass(1));
        let received = clients[TERMS].received();
        let ended = r#""type":"unsubscribed","channel":"ends","code":"forbidden""#;
        assert!(received.contains(ended), "{version}: {received}");
    }
}

#[test]
fn the_data_of_a_member_is_kept_since_version_2() {
    for version in 2..9 {
        let (mut rig, _clients) = thawed(version);
        rig.worker.prepare_to_freeze();
        let (vacant, mut worker) = (rig.new_worker(), Vec::new());
        std::mem::replace(&mut rig.worker, vacant).freeze(&mut |record, _| worker.extend(record));
        let mut windows = worker.windows(MEMBER.len());
        assert!(windows.any(|window| window == MEMBER.as_bytes()), "{version}");
    }
}

#[test]
fn numbers_of_channels_are_kept_since_version_3() {
    for version in 3..=VERSION {
        let (mut rig, clients) = thawed(version);
        rig.read_again(&clients[COMPACT]);
        rig.publish("f", "whole", None);
        rig.work();
        rig.pass(1);
        let received = clients[COMPACT].received();
        let number = |end: &str| {
            let end = received.find(end).unwrap_or_else(|| panic!("{end} in {received}"));
            received[..end].rfind("[0,[").map(|start| &received[start + 4..end])
        };
        let (half, whole) = (number(",1,\"half\"]]"), number(",2,\"whole\"]]"));
        assert!(half.is_some() && half == whole, "{version}: {received}");
    }
}

#[test]
fn the_pace_of_a_subscription_is_kept_since_version_3() {
    for version in 3..=VERSION {
        let (mut rig, clients) = thawed(version);
        rig.pass(1);
        let received = |rig: &mut Rig, body| {
            rig.publish("g", body, None);
            rig.work();
            clients[PACED].received()
        };
        assert!(received(&mut rig, "first").contains("first"), "{version}");
        assert_eq!(received(&mut rig, "second"), "", "{version}");
        rig.pass(5);
        assert!(clients[PACED].received().contains("second"), "{version}");
    }
}

#[test]
fn acknowledgements_are_owed_since_version_4() {
    for version in 4..=VERSION {
        let (mut rig, clients) = thawed(version);
        let acknowledge = |rig: &mut Rig| {
            rig.send_frame(&clients[OWING], r#"{"type":"ack","frames":1}"#);
            rig.work();
            has_close(&clients[OWING], 4008)
        };
        assert!(!acknowledge(&mut rig) && acknowledge(&mut rig), "{version}");
    }
}

#[test]
fn attributes_are_kept_since_version_5() {
    for version in 5..=VERSION {
        let (rig, _clients) = thawed(version);
        let history =
            rig.engine.history(rig.now_ms(), &ChannelName::channel("a"), HistoryQuery::Newest, 9);
        let attributes = Attributes::of(&[(1, b"price"), (9_999, b"unknown")]).ok();
        assert_eq!(history.messages[0].extras.attributes(), attributes.as_ref(), "{version}");
    }
}

#[test]
fn names_of_users_are_kept_since_version_7() {
    for version in 7..=VERSION {
        let (mut rig, clients) = thawed(version);
        let publish = r#"{"type":"publish","channel":"n","data":"hi"}"#;
        rig.send_frame(&clients[NAMED], publish);
        rig.work();
        let received = clients[NAMED].received();
        assert!(received.contains(r#""from":"Ann A.","data":"hi""#), "{version}: {received}");
    }
}

#[test]
fn members_are_kept_since_version_9() {
    for version in 9..=VERSION {
        let (mut rig, clients) = thawed(version);
        let members = |rig: &Rig, name| {
            let channel = ChannelName::channel(name);
            rig.engine.members(rig.now_ms(), &channel, None, 9).members
        };
        let bob = r#"{"user":"bob","info":{"name":"Bob"}}"#;
        assert_eq!(members(&rig, "ends"), [bob.into()], "{version}");
        rig.send_frame(&clients[NAMED], r#"{"type":"subscribe","channel":"ends-2"}"#);
        rig.work();
        let ann = r#"{"user":"ann","info":{"age":7}}"#;
        assert_eq!(members(&rig, "ends-2"), [ann.into()], "{version}");
        // The subscription has an end of its own.
        (0..1_010).for_each(|_| rig.pass(1));
        (0..1_010).for_each(|_| rig.pass(1));
        assert_eq!(members(&rig, "ends").len(), 0, "{version}");
    }
}

#[test]
fn read_markers_are_kept_since_version_10() {
    for version in 10..=VERSION {
        let (rig, _clients) = thawed(version);
        let marker = rig.engine.read_marker(rig.now_ms(), &marker(), None);
        assert_eq!(marker.map(|marker| marker.unread), Ok(1), "{version}");
    }
}

#[test]
fn places_at_which_users_go_on_are_kept_since_version_11() {
    for version in 11..=VERSION {
        let (rig, _clients) = thawed(version);
        assert_eq!(bookmark(&rig), Some(1), "{version}");
    }
}

#[test]
fn records_of_logs_are_kept_since_version_6() {
    for version in 6..=VERSION {
        let (rig, _clients) = thawed(version);
        let state = rig.engine.state(&ChannelName::channel("created"));
        assert_eq!(state.record.map(|known| known.record), Some(record()), "{version}");
    }
}

#[test]
fn states_of_channels_are_kept_since_version_8() {
    for version in 8..=VERSION {
        let (mut rig, clients) = thawed(version);
        rig.set_key("prices", "old", "5");
        rig.read_again(&clients[STATE]);
        rig.work();
        let received = clients[STATE].received();
        let places = [r#""data":"1""#, r#""data":"4""#, r#""type":"state""#, r#""data":"5""#];
        let places = places.map(|text| received.find(text).unwrap_or_else(|| panic!("{received}")));
        assert!(places.is_sorted(), "{version}: {received}");
        assert!(!received.contains(r#""data":"2""#), "{version}: {received}");
        let page = rig.engine.keys(
            rig.now_ms(),
            &ChannelName::channel("prices"),
            &KeyQuery { limit: 9, ..KeyQuery::default() },
        );
        let values: Vec<_> = page.messages.iter().map(|it| it.body.bytes()).collect();
        assert_eq!(values, [b"4", b"5"], "{version}");
    }
}

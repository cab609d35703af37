use throng_core::Retention;
use throng_nats::api::stream::{StreamAbilities, StreamInfo, StreamSize};

use super::*;
use crate::doctor::nats::findings::{Account, StoreTimes};

fn settings(replicas: u8) -> StreamSettings {
    StreamSettings {
        prefix: "throng".into(),
        class: "channels".into(),
        replicas,
        is_in_memory: false,
        retention: Retention { max_messages: 100, max_bytes: 1 << 20, max_age_ms: 60_000 },
        bytes_max: 1 << 30,
        message_bytes_max: 1 << 17,
        duplicate_window_ms: 300_000,
    }
}

fn examined() -> Examined {
    Examined {
        address: "tls://10.0.0.1:4222".into(),
        name: "n1".into(),
        version: "2.15.2".into(),
        cluster: None,
        max_payload: 1 << 20,
        is_loopback: false,
        is_tls: true,
        login: "nkey",
        jetstream: JetStream::Enabled(Account::default()),
        stream: Existing::Missing,
        bucket: Existing::Missing,
        tables: Vec::new(),
        ahead_ms: Some(2),
        denied: Vec::new(),
        subscriptions: None,
        is_full: false,
        round_trips: vec![Duration::from_micros(300); 3],
        stored: None,
    }
}

/// The check with this name, of a node with one copy and one with three.
fn judged(examined: Examined, replicas: u8, name: &str) -> Check {
    let servers = vec![(examined.address.clone(), None)];
    let found = Findings { servers, examined: Some(examined), monitor: None };
    let wanted =
        WantedSettings { stream: &settings(replicas), message_bytes: 64 << 10, followed: None };
    let found = checks(&found, &wanted).into_iter().find(|check| check.name == name);
    found.unwrap_or_else(|| panic!("no check {name}"))
}

fn stream(peers: Vec<NatsPeer>, has_leader: bool) -> Existing {
    let info = StreamInfo {
        max_age_ns: 0,
        majority_silent_ms: 0,
        created: String::new(),
        first: 1,
        last: 1,
        leader: "n1".into(),
        differences: Vec::new(),
        abilities: StreamAbilities::default(),
        server_ms: 0,
        size: StreamSize::default(),
    };
    Existing::There(Box::new(ExistingStream { info, has_leader, peers }))
}

#[test]
fn a_proper_server_passes_all_visible_checks() {
    let found = Findings {
        servers: vec![("tls://10.0.0.1:4222".into(), None)],
        examined: Some(examined()),
        monitor: None,
    };
    let wanted = WantedSettings { stream: &settings(1), message_bytes: 64 << 10, followed: None };
    let checks = checks(&found, &wanted);
    let other: Vec<_> = checks.iter().filter(|check| check.verdict != CheckVerdict::Ok).collect();
    assert_eq!(other.len(), 1, "{other:?}");
    assert_eq!((other[0].name, other[0].verdict), ("sync", CheckVerdict::Unknown));
}

#[test]
fn what_is_wrong_has_a_verdict() {
    let verdict = |change: fn(&mut Examined), replicas, name| {
        let mut examined = examined();
        change(&mut examined);
        judged(examined, replicas, name).verdict
    };
    for (change, name, expected) in [
        (
            (|found| found.version = "2.10.29".into()) as fn(&mut Examined),
            "version",
            CheckVerdict::Must,
        ),
        (|found| found.is_tls = false, "login", CheckVerdict::Should),
        (|found| found.login = "none", "login", CheckVerdict::Should),
        (|found| found.jetstream = JetStream::Leaderless, "JetStream", CheckVerdict::Must),
        (|found| found.jetstream = JetStream::Unknown, "JetStream", CheckVerdict::Unknown),
        (|found| found.max_payload = 64 << 10, "max_payload", CheckVerdict::Should),
        (|found| found.ahead_ms = Some(-1_500), "clock", CheckVerdict::Should),
        (|found| found.stream = stream(Vec::new(), false), "stream", CheckVerdict::Must),
        (|found| found.round_trips = vec![ROUND_TRIP; 3], "round trip", CheckVerdict::Should),
        (|found| found.stored = Some(Err("no".into())), "stored", CheckVerdict::Must),
        (|found| found.stored = Some(Ok(StoreTimes::default())), "stored", CheckVerdict::Ok),
        (|found| found.cluster = Some(("c".into(), 3)), "servers", CheckVerdict::Should),
        (|found| found.cluster = Some(("c".into(), 3)), "replicas", CheckVerdict::Should),
    ] {
        assert_eq!(verdict(change, 1, name), expected, "{name}");
    }
    assert_eq!(verdict(|_| {}, 3, "replicas"), CheckVerdict::Must);
    assert_eq!(
        verdict(|found| found.cluster = Some(("c".into(), 3)), 3, "replicas"),
        CheckVerdict::Ok
    );
}

#[test]
fn servers_that_lag_are_named() {
    let peer = |name: &str, is_offline, is_current| NatsPeer {
        name: name.into(),
        is_offline,
        is_current,
        lag: 1_200,
    };
    let peers = vec![peer("n2", false, true), peer("n3", true, false)];
    let check = judged(Examined { stream: stream(peers, true), ..examined() }, 3, "stream");
    assert_eq!(check.verdict, CheckVerdict::Should);
    assert_eq!(check.by_hand, ["throng-channels: n3 is offline, 1,200 behind"]);
}

#[test]
fn a_stream_needs_its_room_once() {
    let account = || Account { storage_max: Some(1 << 20), ..Account::default() };
    let small = |stream| {
        let jetstream = JetStream::Enabled(account());
        judged(Examined { stream, jetstream, ..examined() }, 1, "storage").verdict
    };
    assert_eq!(small(Existing::Missing), CheckVerdict::Must);
    assert_eq!(small(stream(Vec::new(), true)), CheckVerdict::Ok);
}

#[test]
fn limits_of_an_account_are_compared_with_the_demand() {
    let judged = |subscriptions, followed, account, name| {
        let jetstream = JetStream::Enabled(account);
        let examined = Examined { subscriptions, jetstream, ..examined() };
        let servers = vec![(examined.address.clone(), None)];
        let found = Findings { servers, examined: Some(examined), monitor: None };
        let wanted = WantedSettings { stream: &settings(1), message_bytes: 64 << 10, followed };
        checks(&found, &wanted).into_iter().find(|check| check.name == name)
    };
    let verdict = |subscriptions, followed| {
        judged(subscriptions, followed, Account::default(), "channels").map(|one| one.verdict)
    };
    assert_eq!(verdict(Some(500), None), Some(CheckVerdict::Should));
    assert_eq!(verdict(Some(500), Some(492)), Some(CheckVerdict::Ok));
    assert_eq!(verdict(Some(500), Some(493)), Some(CheckVerdict::Should));
    assert_eq!(verdict(None, Some(20_000)), Some(CheckVerdict::Ok));
    assert_eq!(verdict(None, Some(SUBSCRIPTIONS_MAX)), Some(CheckVerdict::Unknown));
    let of = |account, name| judged(None, None, account, name).map(|one| one.verdict);
    // The stream and the bucket are missing.
    let streams = |most| Account { streams_max: Some(most), streams: 3, ..Account::default() };
    assert_eq!(of(streams(5), "streams"), Some(CheckVerdict::Ok));
    assert_eq!(of(streams(4), "streams"), Some(CheckVerdict::Must));
    assert_eq!(of(Account::default(), "streams"), None);
    let small = Account { stream_bytes_max: Some(1 << 20), ..Account::default() };
    assert_eq!(of(small, "storage"), Some(CheckVerdict::Must));
}

//! Members of channels, and limits: who is beyond one is announced to nobody, and what others are
//! told counts as published.

use std::net::IpAddr;
use std::sync::Arc;

use throng_access::limit::{ClientLimits, LimitSettings, Limiter, Quantity};
use throng_access::{AccessControl, AllowAll, Clients};
use throng_core::{Channels, Epoch, MemoryEngine};
use throng_edge::Settings;

use crate::members::{pass, rig_with, rig_without_grace, rules, told};
use crate::rig::{Client, Rig};

/// Limits for the clients of one address, and the address.
fn limited(address: ClientLimits) -> (AccessControl, IpAddr) {
    let limiter = Limiter::new(LimitSettings { address, ..LimitSettings::default() });
    let clients = Arc::new(Clients { limiter, ..Clients::default() });
    let access = AccessControl { clients, ..AccessControl::open(Arc::new(AllowAll)) };
    (access, "192.0.2.1".parse().expect("an address"))
}

/// A client elsewhere who follows the members of the room, which has none.
fn watcher(rig: &mut Rig) -> Client {
    let address = "192.0.2.2".parse().expect("an address");
    let head = "GET /channels/room?presence=true HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let watcher = rig.connect_from(Some(address), head);
    assert_eq!(told(rig, &watcher), ["state 0"]);
    watcher
}

const OF_MALLORY: &str =
    "GET /subscribe?channel=room&channel=b&user=mallory HTTP/1.1\r\nHost: localhost\r\n\r\n";

const V1_OF_MALLORY: &str = "GET /subscribe?user=mallory HTTP/1.1\r\nHost: localhost\r\n\
    Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: throng.v1\r\n\r\n";

#[test]
fn who_is_refused_for_a_limit_is_announced_to_nobody() {
    let (access, address) = limited(ClientLimits { subscriptions: 2, ..ClientLimits::default() });
    let mut rig = rig_with(access, false);
    let watcher = watcher(&mut rig);
    let refused = rig.connect_from(Some(address), OF_MALLORY);
    rig.work();
    assert!(refused.received().starts_with("HTTP/1.1 429 "));
    let client = rig.connect_from(Some(address), V1_OF_MALLORY);
    for command in [
        r#"{"type":"subscribe","channel":"hall"}"#,
        r#"{"type":"subscribe","channel":"room"}"#,
        r#"{"type":"subscribe","channels":["room"]}"#,
    ] {
        rig.send_frame(&client, command);
    }
    let answers = client.received();
    assert_eq!(answers.matches("too_many_requests").count(), 2, "{answers}");
    assert_eq!(told(&mut rig, &watcher), [""; 0]);
    rig.worker.check_invariants();
}

#[test]
fn whom_a_full_list_refuses_holds_no_subscription() {
    let (access, address) = limited(ClientLimits { subscriptions: 9, ..ClientLimits::default() });
    let clients = Arc::clone(&access.clients);
    let memory = |rules, queues| MemoryEngine::new(Epoch::numbered(35), rules, queues, 1);
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    let mut rig = Rig::with_memory(settings, (Arc::new(access), rules(false)), memory, |memory| {
        Channels::new(memory, Vec::new())
    });
    let held =
        || clients.limiter.held(clients.limiter.address(Some(address)), Quantity::Subscriptions);
    let refused = rig.connect_from(Some(address), OF_MALLORY);
    rig.work();
    let answer = refused.received();
    assert!(answer.starts_with("HTTP/1.1 507 "), "{answer}");
    assert_eq!(held(), 0);
    let client = rig.connect_from(Some(address), V1_OF_MALLORY);
    for command in [
        r#"{"type":"subscribe","channel":"room"}"#,
        r#"{"type":"subscribe","channels":["room","hall"]}"#,
    ] {
        rig.send_frame(&client, command);
    }
    let answers = client.received();
    assert_eq!(answers.matches("not_stored").count(), 2, "{answers}");
    assert_eq!(held(), 2, "the inbox and the hall");
    rig.worker.check_invariants();
}

#[test]
fn what_a_client_shows_counts_as_published() {
    let (access, address) = limited(ClientLimits { publishes_per_s: 2, ..ClientLimits::default() });
    let mut rig = rig_with(access, false);
    let watcher = watcher(&mut rig);
    let client = rig.connect_from(Some(address), V1_OF_MALLORY);
    for n in 0..4 {
        let command = format!(r#"{{"type":"subscribe","channel":"room","info":{{"n":{n}}}}}"#);
        rig.send_frame(&client, &command);
        rig.send_frame(&client, r#"{"type":"unsubscribe","channel":"room"}"#);
    }
    assert_eq!(client.received().matches("too_many_requests").count(), 2);
    let shown = [r#"join mallory {"n":0}"#, r#"update mallory {"n":1}"#];
    assert_eq!(told(&mut rig, &watcher), shown);
    rig.worker.check_invariants();
}

#[test]
fn whoever_leaves_and_joins_in_a_loop_pays_for_what_others_are_told() {
    let (access, address) = limited(ClientLimits { publishes_per_s: 2, ..ClientLimits::default() });
    let mut rig = rig_without_grace(access, true);
    let head = "GET /channels/room?presence=true HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let watcher = rig.connect_from(Some("192.0.2.2".parse().expect("an address")), head);
    told(&mut rig, &watcher);
    let client = rig.connect_from(Some(address), V1_OF_MALLORY);
    let run = |rig: &mut Rig, [subscribe, unsubscribe]: [&str; 2]| {
        for _ in 0..5 {
            rig.send_frame(&client, subscribe);
            rig.send_frame(&client, unsubscribe);
        }
        client.received().matches("too_many_requests").count()
    };
    let one =
        [r#"{"type":"subscribe","channel":"room"}"#, r#"{"type":"unsubscribe","channel":"room"}"#];
    assert_eq!(run(&mut rig, one), 3);
    let events = ["join mallory", "leave mallory"];
    assert_eq!(told(&mut rig, &watcher), events.repeat(2));
    pass(&mut rig, 20);
    let many = [
        r#"{"type":"subscribe","channels":["room"]}"#,
        r#"{"type":"unsubscribe","channels":["room"]}"#,
    ];
    assert_eq!(run(&mut rig, many), 3);
    assert_eq!(told(&mut rig, &watcher), events.repeat(2));
    // Channels without members are not concerned.
    let hall = one.map(|command| command.replace("room", "hall"));
    assert_eq!(run(&mut rig, hall.each_ref().map(|command| &**command)), 0);
    rig.worker.check_invariants();
}

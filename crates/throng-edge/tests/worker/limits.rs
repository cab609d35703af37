//! Limits of clients: what a refusal costs the worker.

use std::net::IpAddr;
use std::sync::Arc;

use throng_access::AccessRules;
use throng_access::limit::{ClientLimits, LimitSettings};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};
use crate::tokens::{bearer, limited_control, token_of_ann, token_of_key};

const HERE: &str = "192.0.2.1";

fn rig(limits: LimitSettings) -> Rig {
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    Rig::with_control(settings, Arc::new(limited_control(AccessRules::default(), limits).0))
}

fn get(rig: &mut Rig, address: &str, fields: &str) -> Client {
    let address: IpAddr = address.parse().expect("an address");
    let head = format!("GET /channels/rooms%2Fa HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let client = rig.connect_from(Some(address), &head);
    rig.work();
    rig.worker.check_invariants();
    client
}

#[test]
fn an_unverified_token_is_refused_and_closed_at_once() {
    let mut rig = rig(LimitSettings { bad_tokens_per_s: 2, ..LimitSettings::default() });
    let forged = bearer(&token_of_key("x", r#"{"exp": 3600, "iat": 1}"#));
    for _ in 0..2 {
        let refused = get(&mut rig, HERE, &forged);
        assert!(refused.received().starts_with("HTTP/1.1 401 "));
        assert!(!refused.is_closed(), "it lingers");
    }
    let limited = get(&mut rig, HERE, &forged);
    let answer = limited.received();
    assert!(
        answer.starts_with("HTTP/1.1 429 ") && answer.contains("\r\nRetry-After: "),
        "{answer}"
    );
    assert!(limited.is_closed());
    assert_eq!(rig.count(Counter::RefusedLimit), 1);

    // Input after the request must not destroy the answer.
    let more = format!("{forged}\r\nGET / HTTP/1.1\r\n");
    let pipelined = get(&mut rig, HERE, &more);
    assert!(pipelined.received().starts_with("HTTP/1.1 429 ") && !pipelined.is_closed());
    let elsewhere = get(&mut rig, "192.0.2.2", &bearer(&token_of_ann()));
    assert!(elsewhere.received().starts_with("HTTP/1.1 200 "));
    rig.pass(10);
    let again = get(&mut rig, HERE, &forged);
    assert!(again.received().starts_with("HTTP/1.1 401 "));
}

/// The events are of one batch, with no slice of work between them.
#[test]
fn a_client_that_hangs_up_may_come_back_with_the_next_event() {
    let address = ClientLimits { connections: 1, ..ClientLimits::default() };
    let mut rig = rig(LimitSettings { address, ..LimitSettings::default() });
    let token = bearer(&token_of_ann());
    let first = get(&mut rig, HERE, &token);
    let second = get(&mut rig, HERE, &token);
    assert!(second.received().starts_with("HTTP/1.1 429 "), "{}", second.received());
    rig.hang_up(&first);
    assert!(first.is_closed());
    let third = get(&mut rig, HERE, &token);
    assert!(third.received().starts_with("HTTP/1.1 200 "), "{}", third.received());
}

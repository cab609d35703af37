//! `/status`, `/status.json` and the samples.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use throng_access::{AllowAll, AllowedPages};
use throng_control::Settings;
use throng_core::{Body, ChannelName, Notification, Publication};

use crate::client::{Answer, TIMEOUT, get_from, post};
use crate::server::Server;

/// Makes a request as a client on the same machine does.
fn ask(server: &Server, target: &str) -> Answer {
    server.ask(format!("GET {target} HTTP/1.1\r\nHost: localhost:8080\r\n\r\n"))
}

#[test]
fn only_clients_on_the_same_machine_may_see_the_status() {
    let here = Server::new();
    let everywhere =
        Server::with(Settings { listen: Ipv4Addr::UNSPECIFIED.into(), ..Settings::for_tests() });
    let allowed_hosts = vec!["push.example".into()];
    let pages = AllowedPages::new(Vec::new(), allowed_hosts).shared();
    let proxied = Server::with(Settings { pages, ..Settings::for_tests() });
    for path in ["/status", "/status.json", "/status.json?history=1"] {
        assert_eq!(ask(&here, path).status, 200, "{path}");
        // As a proxy that forwards its own host name.
        proxied.ask(get_from("push.example", path)).expect_refusal(403, "forbidden");
        ask(&everywhere, path).expect_refusal(403, "forbidden");
    }
    let head = "HEAD /status/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(here.connect(head).answer_to_head().status, 200);
    assert_eq!(everywhere.connect(head).answer_to_head().status, 403);
    here.ask(post("/status/stream", &[], "x")).expect_refusal(405, "method_not_allowed");
}

#[test]
fn the_first_sample_is_available_at_once() {
    let server = Server::new();
    server.edge.connections.store(7, Ordering::SeqCst);
    let sample = ask(&server, "/status.json").json();
    assert_eq!(sample["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(sample["deliveries"]["per_s"], 0.0);
    assert!(sample["connections"]["total"].is_u64());
    assert!(sample.get("history").is_none());
    let history = &ask(&server, "/status.json?history=900").json()["history"];
    assert!(!history["time_ms"].as_array().unwrap().is_empty());
}

#[test]
fn the_charts_include_events_before_the_first_sample() {
    // Workers accept messages over WebSockets as soon as they run.
    let publish = |engine: &throng_core::MemoryEngine| {
        let publication = Publication::new(
            ChannelName::new(throng_core::Kind::Channel, "early"),
            Body::Text("x".into()),
        );
        engine.publish(0, publication).unwrap();
    };
    let server = Server::prepared(Settings::for_tests(), Arc::new(AllowAll), publish);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let history = &ask(&server, "/status.json?history=900").json()["history"];
        let rates = history["messages_in_per_s"].as_array().unwrap();
        if rates.iter().any(|rate| rate.as_f64().unwrap() > 0.0) {
            return;
        }
        assert!(rates.len() < 3 && Instant::now() < deadline, "missing in the charts: {rates:?}");
        std::thread::yield_now();
    }
}

#[test]
fn viewers_get_each_sample_and_samples_do_not_count_as_messages() {
    let server = Server::new();
    server.follow(&ChannelName::status());
    let Notification::Message { message, .. } = server.notification() else { panic!("a message") };
    assert_eq!(message.channel, ChannelName::status());
    assert!(message.in_flight().is_none(), "the sample has no latency");
    let sample: serde_json::Value = serde_json::from_slice(message.body.bytes()).unwrap();
    assert_eq!(sample["messages_in"]["total"], 0);
    assert_eq!(server.metric("throng_log_messages_published_total"), 0);
    assert_eq!(server.metric("throng_log_messages"), 0);
}

#[test]
fn the_length_of_the_history_is_checked() {
    let server = Server::new();
    for history in ["901", "-1", "x", ""] {
        let answer = ask(&server, &format!("/status.json?history={history}"));
        answer.expect_refusal(400, "bad_parameter");
    }
}

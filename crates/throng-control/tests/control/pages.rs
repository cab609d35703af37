//! Pages, files, health and metrics.

use std::sync::atomic::Ordering;

use serde_json::json;

use crate::client::{get, post, request};
use crate::server::Server;

#[test]
fn the_root_redirects_to_the_chat() {
    let answer = Server::new().ask(get("/"));
    assert_eq!((answer.status, answer.field("location")), (302, Some("/chat")));
}

#[test]
fn files_are_served_and_revalidated() {
    let server = Server::new();
    for (path, content_type) in [
        ("/chat", "text/html; charset=utf-8"),
        ("/chat.css", "text/css; charset=utf-8"),
        ("/chat.js", "text/javascript; charset=utf-8"),
        ("/chat-view.js", "text/javascript; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/throng.js", "text/javascript; charset=utf-8"),
        ("/throng-tabs.js", "text/javascript; charset=utf-8"),
        ("/status.css", "text/css; charset=utf-8"),
        ("/status.js", "text/javascript; charset=utf-8"),
        ("/uplot.js", "text/javascript; charset=utf-8"),
    ] {
        let answer = server.ask(get(path));
        assert_eq!((answer.status, answer.field("content-type")), (200, Some(content_type)));
        assert!(!answer.text().is_empty());
        let policy = answer.field("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'"));
        assert_eq!(answer.field("x-content-type-options"), Some("nosniff"));
        let etag = answer.field("etag").unwrap();
        for known in [etag.to_owned(), format!("\"x\", W/{etag}"), "*".into()] {
            let again = server.ask(request("GET", path, &[&format!("If-None-Match: {known}")]));
            assert_eq!((again.status, again.field("etag")), (304, Some(etag)), "{known}");
        }
        let other = server.ask(request("GET", path, &["If-None-Match: \"x\""]));
        assert_eq!(other.status, 200);
    }
}

#[test]
fn health_is_ok() {
    let answer = Server::new().ask(get("/health?from=proxy"));
    assert_eq!((answer.status, answer.text()), (200, "ok\n"));
    assert_eq!(answer.field("cache-control"), Some("no-store"));
}

#[test]
fn a_server_that_stands_still_is_neither_alive_nor_ready() {
    let server = Server::new();
    server.health.set_stuck(vec!["worker-3".into()]);
    for path in ["/health/live", "/health/ready"] {
        let answer = server.ask(get(path));
        assert_eq!((answer.status, answer.field("content-type")), (503, Some("application/json")));
        let reason = json!({"reason": "stuck", "message": "worker-3 stands still"});
        assert_eq!(answer.json(), json!({"status": "stuck", "reasons": [reason]}), "{path}");
    }
    assert_eq!(server.ask(get("/health")).text(), "stuck\n");
    server.health.set_stuck(Vec::new());
    assert_eq!(server.ask(get("/health/live")).json(), json!({"status": "live", "reasons": []}));
}

#[test]
fn a_degraded_server_is_ready_and_says_why() {
    let server = Server::new();
    assert_eq!(server.ask(get("/health/ready")).json()["status"], "ready");
    server.edge.connections.store(10_000, Ordering::SeqCst);
    let answer = server.ask(get("/health/ready"));
    assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some("degraded")));
    assert_eq!(answer.json()["reasons"][0]["reason"], "full");
    assert_eq!(server.ask(get("/health/live")).json()["reasons"], json!([]));
    assert_eq!(server.ask(get("/health")).text(), "ok\n");
}

#[test]
fn a_server_that_is_about_to_leave_serves_and_is_not_ready() {
    let server = Server::new();
    server.health.leave();
    let answer = server.ask(get("/health/ready"));
    assert_eq!((answer.status, answer.json()["status"].as_str()), (503, Some("draining")));
    assert!(answer.field("retry-after").is_some());
    assert_eq!(server.ask(get("/health")).status, 503);
    assert_eq!(server.ask(get("/health/live")).status, 200);
    assert_eq!(server.ask(post("/channels/a", &[], "x")).status, 201);
}

#[test]
fn unknown_paths_are_not_found() {
    let server = Server::new();
    for path in ["/x", "/chat/", "/channels/a/", "/channels/a/b/c", "//chat", "/%00"] {
        server.ask(get(path)).expect_refusal(404, "not_found");
    }
    assert_eq!(server.refused("not_found"), 6);
}

#[test]
fn each_answer_has_the_id_of_its_request() {
    let server = Server::new();
    let id = |fields: &[&str]| {
        let of = |target| server.ask(request("GET", target, fields));
        let [found, missing] = ["/health", "/nowhere"].map(of);
        assert_eq!((found.status, missing.status), (200, 404));
        [found, missing].map(|answer| answer.field("x-request-id").unwrap().to_owned())
    };
    assert_eq!(id(&["X-Request-Id: from-a-proxy"]), ["from-a-proxy"; 2]);
    let [first, second] = id(&["X-Request-Id: no spaces"]);
    assert!(first.len() == 16 && first != second, "{first} {second}");
    let foreign = server.ask(request("GET", "/", &["Origin: https://other.example"]));
    assert_eq!(foreign.status, 403);
    assert!(foreign.field("x-request-id").is_some());
}

#[test]
fn metrics_are_valid_prometheus_text() {
    let server = Server::new();
    server.ask(post("/channels/a", &[], "x"));
    server.edge.connections.store(7, Ordering::SeqCst);
    let answer = server.ask(get("/metrics"));
    let content_type = answer.field("content-type").unwrap();
    assert!(content_type.starts_with("text/plain; version=0.0.4"));
    let mut described = Vec::new();
    let mut is_histogram = false;
    for line in answer.text().lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "counter" | "gauge" | "histogram"));
            is_histogram = kind == "histogram";
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            assert_eq!(is_histogram, name.ends_with("_seconds") && kind != "gauge", "{name}");
            assert!(!described.contains(&name), "{name} is described twice");
            described.push(name);
        } else if !line.starts_with("# HELP ") {
            let (full, value) = line.rsplit_once(' ').unwrap();
            let name = full.split('{').next().unwrap();
            let parts = ["_bucket", "_sum", "_count"].iter();
            let of = parts.filter(|_| is_histogram).find_map(|part| name.strip_suffix(part));
            assert_eq!(described.last(), Some(&of.unwrap_or(name)), "{line}");
            let is_sum = is_histogram && name.ends_with("_sum");
            let is_whole = value.parse::<u64>().is_ok();
            assert!(is_whole || (is_sum && value.parse::<f64>().is_ok()), "{line}");
        }
    }
    for (name, labels) in [
        ("throng_http_request_duration_seconds", "route=\"publish\","),
        ("throng_publish_to_last_write_seconds", ""),
    ] {
        let samples = |part: &str| {
            let prefix = format!("{name}{part}");
            let values = answer.text().lines().filter_map(move |line| {
                let (full, value) = line.strip_prefix(prefix.as_str())?.rsplit_once(' ')?;
                Some((full.to_owned(), value.parse::<f64>().unwrap()))
            });
            let label = labels.trim_end_matches(',');
            values.filter(|(full, _)| full.contains(label)).collect::<Vec<_>>()
        };
        let (buckets, count) = (samples("_bucket"), samples("_count"));
        assert!(buckets.is_sorted_by(|left, right| left.1 <= right.1), "{buckets:?}");
        assert_eq!(buckets.last(), Some(&(format!("{{{labels}le=\"+Inf\"}}"), count[0].1)));
        assert!(buckets.len() > 2 && samples("_sum").len() == 1, "{name}");
    }
    assert_eq!(server.metric("throng_worker_connections{worker=\"0\"}"), 7);
    assert_eq!(server.metric("throng_log_messages"), 1);
}

#[test]
fn whoever_writes_a_slash_in_a_path_is_told_how_to_write_it_in_a_name() {
    let server = Server::new();
    for (target, is_told) in [
        ("/channels/rooms/garden", true),
        ("/users/a/b", true),
        ("/nothing", false),
        ("/channelss/a", false),
    ] {
        let answer = server.ask(get(target));
        answer.expect_refusal(404, "not_found");
        assert_eq!(answer.text().contains("`%2F`"), is_told, "{target}: {}", answer.text());
    }
}

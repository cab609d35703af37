//! Checks of `Origin` and `Host`.

use std::net::Ipv4Addr;

use throng_access::AllowedPages;
use throng_control::Settings;

use crate::client::{get, get_from, post, request};
use crate::server::Server;

const ALLOWED: &str = "Origin: https://page.example";

fn server() -> Server {
    let allowed_origins = vec!["https://page.example".into()];
    let pages = AllowedPages::new(allowed_origins, Vec::new()).shared();
    Server::with(Settings { pages, ..Settings::for_tests() })
}

/// A server that other machines can reach, under any name.
fn public() -> Server {
    let listen = Ipv4Addr::UNSPECIFIED.into();
    Server::with(Settings { listen, ..Settings::for_tests() })
}

fn requests(origin: &str) -> Vec<Vec<u8>> {
    vec![
        post("/channels/a", &[origin], "x"),
        post("/publish", &[origin], "{\"channel\":\"a\",\"data\":1}"),
        request("GET", "/channels/a/history", &[origin]).into(),
        request("GET", "/channels/a/presence", &[origin]).into(),
        request("OPTIONS", "/channels/a", &[origin]).into(),
        request("GET", "/throng.js", &[origin]).into(),
        request("GET", "/health", &[origin]).into(),
    ]
}

#[test]
fn pages_of_allowed_origins_may_read_the_response() {
    let server = server();
    let refusals = [
        request("GET", "/channels/../history", &[ALLOWED]),
        request("GET", "/nowhere", &[ALLOWED]),
        request("DELETE", "/channels/a", &[ALLOWED]),
    ];
    for request in requests(ALLOWED).into_iter().chain(refusals.map(Into::into)) {
        let answer = server.ask(request);
        assert_ne!(answer.status, 403);
        assert_eq!(answer.field("access-control-allow-origin"), Some("https://page.example"));
        let varies_by = answer.field("vary").unwrap();
        assert!(varies_by.split(", ").any(|name| name == "Origin"), "{varies_by}");
        let exposed = answer.field("access-control-expose-headers").unwrap();
        for name in ["Throng-Id", "Throng-Recovered", "Throng-Connection"] {
            assert!(exposed.contains(name));
        }
    }
}

#[test]
fn pages_of_other_origins_are_refused() {
    let server = server();
    let others = [
        "Origin: https://other.example",
        "Origin: null",
        "Origin:",
        "Origin: https://throng.example:1",
    ];
    for origin in others {
        for request in requests(origin) {
            let answer = server.ask(request);
            answer.expect_refusal(403, "origin_refused");
            // Its pages may read that they are refused.
            let origin = origin.strip_prefix("Origin: ");
            assert_eq!(answer.field("access-control-allow-origin"), origin);
            assert_eq!(answer.field("access-control-allow-credentials"), None);
        }
    }
    assert_eq!(server.refused("origin_refused"), 28);
    assert_eq!(server.texts("a"), [""; 0]);
    let twice = [ALLOWED, "Origin: https://other.example"];
    let answer = server.ask(request("GET", "/health", &twice));
    answer.expect_refusal(400, "bad_request");
}

#[test]
fn own_and_loopback_pages_are_allowed() {
    let server = public();
    for (host, origin) in [
        ("throng.example", "https://throng.example"),
        ("throng.example:8080", "http://throng.example:8080"),
        ("127.0.0.1:8080", "http://localhost:3000"),
    ] {
        let answer = server.ask(format!(
            "GET /channels/a/history HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\r\n"
        ));
        assert_eq!(answer.status, 200, "{origin}");
        assert_eq!(answer.field("access-control-allow-origin"), Some(origin));
    }
    // The authority in the target overrides the header.
    let target = "http://other.example/channels/a/history";
    let answer = server.ask(request("GET", target, &["Origin: http://throng.example"]));
    answer.expect_refusal(403, "origin_refused");
    let answer = server.ask(request("GET", target, &["Origin: http://other.example"]));
    assert_eq!(answer.status, 200);
}

/// DNS rebinding: the host name of the page resolves to this machine.
#[test]
fn a_page_whose_name_resolves_to_loopback_is_refused() {
    let server = Server::new();
    let ask = |host: &str, origin: &str| {
        server.ask(format!(
            "POST /channels/a HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\
             Content-Length: 1\r\n\r\nx"
        ))
    };
    let answer = ask("evil.example:9409", "http://evil.example:9409");
    answer.expect_refusal(403, "origin_refused");
    assert_eq!(answer.field("access-control-allow-credentials"), None);
    assert_eq!(server.texts("a"), [""; 0]);
    for host in ["127.0.0.1:9409", "localhost:9409", "[::1]:9409"] {
        assert_eq!(ask(host, &format!("http://{host}")).status, 201, "{host}");
    }
}

/// A browser sends no `Origin` with a `GET` to the page's own host: only `Host` reveals rebinding.
#[test]
fn a_page_whose_name_resolves_to_loopback_reads_nothing() {
    let server = Server::new();
    assert_eq!(server.ask(post("/channels/a", &[], "secret")).status, 201);
    let paths = [
        "/channels/a/history",
        "/channels/a/presence",
        "/users/a/history",
        "/status.json",
        "/metrics",
        "/throng.js",
        "/chat",
        "/",
        "/nowhere",
        "http://evil.example/channels/a/history",
    ];
    for path in paths {
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example"] {
            server.ask(get_from(host, path)).expect_refusal(403, "host_refused");
        }
    }
    let head = "HEAD /channels/a HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    assert_eq!(server.connect(head).answer_to_head().status, 403);
    assert_eq!(server.refused("host_refused"), 3 * paths.len() as u64 + 1);
    // Probes use names of their own, and learn only that the server runs.
    for path in ["/health", "/health/live", "/health/ready"] {
        assert_eq!(server.ask(get_from("10-0-0-7.pod.cluster.local", path)).status, 200);
    }
    for host in ["localhost:8080", "localhost.", "127.0.0.1", "[::1]:8080", "192.168.0.7:1"] {
        assert_eq!(server.texts_at(host, "a"), ["secret"], "{host}");
    }
    let old = server.ask("GET /channels/a/history HTTP/1.0\r\n\r\n");
    assert_eq!(old.status, 200);
}

#[test]
fn the_settings_list_allowed_hosts() {
    let allowed_origins = vec!["https://page.example".into()];
    let allowed_hosts = vec!["throng".into(), "push.example".into()];
    for listen in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
        let server = Server::with(Settings {
            listen: listen.into(),
            pages: AllowedPages::new(allowed_origins.clone(), allowed_hosts.clone()).shared(),
            ..Settings::for_tests()
        });
        for host in ["throng:8080", "Push.Example", "page.example", "10.0.0.7:8080"] {
            assert_eq!(server.ask(get_from(host, "/channels/a/history")).status, 200, "{host}");
        }
        server
            .ask(get_from("evil.example", "/channels/a/history"))
            .expect_refusal(403, "host_refused");
    }
    // A server that other machines can reach does not know all of its names.
    assert_eq!(public().ask(get_from("any.example", "/channels/a/history")).status, 200);
}

#[test]
fn a_star_allows_any_origin() {
    let pages = AllowedPages::new(vec!["*".into()], Vec::new()).shared();
    let server = Server::with(Settings { pages, ..Settings::for_tests() });
    let answer = server.ask(request("GET", "/health", &["Origin: null"]));
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (200, Some("null")));
    assert_eq!(server.ask(get("/health")).field("access-control-allow-origin"), None);
}

#[test]
fn preflight_requests_are_answered() {
    let fields = [ALLOWED, "Access-Control-Request-Method: POST"];
    let server = server();
    let answer = server.ask(request("OPTIONS", "/channels/a", &fields));
    assert_eq!(answer.status, 204);
    let methods = answer.field("access-control-allow-methods").unwrap();
    assert!(methods.contains("POST") && methods.contains("PUT"));
    let headers = answer.field("access-control-allow-headers").unwrap().to_ascii_lowercase();
    for name in [
        "authorization",
        "content-type",
        "idempotency-key",
        "throng-exclude",
        "last-event-id",
        "prefer",
    ] {
        assert!(headers.contains(name), "{name}");
    }
    assert!(answer.field("access-control-max-age").is_some());
    let answer = server.ask(request("OPTIONS", "/channels/a", &fields[..1]));
    assert_eq!(answer.field("access-control-allow-methods"), None);
}

use std::net::Ipv4Addr;

use super::*;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The error code, if the request is refused.
fn check(
    listen: IpAddr,
    origins: &[&str],
    hosts: &[&str],
    origin: Option<&str>,
    host: Option<&str>,
) -> Result<(), &'static str> {
    let owned = |list: &[&str]| list.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>();
    let (origins, hosts) = (owned(origins), owned(hosts));
    let policy =
        OriginPolicy { listen, origins: &origins, hosts: &hosts, is_same_port_only: false };
    policy.check(origin, host).map_err(|error| error.code.name())
}

fn allowed_on(listen: IpAddr, origin: &str, host: &str, list: &[&str]) -> bool {
    check(listen, list, &[], Some(origin), Some(host)).is_ok()
}

fn allowed(origin: &str, host: &str, list: &[&str]) -> bool {
    allowed_on(ANY, origin, host, list)
}

fn without_origin(listen: IpAddr, origins: &[&str], hosts: &[&str], host: &str) -> bool {
    match check(listen, origins, hosts, None, Some(host)) {
        Ok(()) => true,
        Err(code) => {
            assert_eq!(code, "host_refused");
            false
        }
    }
}

/// A browser sends no origin with a `GET` to the page's own host, so DNS rebinding shows in `Host`
/// alone.
#[test]
fn on_loopback_only_known_hosts_are_answered() {
    for listen in [LOCAL, IpAddr::V6(Ipv6Addr::LOCALHOST), "::ffff:127.0.0.1".parse().unwrap()] {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.9.9.9:1",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "localhost.:8080",
            "a.b.localhost:1",
            "a.localhost.",
            "192.168.0.1:8080",
            "[2001:db8::1]",
        ] {
            assert!(without_origin(listen, &[], &[], host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example:8080",
            "localhost.evil.example",
            "evillocalhost",
            ".localhost.evil",
            "localhost..",
            "127.1",
            "0x7f000001",
            "2130706433",
            "127.0.0.1.",
            "",
        ] {
            assert!(!without_origin(listen, &[], &[], host), "{host}");
            assert!(without_origin(listen, &[], &["*"], host) || host.is_empty(), "{host}");
            assert!(without_origin(listen, &["*"], &[], host) || host.is_empty(), "{host}");
        }
        // Only HTTP/1.0 has requests without a host.
        assert_eq!(check(listen, &[], &[], None, None), Ok(()));
    }
}

#[test]
fn names_of_the_settings_are_the_servers_own() {
    let origins = &["https://app.example", "null", "http://b.example:81"];
    let hosts = &["throng", "push.example"];
    for host in ["app.example", "B.example:9", "Throng:8080", "push.example.", "push.example:80"] {
        assert!(without_origin(LOCAL, origins, hosts, host), "{host}");
        // Once names are listed, others are refused, whatever the listen address.
        assert!(without_origin(ANY, origins, hosts, host), "{host}");
    }
    for host in ["x.push.example", "null", "evil.example:80", "throng.evil.example"] {
        assert!(!without_origin(LOCAL, origins, hosts, host), "{host}");
        assert!(!without_origin(ANY, origins, hosts, host), "{host}");
        assert!(without_origin(ANY, origins, &[], host), "{host}");
    }
    let page = |listen, host: &str| {
        let origin = format!("http://{host}");
        check(listen, origins, hosts, Some(&origin), Some(host))
    };
    for listen in [LOCAL, ANY] {
        assert_eq!(page(listen, "push.example:8080"), Ok(()));
        assert_eq!(page(listen, "evil.example:8080"), Err("origin_refused"));
        // An origin is listed with scheme and port, and both must match for a page to write.
        assert_eq!(page(listen, "app.example"), Err("origin_refused"));
    }
}

#[test]
fn the_message_names_the_setting() {
    let policy = OriginPolicy { listen: LOCAL, origins: &[], hosts: &[], is_same_port_only: false };
    let error = policy.check(None, Some("evil.example:8080")).unwrap_err();
    assert_eq!(error.code.status(), 403);
    assert!(error.message.ends_with("--allowed-hosts evil.example"), "{error}");
    let error = policy.check(None, Some(&"x".repeat(300))).unwrap_err();
    assert!(!error.message.contains("xxx"), "{error}");
}

/// DNS rebinding: the page sends `Origin: http://evil.example:9409` and `Host: evil.example:9409`,
/// and its name resolves to the visitor's machine.
#[test]
fn a_name_that_resolves_to_loopback_is_not_the_servers_own() {
    let mapped = "::ffff:127.0.0.1".parse().unwrap();
    for listen in [LOCAL, IpAddr::V6(Ipv6Addr::LOCALHOST), mapped, "127.9.9.9".parse().unwrap()] {
        let allowed = |origin, host, list: &[&str]| allowed_on(listen, origin, host, list);
        let (origin, host) = ("http://evil.example:9409", "evil.example:9409");
        assert!(!allowed(origin, host, &[]));
        assert!(!allowed(origin, host, &["http://other.example"]));
        assert!(!allowed("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", &[]));
        assert!(!allowed("http://127.0.0.1:9409", host, &[]));
        // The origin of a proxy must be listed; then the forwarded host does not matter.
        assert!(allowed(origin, host, &[origin]));
        assert!(allowed(origin, "127.0.0.1:9409", &[origin]));
        // No name server resolves these.
        assert!(allowed("http://127.0.0.1:9409", "127.0.0.1:9409", &[]));
        assert!(allowed("http://localhost:9409", "localhost:9409", &[]));
        assert!(allowed("http://[::1]:9409", "[::1]:9409", &[]));
        assert!(allowed("http://192.168.0.1", "192.168.0.1", &[]));
        assert!(allowed("http://[2001:db8::1]", "[2001:db8::1]", &[]));
        assert!(!allowed("http://192.168.0.1", "192.168.0.2", &[]));
    }
}

#[test]
fn only_loopback_is_local() {
    for host in ["127.0.0.1:8080", "localhost", "[::1]:8080", "a.localhost:1"] {
        assert!(is_local(Some(host), LOCAL), "{host}");
        assert!(is_local(Some(host), "::ffff:127.0.0.1".parse().unwrap()), "{host}");
        assert!(!is_local(Some(host), ANY), "{host}");
        assert!(!is_local(Some(host), "192.168.0.1".parse().unwrap()), "{host}");
    }
    for host in ["evil.example:8080", "127.0.0.1.evil.example", "192.168.0.1", "::1", ""] {
        assert!(!is_local(Some(host), LOCAL), "{host}");
    }
    assert!(!is_local(None, LOCAL));
}

#[test]
fn the_servers_own_origin_is_allowed() {
    for (origin, host) in [
        ("http://a.example", "a.example"),
        ("http://a.example", "A.Example:80"),
        ("http://a.example:80", "a.example"),
        ("https://a.example", "a.example"),
        ("https://a.example", "a.example:443"),
        ("HTTPS://A.example:443", "a.example"),
        ("http://a.example:8080", "a.example:8080"),
        ("http://[2001:db8::1]:81", "[2001:DB8::1]:81"),
    ] {
        assert!(allowed(origin, host, &[]), "{origin} {host}");
    }
    for (origin, host) in [
        ("http://b.example", "a.example"),
        ("http://x.a.example", "a.example"),
        ("http://a.example", "a.example:443"),
        ("https://a.example", "a.example:80"),
        ("http://a.example:8081", "a.example:8080"),
        ("http://a.example@evil.example", "a.example"),
        ("http://a.example/path", "a.example"),
        ("a.example", "a.example"),
        ("null", "null"),
        ("", ""),
        ("http://", ""),
    ] {
        assert!(!allowed(origin, host, &[]), "{origin} {host}");
    }
    assert_eq!(check(ANY, &[], &[], Some("http://a"), None), Err("origin_refused"));
}

#[test]
fn pages_on_loopback_may_use_a_server_on_loopback() {
    for origin in [
        "http://localhost:3000",
        "https://app.LOCALHOST",
        "http://127.0.0.1",
        "http://127.8.9.10:1",
        "http://[::1]:5173",
    ] {
        for host in ["localhost:8080", "127.0.0.1", "[::1]:8080", "x.localhost"] {
            assert!(allowed(origin, host, &[]), "{origin} {host}");
        }
        assert!(!allowed(origin, "push.example", &[]), "{origin}");
        assert!(!allowed(origin, "192.168.0.1", &[]), "{origin}");
    }
    for origin in [
        "http://evil.example",
        "http://localhost.evil.example",
        "http://evillocalhost",
        "http://.localhost.evil",
        "http://127.0.0.1.evil.example",
        "http://128.0.0.1",
        "http://[::2]",
        "null",
    ] {
        assert!(!allowed(origin, "localhost:8080", &[]), "{origin}");
    }
}

#[test]
fn listed_origins_are_allowed() {
    let list = &["https://a.example", "http://B.example:8080/", "http://c.example:80"];
    for origin in [
        "https://a.example",
        "HTTPS://A.EXAMPLE",
        "https://a.example:443",
        "http://b.example:8080",
        "http://c.example",
    ] {
        assert!(allowed(origin, "push.example", list), "{origin}");
    }
    for origin in
        ["http://a.example", "https://a.example:444", "http://b.example", "https://x.a.example"]
    {
        assert!(!allowed(origin, "push.example", list), "{origin}");
    }
    assert!(allowed("http://anything", "push.example", &["*"]));
    assert!(allowed("null", "push.example", &["*"]));
    assert!(allowed("null", "push.example", &["null"]));
    assert!(!allowed("null", "push.example", list));
}

#[test]
fn pages_of_other_ports_are_refused() {
    let policy = OriginPolicy { listen: LOCAL, origins: &[], hosts: &[], is_same_port_only: true };
    for (origin, host, is_allowed) in [
        ("http://localhost:9090", "localhost:9090", true),
        ("http://127.0.0.1:9090", "127.0.0.1:9090", true),
        ("http://localhost", "localhost", true),
        ("http://10.0.0.1:9090", "10.0.0.1:9090", true),
        ("http://localhost:3000", "localhost:9090", false),
        ("http://127.0.0.1:8080", "127.0.0.1:9090", false),
        ("https://localhost", "localhost:9090", false),
    ] {
        assert_eq!(policy.allows_page(origin, Some(host)), is_allowed, "{origin} {host}");
    }
}

#[test]
fn a_pattern_lists_all_hosts_below_one() {
    let origins = ["https://*.example.com".to_owned(), "file://".to_owned(), "null".to_owned()];
    let policy = OriginPolicy {
        listen: IpAddr::from([127, 0, 0, 1]),
        origins: &origins,
        hosts: &[],
        is_same_port_only: false,
    };
    let allows = |origin| policy.allows_page(origin, Some("127.0.0.1:8080"));
    for origin in [
        "https://a.example.com",
        "https://a.b.EXAMPLE.com",
        "https://a.example.com:443",
        "file://",
        "null",
    ] {
        assert!(allows(origin), "{origin}");
    }
    for origin in [
        "https://example.com",
        "https://.example.com",
        "https://aexample.com",
        "https://a.example.com.evil.org",
        "https://a.example.com:444",
        "http://a.example.com",
        "https://a.example.org",
    ] {
        assert!(!allows(origin), "{origin}");
    }
    assert!(policy.lists_origin("https://a.example.com"));
    assert!(!policy.lists_origin("null") && !policy.lists_origin("file://"));
}

//! Valid and invalid subscriptions.

use proptest::prelude::*;

use super::*;
use crate::head::{self, Limits, Parsed};
use crate::name::check_name;

const LIMITS: Limits = Limits { max_head_bytes: 16 * 1024 };

/// The key of RFC 6455, section 1.3, and its accept value.
const HANDSHAKE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const ACCEPT: &[u8; 28] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

fn route_bytes(bytes: &[u8]) -> Result<Route, ErrorResponse> {
    match head::parse(bytes, LIMITS) {
        Ok(Parsed::Complete { head, .. }) => route(&head),
        other => panic!("{:?} gives {other:?}", String::from_utf8_lossy(bytes)),
    }
}

fn route_with(target: &str, headers: &str) -> Result<Route, ErrorResponse> {
    let bytes = format!("GET {target} HTTP/1.1\r\nHost: push.example\r\n{headers}\r\n");
    route_bytes(bytes.as_bytes())
}

fn request_with(target: &str, headers: &str) -> Request {
    match route_with(target, headers) {
        Ok(Route::Subscribe(request)) => *request,
        other => panic!("{target} {headers} gives {other:?}"),
    }
}

fn request(target: &str) -> Request {
    request_with(target, "")
}

fn transport(target: &str, headers: &str) -> Transport {
    request_with(target, headers).transport
}

fn refused_with(target: &str, headers: &str) -> ErrorResponse {
    match route_with(target, headers) {
        Err(error) => error,
        other => panic!("{target} {headers} gives {other:?}"),
    }
}

/// The code of an error with status 400.
fn refused(target: &str) -> &'static str {
    let error = refused_with(target, "");
    assert_eq!(error.code.status(), 400);
    error.code.name()
}

#[test]
fn the_status_stream_is_always_sse_and_live() {
    let headers = [HANDSHAKE, "", "Accept: text/plain\r\nLast-Event-ID: a-1\r\n"];
    for headers in headers {
        let request = request_with("/status/stream", headers);
        assert!(request.is_status());
        assert_eq!(request.transport, Transport::Sse, "{headers}");
        assert!(!request.is_envelope());
        assert_eq!((request.since, request.replay), (None, None));
        assert_eq!(request.targets.len(), 1);
    }
    let error = refused_with("/status/stream?since=a-1", "");
    assert_eq!(error.code.name(), "bad_parameter");
    assert!(!request("/channels/status").is_status());
    for target in ["/status", "/status.json", "/status/", "/status/stream/"] {
        assert_eq!(route_with(target, ""), Ok(Route::Other), "{target}");
    }
}

fn names(request: &Request) -> Vec<(Kind, &str)> {
    request.targets.iter().map(|target| (target.kind, target.name.as_str())).collect()
}

#[test]
fn only_three_urls_subscribe_and_only_by_get() {
    for target in [
        "/",
        "/channels",
        "/channels/a/history",
        "/channels/a/presence",
        "/channels/a/",
        "/users/u/history",
        "/subscribe/",
        "/subscribes",
        "/Channels/a",
        "/health",
        "//channels/a",
    ] {
        assert_eq!(route_with(target, ""), Ok(Route::Other), "{target}");
    }
    for method in ["HEAD", "POST", "PUT", "OPTIONS", "get"] {
        let bytes = format!("{method} /channels/a HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(route_bytes(bytes.as_bytes()), Ok(Route::Other), "{method}");
    }
}

#[test]
fn a_subscription_without_parameters() {
    assert_eq!(
        request("/channels/news"),
        Request {
            targets: vec![Target { kind: Kind::Channel, name: "news".to_owned() }],
            transport: Transport::Stream,
            encoding: None,
            app: None,
            since: None,
            replay: None,
            options: Options::default(),
            presence: Vec::new(),
            is_http10: false,
            keep_alive: true,
            has_query_token: false,
            request_id: None,
            origin: None,
            host: Some("push.example".to_owned()),
        }
    );
    let old = route_bytes(b"GET /users/u HTTP/1.0\r\nOrigin: http://a\r\n\r\n");
    let Ok(Route::Subscribe(old)) = old else { panic!("{old:?}") };
    assert!(old.is_http10 && !old.keep_alive && old.host.is_none());
    assert_eq!(old.origin.as_deref(), Some("http://a"));
    assert_eq!(names(&old), [(Kind::User, "u")]);
}

#[test]
fn a_subscription_has_no_body_and_one_origin() {
    let error = refused_with("/channels/a", "Content-Length: 1\r\n");
    assert_eq!((error.code.status(), error.code.name()), (400, "bad_request"));
    request_with("/channels/a", "Content-Length: 0\r\n");
    // The last chunk may be all of it.
    request_with("/channels/a", "Transfer-Encoding: chunked\r\n");
    let error = refused_with("/channels/a", "Origin: http://a\r\nOrigin: http://b\r\n");
    assert_eq!(error.code.name(), "bad_request");
}

#[test]
fn an_origin_that_is_not_utf8_is_kept() {
    let bytes = b"GET /channels/a HTTP/1.1\r\nHost: a\r\nOrigin: http://\xff\r\n\r\n";
    let Ok(Route::Subscribe(request)) = route_bytes(bytes) else { panic!("refused") };
    let listen = std::net::Ipv4Addr::UNSPECIFIED.into();
    let site = crate::OriginPolicy { listen, origins: &[], hosts: &[], is_same_port_only: false };
    assert!(site.check(request.origin.as_deref(), Some("a")).is_err());
    assert!(request.origin.is_some());
}

#[test]
fn names_are_decoded_and_checked() {
    assert_eq!(names(&request("/channels/a%2Fb%20c+d")), [(Kind::Channel, "a/b c+d")]);
    assert_eq!(names(&request("/channels/caf%c3%A9")), [(Kind::Channel, "café")]);
    assert_eq!(names(&request("/channels/日本")), [(Kind::Channel, "日本")]);
    assert_eq!(
        names(&request("/subscribe?channel=a+b%2Bc")),
        [(Kind::Channel, "a b+c")],
        "in the query a plus sign is a space"
    );
    for target in [
        "/channels/",
        "/users/",
        "/channels/%",
        "/channels/%2",
        "/channels/%zz",
        "/channels/a%ff",
        "/channels/a%00",
        "/channels/..",
        "/channels/a%2F%2Fb",
        "/subscribe?channel=",
        "/subscribe?channel",
        "/subscribe?channel=%f",
        "/subscribe?channel=+%ff",
        "/channels/a?user=",
        "/channels/a?user=%ff",
    ] {
        assert_eq!(refused(target), "bad_name", "{target}");
    }
    let long = format!("/channels/{}", "x".repeat(256));
    assert_eq!(refused(&long), "bad_name");
    assert_eq!(refused_with("/users/%ff", "").message, "the user name is not UTF-8");
    assert_eq!(refused_with("/channels/", "").message, "the channel name is empty");
}

#[test]
fn channels_keep_the_order_of_the_url_and_the_user_is_last() {
    let several = request("/subscribe?channel=b&user=u&channel=a");
    assert_eq!(names(&several), [(Kind::Channel, "b"), (Kind::Channel, "a"), (Kind::User, "u")]);
    assert!(several.is_multiple());
    assert!(request("/channels/a?user=a").is_multiple());
    assert!(!request("/subscribe?channel=a").is_multiple());
    assert_eq!(names(&request("/subscribe?user=u")), [(Kind::User, "u")]);
}

#[test]
fn targets_do_not_contradict_each_other() {
    for target in [
        "/subscribe",
        "/subscribe?",
        "/subscribe?since=a-1",
        "/subscribe?channel=a&channel=b&channel=a",
        "/subscribe?channel=a&channel=%61",
        "/subscribe?user=u&user=v",
        "/subscribe?user=u&user=u",
        "/users/u?user=u",
        "/users/u?user=v",
        "/channels/a?channel=b",
    ] {
        assert_eq!(refused(target), "bad_parameter", "{target}");
    }
    assert!(refused_with("/subscribe?channel=x&channel=x", "").message.contains("`x`"));
}

#[test]
fn only_v1_may_name_no_channel() {
    let v1 = format!("{HANDSHAKE}Sec-WebSocket-Protocol: throng.v1\r\n");
    assert_eq!(names(&request_with("/subscribe", &v1)), []);
    assert_eq!(refused_with("/subscribe", HANDSHAKE).code.name(), "bad_parameter");
}

fn welcome(request: &Request) -> Option<bool> {
    request.options.flag(ConnectionOption::Welcome)
}

#[test]
fn parameters_are_parsed() {
    let all = request("/channels/a?since=k3-1%2Ck3-2&history=5&envelope=true&welcome=0&user=u&_=%");
    assert_eq!(all.since.as_deref(), Some("k3-1,k3-2"));
    assert_eq!(all.replay, Some(Replay::Last(5)));
    assert_eq!((all.is_envelope(), welcome(&all)), (true, Some(false)));
    let replay = |target| request(target).replay;
    assert_eq!(replay("/channels/a?history=100000"), Some(Replay::Last(100_000)));
    assert_eq!(replay("/channels/a?hist%6Fry=0"), Some(Replay::Last(0)));
    let since = Replay::SinceTime(1_763_756_766_123);
    assert_eq!(replay("/channels/a?since_time=1763756766123"), Some(since));
    assert!(request("/channels/a?envelope=1").is_envelope());
    let compact = request("/channels/a?envelope=compact&time=true");
    assert!(compact.is_envelope() && compact.is_compact() && compact.is_timed());
    assert!(!request("/channels/a?envelope=false").is_envelope());
    assert_eq!(welcome(&request("/channels/a?welcome=true")), Some(true));
    assert_eq!(replay("/channels/a?&&_=1763756766123&="), None);
}

#[test]
fn unknown_parameters_are_refused_and_the_nearest_is_suggested() {
    let error = refused_with("/channels/a?histroy=5", "");
    assert_eq!((error.code.status(), error.code.name()), (400, "bad_parameter"));
    assert_eq!(
        error.message,
        "the query parameter `histroy` is unknown here; did you mean `history`?"
    );
    for target in ["/channels/a?tokn=secret", "/channels/a?secret", "/status/stream?secret=1"] {
        let error = refused_with(target, "");
        assert_eq!(error.code.name(), "bad_parameter", "{target}");
        assert!(!error.message.contains("secret") || target.contains("status"), "{error}");
    }
    assert_eq!(refused_with("/channels/a?%zz=1", "").code.name(), "bad_parameter");
}

#[test]
fn bad_parameters_are_refused_by_name() {
    for pair in [
        "history=",
        "history",
        "history=-1",
        "history=+1",
        "history=x",
        "history=100001",
        "history=99999999999999999999",
        "history=1&history=1",
        "envelope=yes",
        "envelope=",
        "envelope=TRUE",
        "welcome=2",
        "welcome=true&welcome=true",
        "wait=x",
        "wait=",
        "wait=-1",
        "wait=1e2",
        "wait=.5",
        "wait=5.",
        "wait=300.001",
        "wait=301",
        "wait=99999999999999999999999999",
        "transport=",
        "transport=carrier-pigeon",
        "since=%",
        "since=%ff",
        "since=a&since=b",
    ] {
        let error = refused_with(&format!("/channels/a?{pair}"), "");
        assert_eq!((error.code.status(), error.code.name()), (400, "bad_parameter"), "{pair}");
        let name = pair.split('=').next().unwrap_or_default();
        assert!(error.message.contains(&format!("`{name}`")), "{pair}: {}", error.message);
    }
}

#[test]
fn last_event_id_overrides_since_unless_it_is_empty() {
    let since = |target, headers| request_with(target, headers).since;
    assert_eq!(since("/channels/a?since=x-1", "Last-Event-ID: x-2\r\n"), Some("x-2".to_owned()));
    assert_eq!(since("/channels/a", "last-event-id: x-2\r\n"), Some("x-2".to_owned()));
    assert_eq!(since("/channels/a?since=x-1", "Last-Event-ID:\r\n"), Some("x-1".to_owned()));
    assert_eq!(since("/channels/a?since=", "Last-Event-ID: \r\n"), None);
    let bytes = b"GET /channels/a HTTP/1.1\r\nHost: a\r\nLast-Event-ID: \xff\r\n\r\n";
    assert_eq!(route_bytes(bytes).map_err(|error| error.code.name()), Err("bad_id"));
    let bytes =
        b"GET /channels/a HTTP/1.1\r\nHost: a\r\nLast-Event-ID: x-1\r\nLast-Event-ID: x-2\r\n\r\n";
    assert_eq!(route_bytes(bytes).map_err(|error| error.code.name()), Err("bad_request"));
}

#[test]
fn transports_are_negotiated_by_headers() {
    let poll = |wait_ms| Transport::LongPoll { wait_ms };
    for (headers, expected) in [
        ("", Transport::Stream),
        ("Accept: */*\r\n", Transport::Stream),
        ("Accept: text/event-stream\r\n", Transport::Sse),
        ("Accept: text/html, Text/Event-Stream;q=0.5\r\n", Transport::Sse),
        ("Accept: text/html\r\nAccept: text/event-stream\r\n", Transport::Sse),
        ("Accept: text/event-streams\r\n", Transport::Stream),
        ("Prefer: wait=20\r\n", poll(20_000)),
        ("Prefer: respond-async, WAIT = \"1.5\" ; x=y, wait=7\r\n", poll(1_500)),
        ("Prefer: return=minimal\r\nPrefer: wait=0\r\n", poll(0)),
        ("Prefer: wait=86400\r\n", poll(300_000)),
        ("Prefer: wait=soon, wait\r\n", Transport::Stream),
        ("Prefer: await=5\r\n", Transport::Stream),
        ("Prefer: wait=5\r\nAccept: text/event-stream\r\n", Transport::Sse),
        ("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n", Transport::Stream),
    ] {
        assert_eq!(transport("/channels/a", headers), expected, "{headers}");
    }
    assert_eq!(transport("/channels/a?wait=5", "Prefer: wait=9\r\n"), poll(5_000));
    assert_eq!(transport("/channels/a?wait=300.000", ""), poll(300_000));
    assert_eq!(transport("/channels/a?wait=0.0019", ""), poll(1));
    assert_eq!(transport("/channels/a?wait=5", "Accept: text/event-stream\r\n"), Transport::Sse);
}

#[test]
fn the_query_overrules_the_headers() {
    let events = "Accept: text/event-stream\r\n";
    assert_eq!(transport("/channels/a?transport=stream", events), Transport::Stream);
    assert_eq!(transport("/channels/a?transport=sse", HANDSHAKE), Transport::Sse);
    assert_eq!(
        transport("/channels/a?transport=poll", events),
        Transport::LongPoll { wait_ms: negotiate::WAIT_MS_DEFAULT }
    );
    assert_eq!(
        transport("/channels/a?transport=poll&wait=1", ""),
        Transport::LongPoll { wait_ms: 1_000 }
    );
    let both = format!("{HANDSHAKE}{events}");
    assert!(matches!(
        transport("/channels/a?transport=websocket", &both),
        Transport::WebSocket { .. }
    ));
    let error = refused_with("/channels/a?transport=websocket", "");
    assert_eq!((error.code.status(), error.code.name()), (426, "upgrade_required"));
}

#[test]
fn a_websocket_is_answered_with_the_hash_of_its_key() {
    let plain = Transport::WebSocket { accept: *ACCEPT, subprotocol: None, deflate: None };
    assert_eq!(transport("/channels/a", HANDSHAKE), plain);
    assert_eq!(
        transport("/channels/a", &format!("Accept: text/event-stream\r\n{HANDSHAKE}")),
        plain
    );
    let browser = HANDSHAKE
        .replace("Upgrade: websocket", "upgrade: foo, WebSocket")
        .replace("Connection: Upgrade", "connection: keep-alive, upgrade");
    assert_eq!(transport("/channels/a", &browser), plain);
    let (v1, plain) = (Some(Subprotocol::V1), Some(Subprotocol::Plain));
    for (protocols, subprotocol) in [
        ("Sec-WebSocket-Protocol: throng.v1\r\n", v1),
        ("Sec-WebSocket-Protocol: chat, throng.v1\r\n", v1),
        ("Sec-WebSocket-Protocol: chat\r\nsec-websocket-protocol: throng.v1\r\n", v1),
        ("Sec-WebSocket-Protocol: throng.plain, throng.token.a.b.c, throng.v1\r\n", v1),
        ("Sec-WebSocket-Protocol: throng.token.a.b.c, throng.plain\r\n", plain),
        ("Sec-WebSocket-Protocol: throng.token.a.b.c\r\n", None),
        ("Sec-WebSocket-Protocol: throng.v10, Throng.v1\r\n", None),
    ] {
        assert_eq!(
            transport("/channels/a", &format!("{HANDSHAKE}{protocols}")),
            Transport::WebSocket { accept: *ACCEPT, subprotocol, deflate: None },
            "{protocols}"
        );
    }
}

#[test]
fn compression_is_negotiated_over_all_headers() {
    let extensions = "Sec-WebSocket-Extensions: foo\r\n\
        sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n";
    let Transport::WebSocket { deflate: Some(deflate), .. } =
        transport("/channels/a", &format!("{HANDSHAKE}{extensions}"))
    else {
        panic!("an accepted offer");
    };
    assert!(deflate.answer().ends_with("; server_no_context_takeover; client_no_context_takeover"));
}

#[test]
fn bad_handshakes_are_refused() {
    let key = "dGhlIHNhbXBsZSBub25jZQ==";
    for (from, to) in [
        ("Connection: Upgrade\r\n", ""),
        ("Connection: Upgrade", "Connection: keep-alive"),
        (key, ""),
        (key, "dGhlIHNhbXBsZSBub25jZQ"),
        (key, "dGhlIHNhbXBsZSBub25j"),
        (key, "dGhlIHNhbXBsZSBub25jZTE="),
        (key, "dGhlIHNhbXBsZSBub25jZTEy"),
        (key, "dGhlIHNhbXBsZSBub25jZ!=="),
        (key, "dGhlIHNhbXBsZSBub25jZQ==dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
        (key, "dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    ] {
        let headers = HANDSHAKE.replace(from, to);
        let error = refused_with("/channels/a", &headers);
        assert_eq!((error.code.status(), error.code.name()), (400, "bad_handshake"), "{headers}");
    }
    for version in ["Sec-WebSocket-Version: 12\r\n", "Sec-WebSocket-Version: 13, 8\r\n", ""] {
        let headers = HANDSHAKE.replace("Sec-WebSocket-Version: 13\r\n", version);
        let error = refused_with("/channels/a", &headers);
        assert_eq!(
            (error.code.status(), error.code.name()),
            (426, "upgrade_required"),
            "{headers}"
        );
    }
    let extensions = format!("{HANDSHAKE}Sec-WebSocket-Extensions: permessage-deflate;\r\n");
    assert_eq!(refused_with("/channels/a", &extensions).code.name(), "bad_handshake");
    let old = format!("GET /channels/a HTTP/1.0\r\n{HANDSHAKE}\r\n");
    assert_eq!(
        route_bytes(old.as_bytes()).map_err(|error| error.code.name()),
        Err("bad_handshake")
    );
}

proptest! {
    #[test]
    fn arbitrary_targets_and_headers_do_not_panic(
        path in "/(channels|users|subscribe)?/?[!-~é]{0,12}",
        query in "(([a-z]{1,3}|user|since|history|wait|transport)=[!-~é]{0,6}&){0,3}",
        channels in "(channel=[ab%+]{0,4}&){0,3}",
        headers in "((Accept|Prefer|Upgrade|Connection|Last-Event-ID): ?[ -~é]{0,20}\r\n){0,4}",
    ) {
        let bytes = format!("GET {path}?{query}{channels} HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        if let Ok(Parsed::Complete { head, .. }) = head::parse(bytes.as_bytes(), LIMITS)
            && let Ok(Route::Subscribe(request)) = route(&head)
        {
            for target in &request.targets {
                prop_assert_eq!(check_name(&target.name, target.kind.noun()), Ok(()));
            }
        }
    }

    #[test]
    fn any_name_survives_its_encoding(name in "\\PC{1,20}") {
        prop_assume!(check_target_name(&name, "channel").is_ok());
        let encoded =
            percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC);
        for target in [format!("/channels/{encoded}"), format!("/subscribe?channel={encoded}")] {
            let request = request(&target);
            prop_assert_eq!(names(&request), [(Kind::Channel, name.as_str())]);
        }
    }
}

#[test]
fn presence_events_are_asked_for_by_what_is_known() {
    let wanted = |target: &str| -> Vec<_> {
        let presence = request(target).presence;
        presence.into_iter().map(|wanted| (wanted.target, wanted.known)).collect()
    };
    assert_eq!(wanted("/channels/a?presence=true"), [(0, None)]);
    assert_eq!(wanted("/channels/a?presence=false"), []);
    assert_eq!(
        wanted("/channels/a?user=u&presence=1795300878278"),
        [(0, Some(KnownPresence::Time(1_795_300_878_278)))]
    );
    assert_eq!(
        wanted("/subscribe?channel=a&channel=b&presence=5%2C8vn2ybqk-1"),
        [(0, Some(KnownPresence::Time(5))), (1, Some(KnownPresence::Id("8vn2ybqk-1".into())))]
    );
    let three = "/subscribe?channel=a&channel=b&channel=c&user=u&presence";
    assert_eq!(wanted(&format!("{three}=true")), [(0, None), (1, None), (2, None)]);
    assert_eq!(
        wanted(&format!("{three}=false,7,true")),
        [(1, Some(KnownPresence::Time(7))), (2, None)]
    );
    assert_eq!(wanted(&format!("{three}=false,false,false")), []);
    for target in [
        "/channels/a?presence=yes",
        "/channels/a?presence=",
        "/channels/a?presence=-1",
        "/channels/a?presence=8vn2ybqk-",
        "/channels/a?presence=%ff",
        "/channels/a?presence=5,6",
        "/channels/a?presence=true,false",
        "/subscribe?channel=a&channel=b&presence=true,yes",
        "/subscribe?channel=a&channel=b&presence=true,",
        "/subscribe?channel=a&channel=b&presence=5",
        "/users/u?presence=true",
        "/channels/a?presence=true&presence=true",
    ] {
        assert_eq!(refused(target), "bad_parameter", "{target}");
    }
}

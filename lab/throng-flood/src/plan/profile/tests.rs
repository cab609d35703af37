//! What clients of each profile send, compared with the documented protocols.

use std::sync::Arc;

use throng_units::Count;

use super::*;
use crate::plan::model::{Plan, PublishBy, Target};
use crate::plan::{Header, UrlTable};

fn input(url: &str) -> TargetOptions {
    TargetOptions { url: Some(url.to_owned()), ..TargetOptions::default() }
}

const VALUES: TemplateValues<'static> =
    TemplateValues { client: 3, run: 0xab, stream: 5, streams: &[5, 6], payload: b"~mark~" };

/// A publisher's header, without which some profiles do not publish.
const KEY: &str = "X-Key";

/// The plan, whether or not it can be run.
fn compiled(profile: Profile, input: &TargetOptions) -> Target {
    let target = TargetOptions { profile: Some(profile), ..input.clone() };
    let publish = profile.publish_needs().filter(|_| profile != Profile::Custom);
    let headers = publish.map(|_| vec![Header(KEY.to_owned(), "k".to_owned())]);
    let publish = PublishOptions { headers, ..PublishOptions::default() };
    let options = Options { target, publish, ..Options::default() };
    let Plan { target, .. } = options.into_plan().unwrap_or_else(|errors| panic!("{errors:?}"));
    target
}

/// What subscribers and publishers send, in lines.
fn show(profile: Profile, input: &TargetOptions) -> Vec<String> {
    let target = compiled(profile, input);
    let mut lines = vec![target.url.rendered(&VALUES)];
    let header =
        |(name, value): &(String, Template)| format!("{name}: {}", value.rendered(&VALUES));
    lines.extend(target.headers.iter().map(header));
    lines.extend(target.hello.iter().map(|hello| hello.rendered(&VALUES)));
    match target.publish.map(|publish| publish.by) {
        Some(PublishBy::Http { method, url, headers, body }) => {
            lines.push(format!("{method} {}", url.rendered(&VALUES)));
            lines.extend(headers.iter().filter(|(name, _)| name != KEY).map(header));
            lines.push(body.rendered(&VALUES));
        }
        Some(PublishBy::WebSocket { frame }) => lines.push(frame.rendered(&VALUES)),
        None => {}
    }
    lines
}

fn refusal(profile: Profile, input: &TargetOptions) -> String {
    profile.options(input, None).map(|_| "a target").unwrap_err().message
}

#[test]
fn throng() {
    let url = "http://127.0.0.1:8080";
    assert_eq!(
        show(Profile::Throng, &input(url)),
        [
            "http://127.0.0.1:8080/channels/flood-000000ab-5",
            "POST http://127.0.0.1:8080/channels/flood-000000ab-5",
            "~mark~"
        ]
    );
    assert_eq!(
        show(Profile::Throng, &input("wss://h"))[..2],
        ["wss://h/channels/flood-000000ab-5", "POST https://h/channels/flood-000000ab-5"]
    );
    let poll = TargetOptions {
        transport: Some(Transport::LongPoll),
        channel: Some("a".to_owned()),
        ..input(url)
    };
    assert_eq!(
        show(Profile::Throng, &poll)[..2],
        [&format!("{url}/channels/a"), "Prefer: wait=60"]
    );
    let friends = TargetOptions { streams: Some(Streams::Friends { edges: 2 }), ..input(url) };
    assert_eq!(
        show(Profile::Throng, &friends)[..2],
        [
            &format!("{url}/subscribe?channel=flood-000000ab-5&channel=flood-000000ab-6"),
            "POST http://127.0.0.1:8080/channels/flood-000000ab-5"
        ]
    );
    let several = TargetOptions { channels_per_client: Some(Count(2)), ..input("ws://h") };
    assert_eq!(
        show(Profile::Throng, &several)[..3],
        [
            "ws://h/subscribe?envelope=compact",
            r#"{"type":"subscribe","channel":"flood-000000ab-5"}"#,
            "POST http://h/channels/flood-000000ab-5"
        ]
    );
    let target = compiled(Profile::Throng, &several);
    assert_eq!(target.subprotocol.map(|name| name.text().to_owned()).as_deref(), Some("throng.v1"));
    let answer = r#"{"type":"subscribed","channel":"a","id":"k-0"}"#;
    assert!(matches!(target.subscribed, Subscribed::Message(text) if answer.contains(&text)));
    let events = TargetOptions { transport: Some(Transport::Sse), ..several };
    let url = "ws://h/subscribe?channel=flood-000000ab-5&channel=flood-000000ab-6";
    assert_eq!(show(Profile::Throng, &events)[0], url);
    // The path is the user's, and is published to as it is.
    let own = input("ws://h:1/users/u{stream}?history=1");
    let lines = ["ws://h:1/users/u5?history=1", "POST http://h:1/users/u5", "~mark~"];
    assert_eq!(show(Profile::Throng, &own), lines);
    assert_eq!(show(Profile::Throng, &input("http://h/subscribe?channel=a")).len(), 1);
    assert_eq!(show(Profile::Throng, &input("http://h/channels/{i}")).len(), 1);
}

#[test]
fn a_file_of_urls() {
    let urls =
        Arc::new(ColumnTable::urls("u", "http://h:1/channels/a\nhttp://h:1/channels/b").unwrap());
    let input = TargetOptions {
        urls: Some(UrlTable { path: "u".to_owned(), content: urls }),
        ..input("{url}")
    };
    assert_eq!(show(Profile::Throng, &input), ["http://h:1/channels/b"]);
}

#[test]
fn nchan() {
    let stream = TargetOptions { transport: Some(Transport::Stream), ..input("http://h:1/") };
    assert_eq!(
        show(Profile::Nchan, &stream),
        [
            "http://h:1/sub/flood-000000ab-5",
            "TE: chunked",
            "POST http://h:1/pub/flood-000000ab-5",
            "Content-Type: text/plain",
            "~mark~\n"
        ]
    );
    let own = input("http://h:1/sub/c{stream}");
    assert_eq!(show(Profile::Nchan, &own)[1], "POST http://h:1/pub/c5");
    assert_eq!(show(Profile::Nchan, &input("http://h:1/live/c{stream}")).len(), 1);
}

#[test]
fn centrifugo() {
    let given = TargetOptions { channel: Some("news:{stream}".to_owned()), ..input("ws://h:8000") };
    assert_eq!(
        show(Profile::Centrifugo, &given),
        [
            "ws://h:8000/connection/websocket",
            r#"{"id":1,"connect":{"name":"flood"}}"#,
            r#"{"id":2,"subscribe":{"channel":"news:5"}}"#,
            "POST http://h:8000/api/publish",
            "Content-Type: application/json",
            r#"{"channel":"news:5","data":{"flood":"~mark~"}}"#
        ]
    );
    let target = compiled(Profile::Centrifugo, &given);
    let answer = r#"{"id":2,"subscribe":{}}"#;
    assert!(matches!(target.subscribed, Subscribed::Message(text) if answer.contains(&text)));
    assert_eq!(target.pings, [crate::plan::Ping { ask: "{}".into(), answer: "{}".into() }]);
    let refused = r#"{"id":2,"error":{"code":103,"message":"permission denied"}}"#;
    assert!(target.refused.iter().any(|text| refused.contains(text)));
    assert_eq!(target.publish.unwrap().refused.as_deref(), Some("\"error\":"));
    let sse = show(Profile::CentrifugoSse, &given);
    let query = "cf_connect=%7B%22subs%22%3A%7B%22news:5%22%3A%7B%7D%7D%7D";
    assert_eq!(sse[0], format!("ws://h:8000/connection/uni_sse?{query}"));
    let target = compiled(Profile::CentrifugoSse, &given);
    let Subscribed::Message(joined) = target.subscribed else { panic!("at once") };
    assert!(r#"{"connect":{"client":"c","subs":{"news:5":{}},"ping":25}}"#.contains(&joined));
    let alone = r#"{"connect":{"client":"c","ping":25}}"#;
    assert!(!alone.contains(&joined) && target.refused.iter().any(|text| alone.contains(text)));
    let quoted = TargetOptions { channel: Some("a\"b".to_owned()), ..given };
    assert!(refusal(Profile::Centrifugo, &quoted).contains("escaped in JSON"));
}

#[test]
fn mercure() {
    assert_eq!(
        show(Profile::Mercure, &input("http://h")),
        [
            "http://h/.well-known/mercure?match=flood-000000ab-5",
            "POST http://h/.well-known/mercure",
            "Content-Type: application/x-www-form-urlencoded",
            "topic=flood-000000ab-5&data=~mark~"
        ]
    );
    let at = |url| show(Profile::Mercure, &input(url));
    assert_eq!(
        at("http://h/hub")[..2],
        ["http://h/hub?match=flood-000000ab-5", "POST http://h/hub"]
    );
    assert_eq!(at("http://h/hub?match=x")[..2], ["http://h/hub?match=x", "POST http://h/hub"]);
    assert_eq!(
        show(Profile::Mercure0, &input("http://h"))[0],
        "http://h/.well-known/mercure?topic=flood-000000ab-5"
    );
}

#[test]
fn pusher() {
    let lines = show(Profile::Pusher, &input("ws://h:6001/app/key"));
    assert_eq!(
        lines,
        [
            "ws://h:6001/app/key?protocol=7&client=flood&version=1.0&flash=false",
            r#"{"event":"pusher:subscribe","data":{"channel":"flood-000000ab-5"}}"#,
            r#"{"event":"client-flood","channel":"flood-000000ab-5","data":{"m":"~mark~"}}"#
        ]
    );
    assert!(refusal(Profile::Pusher, &input("ws://h:6001")).ends_with("like ws://h:6001/app/KEY"));
}

#[test]
fn plain_websocket_and_custom() {
    let lines = show(Profile::WebSocket, &input("ws://h:1"));
    assert_eq!(lines, ["ws://h:1/", "~mark~"]);
    assert_eq!(show(Profile::Custom, &input("ws://h:1/x?y={i}")), ["ws://h:1/x?y=3"]);
    assert!(refusal(Profile::Custom, &input("http://h")).contains("say how messages come"));
    let sse = TargetOptions { transport: Some(Transport::Sse), ..input("http://h/e") };
    assert_eq!(show(Profile::Custom, &sse), ["http://h/e"]);
}

#[test]
fn says_what_is_wrong() {
    for (url, expected) in [
        ("h/a", "\"h/a\" has no scheme; did you mean \"http://h/a\"?"),
        ("ftp://h", "\"ftp://h\" cannot be loaded: the scheme is http, ws, https or wss"),
        ("http:///x", "\"http:///x\" names no host"),
        ("http://h/{strem}", "there is nothing to fill in for {strem}; did you mean {stream}?"),
    ] {
        let refusal = refusal(Profile::Throng, &input(url));
        assert!(refusal.starts_with(expected), "{url}: {refusal}");
    }
    let stream = TargetOptions { transport: Some(Transport::Stream), ..input("http://h") };
    assert_eq!(refusal(Profile::Mercure, &stream), "mercure has no transport stream; it has sse");
    let named = TargetOptions { channel: Some("a".to_owned()), ..input("http://h/channels/b") };
    assert!(refusal(Profile::Throng, &named).starts_with("the URL has a path"));
    let error = "centrifuge".parse::<Profile>().unwrap_err().to_string();
    assert_eq!(error, "there is no profile \"centrifuge\"; did you mean \"centrifugo\"?");
    assert!("x".parse::<Profile>().unwrap_err().to_string().contains("known are throng, nchan"));
}

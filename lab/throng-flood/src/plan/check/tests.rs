//! Plans that cannot run, and the errors in them.

use super::*;
use crate::plan::server_process::ServerProcess;
use crate::plan::values::PublishTransport;
use crate::plan::{
    Header, LoadOptions, LocalAddresses, Options, Ping, Profile, PublishOptions, SourceOptions,
    TargetOptions, UrlTable,
};
use throng_units::{Count, Rate, Switch};

fn target(url: &str) -> TargetOptions {
    TargetOptions { url: Some(url.to_owned()), ..TargetOptions::default() }
}

fn local() -> TargetOptions {
    target("http://127.0.0.1:8080")
}

fn with(target: TargetOptions) -> Options {
    Options { target, ..Options::default() }
}

fn publishing_with(publish: PublishOptions) -> Options {
    Options { publish, ..with(local()) }
}

/// All errors, each as `key: message`.
fn errors(options: Options) -> Vec<String> {
    let errors = options.into_plan().map(|plan| panic!("accepted: {plan:?}"));
    let show = |error: &PlanError| format!("{}: {}", error.key, error.message);
    errors.unwrap_or_else(|errors| errors.iter().map(show).collect())
}

fn refused(options: Options, expected: &str) {
    let errors = errors(options);
    assert!(errors.len() == 1 && errors[0].starts_with(expected), "{expected}: {errors:?}");
}

fn phases(phases: Vec<Phase>) -> Options {
    Options { phases: Some(phases), ..with(local()) }
}

fn ramp(to: usize) -> Phase {
    Phase::Ramp { to, rate: None, in_flight: 1 }
}

fn hold(publish: Publishing) -> Phase {
    Phase::Hold { time: Duration::from_secs(1), publish: Some(publish) }
}

const PUBLISHING: Publishing = Publishing { rate: 1.0, count: None, size: 64, to: Pattern::One };

#[test]
fn a_url_is_enough() {
    let plan = with(local()).into_plan().unwrap();
    assert_eq!(plan.target.transport, Transport::WebSocket);
    assert_eq!(plan.phases.len(), 2);
    assert!(matches!(&plan.phases[1], Phase::Hold { publish: Some(publishing), .. }
        if publishing.rate == 1.0 && publishing.to == Pattern::One));
    assert!(plan.deadline > Duration::from_secs(60));
}

#[test]
fn urls() {
    for (url, expected) in [
        ("http://h/a b", "target.url: \"http://h/a b\" contains ' ': percent-encode it"),
        ("http://h:0/", "target.url: \"http://h:0/channels"),
        ("http://h:99999/", "target.url: \"http://h:99999"),
        ("http://a@h/x", "target.url: \"http://a@h/x\" names no host"),
        ("http://h/x#y", "target.url: \"http://h/x#y\": what follows # is never sent"),
        ("http://h/{payload}", "target.url: {payload} is for published messages"),
        ("http://h/{colour}", "target.url: there is nothing to fill in for {colour}"),
    ] {
        refused(with(target(url)), expected);
    }
    refused(Options::default(), "target.url: no URL is given");
    let urls = crate::template::ColumnTable::urls("u", "http://h/1\nhttps://h/2").unwrap();
    let file = TargetOptions {
        urls: Some(UrlTable { path: "u".to_owned(), content: urls.into() }),
        ..target("{url}")
    };
    refused(
        with(file),
        "target.url: for client 1, \"https://h/2\": either all clients speak TLS or none",
    );
}

#[test]
fn options_of_tls_only() {
    let on = || Some(Switch(true));
    let tls = |url: &str| TargetOptions { sni: Some("h.test".to_owned()), ..target(url) };
    refused(with(tls("http://h/x")), "target.sni: this is for TLS");
    let name = TargetOptions { sni: Some("not a name".to_owned()), ..target("https://h/x") };
    refused(with(name), "target.sni: \"not a name\" is not a host name");
    let plain = TargetOptions { insecure: on(), resume: on(), ..target("http://h/x") };
    let plan = with(plain).into_plan().unwrap_err();
    assert_eq!(plan.len(), 2, "{plan:?}");

    let mut secure = with(tls("https://h/x"));
    secure.target.insecure = on();
    let plan = secure.into_plan().unwrap();
    assert!(plan.target.tls.is_insecure && !plan.target.tls.resumes);
    assert_eq!(plan.target.tls.sni.as_deref(), Some("h.test"));
    let text = plan.toml();
    assert!(text.contains("insecure = true\nsni = \"h.test\"\n"), "{text}");
    // Publishers may speak TLS alone.
    let mut publisher = with(tls("http://h/x"));
    publisher.publish.url = Some("https://h/y".to_owned());
    publisher.into_plan().unwrap();
}

#[test]
fn options_of_websocket_only() {
    let sse = with(TargetOptions {
        transport: Some(Transport::Sse),
        hello: Some(vec!["a".into()]),
        pings: Some(vec![Ping { ask: "a".into(), answer: "b".into() }]),
        subprotocol: Some("x".into()),
        ..local()
    });
    let errors = errors(sse);
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors.iter().all(|text| text.ends_with("is for the transport websocket only")));
    let poll = TargetOptions {
        transport: Some(Transport::LongPoll),
        subscribed: Some(Subscribed::Message("a".into())),
        ..local()
    };
    refused(with(poll), "target.subscribed: with long-poll the first message ends the request");
}

#[test]
fn headers() {
    let with = |name: &str, value: &str| {
        let headers = Some(vec![Header(name.to_owned(), value.to_owned())]);
        with(TargetOptions { headers, ..local() })
    };
    assert!(with("Authorization", "Bearer {i}").into_plan().is_ok());
    refused(with("a b", "x"), "target.headers.a b: \"a b\" is not the name of a header");
    refused(with("Host", "x"), "target.headers.Host: the header Host is set by the client");
    refused(with("A", "x\r\nB: y"), "target.headers.A: the header A contains a line break");
    refused(with("A", "{b}"), "target.headers.A: there is nothing to fill in for {b}");
}

#[test]
fn streams() {
    let follow = |url: &str, streams| with(TargetOptions { streams: Some(streams), ..target(url) });
    let host = "http://h";
    assert!(follow(host, Streams::Spread(10)).into_plan().is_ok());
    assert!(follow(host, Streams::Friends { edges: 10 }).into_plan().is_ok());
    refused(follow(host, Streams::Friends { edges: 0 }), "target.streams: a client needs at least");
    let errors = errors(follow("http://h/channels/a", Streams::Spread(10)));
    assert!(errors[0].starts_with("target.streams: every client subscribes to the same"));
    assert!(errors[1].starts_with("publish.body: {stream} is missing"));
    let alone = follow("http://h/channels/{stream}", Streams::Friends { edges: 3 });
    refused(alone, "target.streams: a client follows its channels over one connection");
    let several = |url: &str, each, streams| {
        let channels_per_client = Some(Count(each));
        with(TargetOptions { channels_per_client, streams: Some(streams), ..target(url) })
    };
    let plan = several(host, 200, Streams::One).into_plan().unwrap();
    assert_eq!((plan.target.streams, plan.target.stream_count(7)), (Streams::Spread(200), 200));
    assert_eq!(several(host, 3, Streams::Own).into_plan().unwrap().target.stream_count(7), 21);
    let key = "target.channels-per-client";
    refused(several(host, 0, Streams::One), &format!("{key}: a client follows at least one"));
    refused(several(host, 11, Streams::Spread(10)), &format!("{key}: a client cannot follow more"));
    let friends = several(host, 2, Streams::Friends { edges: 3 });
    refused(friends, &format!("{key}: friends:EDGES says already"));
}

#[test]
fn publishing() {
    let publish = |publishing: Publishing| phases(vec![ramp(1), hold(publishing)]);
    let key = "phases.1.publish";
    for (publishing, expected) in [
        (
            Publishing { size: 49, ..PUBLISHING },
            ".size: 49 bytes cannot hold the mark, which has 50",
        ),
        (Publishing { size: 1 << 30, ..PUBLISHING }, ".size: a message can have at most 64MiB"),
        (Publishing { rate: 0.0, ..PUBLISHING }, ".rate: the number of messages per second"),
        (Publishing { rate: f64::NAN, ..PUBLISHING }, ".rate: the number of messages per second"),
        (Publishing { count: Some(0), ..PUBLISHING }, ".count: must be more than 0"),
        (Publishing { to: Pattern::Random, ..PUBLISHING }, ".to: there is only one stream"),
    ] {
        refused(publish(publishing), &format!("{key}{expected}"));
    }
    let mut mercure = publish(PUBLISHING);
    mercure.target.profile = Some(Profile::Mercure);
    refused(mercure, "phases.1.publish: the plan does not say how to publish");
}

#[test]
fn how_to_publish() {
    let none = PublishOptions::default;
    let body =
        |text: &str| publishing_with(PublishOptions { body: Some(text.to_owned()), ..none() });
    refused(body("hello"), "publish.body: {payload}, which carries the mark, is missing");
    refused(body("{payload}{payload}"), "publish.body: {payload} occurs more than once");
    refused(body("{i}{payload}"), "publish.body: a publisher is not a client");
    let get = PublishOptions { method: Some("GET".to_owned()), ..none() };
    refused(publishing_with(get), "publish.method: \"GET\" is not a method to publish with");
    let no_connection = PublishOptions { connections: Some(Count(0)), ..none() };
    refused(publishing_with(no_connection), "publish.connections: at least one");
    let url = PublishOptions { url: Some("gopher://h/".to_owned()), ..none() };
    refused(publishing_with(url), "publish.url: \"gopher://h/\": the scheme is http, ws, https");
    let frame = PublishOptions { by: Some(PublishTransport::WebSocket), ..none() };
    let both = PublishOptions { url: Some("http://h/".to_owned()), ..frame.clone() };
    refused(publishing_with(both), "publish.url: a WebSocket publisher connects like a subscriber");
    let mut by_sse = publishing_with(frame);
    by_sse.target.transport = Some(Transport::Sse);
    refused(by_sse, "publish.by: a WebSocket publisher connects like a subscriber");
}

#[test]
fn phases_in_order() {
    let second = Duration::from_secs(1);
    refused(phases(vec![]), "phases: the plan has no phases");
    refused(phases(vec![hold(PUBLISHING)]), "phases.0: there are no clients yet: ramp up first");
    let slow =
        |share| phases(vec![ramp(1), Phase::Slow { share, speed: 0, time: second, publish: None }]);
    for share in [0.0, -1.0, 1.5, f64::NAN] {
        refused(slow(share), &format!("phases.1.share: {share} is not a share of the clients"));
    }
    assert!(slow(1.0).into_plan().is_ok());
    let churn = Phase::Churn { time: Duration::ZERO, rate: 1.0, publish: None };
    refused(phases(vec![ramp(1), churn]), "phases.1.time: a phase must take");
    let storm = Phase::Storm { timeout: Duration::ZERO, publish: None };
    refused(phases(vec![ramp(1), storm]), "phases.1.timeout: a storm must have more");
    let ramp = Phase::Ramp { to: 1, rate: Some(0.0), in_flight: 0 };
    assert_eq!(errors(phases(vec![ramp])).len(), 2);
}

#[test]
fn the_rest() {
    let early = Options { deadline: Some("1s".parse().unwrap()), ..with(local()) };
    refused(early, "deadline: the phases take at least 10s, but the deadline is 1s");
    let threads = Options { threads: Some(Count(0)), ..with(local()) };
    refused(threads, "threads: at least one thread is needed");
    let addresses = Some(vec![LocalAddresses(vec!["::1".parse().unwrap()])]);
    let sources = SourceOptions { addresses, ..SourceOptions::default() };
    let other_family = Options { sources, ..with(local()) };
    refused(other_family, "sources.addresses: no connection from ::1 to 127.0.0.1 is possible");
    let server = Some(ServerProcess::Ids(vec![u32::MAX]));
    let server = Options { server_pid: server, ..with(local()) };
    refused(server, "server-pid: there is no process 4294967295 on this machine");
    let asserting = |text: &str, load| {
        let assertions = Some(vec![text.parse().unwrap()]);
        Options { assertions, load, ..with(local()) }
    };
    let silent = LoadOptions { publish: Some(Rate(0.0)), ..LoadOptions::default() };
    refused(
        asserting("lost == 0", silent),
        "assertions.0: \"lost == 0\" cannot be measured: nothing is published",
    );
    refused(
        asserting("storm.recovered < 1s", LoadOptions::default()),
        "assertions.0: \"storm.recovered < 1s\" cannot be measured: there is no storm",
    );
    refused(
        asserting("server.bytes < 1MiB", LoadOptions::default()),
        "assertions.0: \"server.bytes < 1MiB\" cannot be measured: the server's process",
    );
}

//! Valid and invalid plan files.

use std::time::Duration;

use super::*;
use crate::plan::{
    Pattern, Phase, PortRange, PublishBy, Publishing, Streams, Subscribed, Transport,
};

fn read(text: &str) -> Result<(Options, PlanFile), Vec<String>> {
    parse(Path::new("plan.toml"), text.to_owned())
}

const WHOLE: &str = r#"
name = "evening"
deadline = "5m"
threads = 2
assertions = ["lost == 0", "p99 < 50ms", "storm.recovered < 30s"]

[target]
url = "http://127.0.0.1:8080/channels/room-{stream}"
transport = "sse"
ports = ["8080-8083", 9000]
streams = 10
handshake-timeout = "5s"
headers = { Authorization = "Bearer {i}" }

[publish]
url = "http://127.0.0.1:8080/channels/room-{stream}"
method = "PUT"
connections = 2
headers.X-Key = "secret"

[sources]
addresses = ["127.0.0.2", "127.0.1.0/30"]
ports = "10000-60000"

[[phases]]
do = "ramp"
to = "10k"
rate = 2000

[[phases]]
do = "hold"
time = "30s"
publish = { rate = 10, size = "1KiB", to = "random", count = 100 }

[[phases]]
do = "churn"
time = "10s"
rate = 50.5

[[phases]]
do = "storm"
timeout = "1m"
publish = { rate = 1 }

[[phases]]
do = "slow"
share = "10%"
time = "10s"
"#;

#[test]
fn a_whole_plan() {
    let (options, _) = read(WHOLE).unwrap_or_else(|error| panic!("{error:?}"));
    let plan = options.into_plan().unwrap_or_else(|errors| panic!("{errors:?}"));
    assert_eq!(plan.name, "evening");
    assert_eq!((plan.threads, plan.deadline), (Some(2), Duration::from_secs(300)));
    assert_eq!(plan.assertions.len(), 3);
    let target = &plan.target;
    assert_eq!((target.transport, target.streams), (Transport::Sse, Streams::Spread(10)));
    assert_eq!(target.ports, [8080, 8081, 8082, 8083, 9000]);
    assert_eq!(target.headers[0].1.text(), "Bearer {i}");
    let publish = target.publish.as_ref().unwrap();
    let PublishBy::Http { method, headers, body, .. } = &publish.by else { panic!("{publish:?}") };
    assert_eq!((method.as_str(), body.text(), publish.connections), ("PUT", "{payload}", 2));
    assert_eq!(headers[0].0, "X-Key");
    assert_eq!(plan.sources.addresses.len(), 3);
    assert_eq!(plan.sources.ports, Some(PortRange((10_000, 60_000))));
    let second = Duration::from_secs;
    let publishing = |rate, count, size, to| Some(Publishing { rate, count, size, to });
    assert_eq!(
        plan.phases,
        [
            Phase::Ramp { to: 10_000, rate: Some(2000.0), in_flight: 256 },
            Phase::Hold {
                time: second(30),
                publish: publishing(10.0, Some(100), 1024, Pattern::Random)
            },
            Phase::Churn { time: second(10), rate: 50.5, publish: None },
            Phase::Storm {
                timeout: second(60),
                publish: publishing(1.0, None, 128, Pattern::InTurn)
            },
            Phase::Slow { share: 0.1, speed: 0, time: second(10), publish: None },
        ]
    );
}

#[test]
fn websocket_targets() {
    let text = r#"
        [target]
        url = "ws://h:1/x"
        profile = "custom"
        hello = ["{\"join\":\"{i}\"}", "ready"]
        subscribed = "joined"
        refused = "error"
        pings = [{ ask = "ping", answer = "pong" }]
        [publish]
        by = "websocket"
        body = "say {payload}"
    "#;
    let plan = read(text).unwrap().0.into_plan().unwrap();
    assert_eq!(plan.target.hello.len(), 2);
    assert_eq!(plan.target.subscribed, Subscribed::Message("joined".into()));
    assert_eq!((plan.target.refused, plan.keep), (vec!["error".to_owned()], false));
    assert_eq!(plan.target.pings[0].answer, "pong");
    assert!(matches!(&plan.target.publish.unwrap().by, PublishBy::WebSocket { frame }
        if frame.text() == "say {payload}"));
}

/// Checks that reading each text fails with its error, or is "accepted".
#[track_caller]
fn expect_refusals(refusals: &[(&str, &str)]) {
    for (text, expected) in refusals {
        let refusal = read(text).map_or_else(|errors| errors.join("\n"), |_| "accepted".to_owned());
        let expected = expected.replace("line ", "plan.toml, line ");
        assert!(refusal.starts_with(&expected), "{text}:\n  {refusal}\n  {expected}");
    }
}

#[test]
fn an_unknown_key_or_a_wrong_kind_has_its_position_and_a_hint() {
    expect_refusals(&[
        ("nam = 'x'", "line 1, column 1: unknown key \"nam\"; did you mean \"name\"?"),
        ("url = 'x'", "line 1, column 1: unknown key \"url\"; it belongs to the table [target]"),
        ("[target]\nulr = 'x'", "line 2, column 1: unknown key \"ulr\"; did you mean \"url\"?"),
        (
            "[target]\nname = 'x'",
            "line 2, column 1: unknown key \"name\"; it belongs to no table, so move it",
        ),
        ("[taget]\n", "line 1, column 2: unknown key \"taget\"; did you mean \"target\"?"),
        ("[sources]\ncolour = 1", "line 2, column 1: unknown key \"colour\"; known here are addr"),
        (
            "target = 1",
            "line 1, column 1: `target` is not a single value; begin a table with [target]",
        ),
        (
            "phases = 1",
            "line 1, column 1: `phases` is not a single value; begin each table with [[",
        ),
        ("phases = [1]", "line 1, column 1: `phases` is not a single value; begin each table with"),
        ("deadline = -5", "line 1, column 12: deadline: \"-5\" is not a time, like \"25s\""),
        ("keep = 2", "line 1, column 8: keep: \"2\" is not true or false"),
        ("seed = -1", "line 1, column 8: seed: \"-1\" is not a whole number"),
        ("deadline = ['5s']", "line 1, column 12: deadline: is a single value"),
        ("name = 5", "line 1, column 8: name: is a text, in quotation marks"),
        (
            "assertions = ['lost == 0', 'lots == 0']",
            "line 1, column 28: assertions: there is no measurement \"lots\"; did you mean",
        ),
    ]);
}

#[test]
fn a_wrong_value_has_its_position_and_a_hint() {
    expect_refusals(&[
        (
            "[target]\nprofile = 'nchn'",
            "line 2, column 11: profile: there is no profile \"nchn\"; did you mean \"nchan\"?",
        ),
        ("[target]\ntransport = 'ws'", "line 2, column 13: transport: \"ws\" is not a transport"),
        ("[target]\nports = [1, 'x']", "line 2, column 13: ports: \"x\" is not a port"),
        ("[target]\nheaders = 1", "line 2, column 11: headers: is a table, like headers = {"),
        ("[target]\nheaders.A = []", "line 2, column 13: A: is a text"),
        ("[target]\npings = [{ask='a'}]", "line 2, column 10: pings: each has an `ask`"),
        ("[target]\ndata = 'no.csv'", "line 2, column 8: data: there is no file no.csv"),
        ("[sources]\nports = '1'", "accepted"),
        ("[sources]\nports = '2-1'", "line 2, column 9: ports: \"2-1\" is not a range of ports"),
    ]);
}

#[test]
fn an_error_in_a_phase_has_its_position_and_a_hint() {
    expect_refusals(&[
        ("[[phases]]\n", "line 1, column 1: a phase says what to do: do = one of ramp, hold"),
        (
            "[[phases]]\ndo = 'stom'",
            "line 2, column 6: do: there is no phase \"stom\"; did you mean \"storm\"?",
        ),
        ("[[phases]]\ndo = 'ramp'", "line 1, column 1: ramp: to is missing"),
        (
            "[[phases]]\ndo = 'ramp'\nto = 1\ntime = '5s'",
            "line 4, column 1: unknown key \"time\"; known here are do, to, rate, in-flight",
        ),
        (
            "[[phases]]\ndo = 'hold'\ntime = 'five'",
            "line 3, column 8: time: \"five\" is not a time",
        ),
        (
            "[[phases]]\ndo = 'hold'\ntime = '5s'\npublish = {}",
            "line 4, column 11: publish: says how many messages a second",
        ),
        (
            "[[phases]]\ndo = 'hold'\ntime = '5s'\npublish = { rate = 1, sise = 1 }",
            "line 4, column 23: unknown key \"sise\"; did you mean \"size\"?",
        ),
        ("[[phases]]\ndo = 'slow'\nshare = -1\ntime='1s'", "line 3, column 9: share: \"-1\" is"),
    ]);
}

#[test]
fn an_error_of_syntax_has_its_position_and_a_hint() {
    expect_refusals(&[
        ("a = 'b\n", "line 1, column 5: the value of `a` has no closing quotation mark"),
        (
            "name = a b",
            "line 1, column 8: the value of `name` needs quotation marks: name = \"a b\"",
        ),
        ("name = 'a'\nname = 'b'", "line 2, column 1: `name` is set a second time; remove one"),
    ]);
}

#[test]
fn all_errors_are_reported_in_order() {
    let text = "nmae = 'x'\n[target]\ntransport = 'x'\n[[phases]]\ndo = 'hold'\n";
    let lines = read(text).unwrap_err();
    let starts: Vec<&str> = lines.iter().filter_map(|line| line.split(", column").next()).collect();
    assert_eq!(starts, ["plan.toml, line 1", "plan.toml, line 3", "plan.toml, line 4"]);
}

#[test]
fn contradictions_have_positions_too() {
    let text = "[target]\nurl = 'http://h'\nheaders.Host = 'x'\n[[phases]]\ndo = 'ramp'\nto = 1\n\
                [[phases]]\ndo = 'hold'\ntime = '1s'\npublish = { rate = 1, size = 10 }\n";
    let (options, file) = read(text).unwrap();
    let errors = options.into_plan().unwrap_err();
    let lines: Vec<String> = errors.iter().map(|each| file.describe(each)).collect();
    assert_eq!(
        lines,
        [
            "plan.toml, line 3, column 16: Host: the header Host is set by the client itself",
            "plan.toml, line 10, column 30: size: 10 bytes cannot hold the mark, which has 50"
        ]
    );
    let (options, file) = read("[[phases]]\ndo = 'ramp'\nto = 1").unwrap();
    let errors = options.into_plan().unwrap_err();
    let said = file.describe(&errors[0]);
    assert_eq!(said, "plan.toml: no URL is given: which server is the target?");
}

#[test]
fn a_missing_file_is_one_message() {
    let error = load(Path::new("no/such/plan.toml")).map(|_| ()).unwrap_err();
    assert_eq!(error, ["there is no file no/such/plan.toml"]);
}

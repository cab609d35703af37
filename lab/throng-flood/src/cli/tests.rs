//! Command lines, valid and invalid.

use std::time::Duration;

use clap::{CommandFactory as _, Parser};

use super::error::{CommandError, EXIT_USAGE};
use super::*;
use crate::plan::file::parse;
use crate::plan::{Pattern, Phase, Plan, PublishBy, Streams, Transport};

#[derive(Parser)]
struct Whole {
    #[command(flatten)]
    arguments: Arguments,
}

fn parsed(line: &[&str]) -> Result<Arguments, clap::Error> {
    Whole::try_parse_from(std::iter::once("flood").chain(line.iter().copied()))
        .map(|whole| whole.arguments)
}

fn plan(line: &[&str]) -> Result<Plan, CommandError> {
    plan::plan(&parsed(line).unwrap_or_else(|error| panic!("{error}")).run)
}

fn refusal(line: &[&str]) -> (String, u8) {
    match parsed(line) {
        Ok(arguments) => {
            let failure = plan::plan(&arguments.run).map(|plan| panic!("{plan:?}")).unwrap_err();
            (failure.lines.join("\n"), failure.code)
        }
        Err(error) => (error.to_string(), EXIT_USAGE),
    }
}

#[test]
fn the_command_line_is_valid() {
    Whole::command().debug_assert();
}

#[test]
fn a_url_is_enough() {
    let plan = plan(&["http://127.0.0.1:8080"]).unwrap();
    assert_eq!(plan.target.transport, Transport::WebSocket);
    let [Phase::Ramp { to: 1000, rate: None, .. }, Phase::Hold { time, publish: Some(publish) }] =
        &plan.phases[..]
    else {
        panic!("{:?}", plan.phases)
    };
    assert_eq!((*time, publish.rate, publish.size), (Duration::from_secs(10), 1.0, 128));
}

#[test]
fn all_options_together() {
    let plan = plan(&[
        "http://h:1",
        "--profile=nchan",
        "--transport=sse",
        "--steps=100,2k,50",
        "--rate=500",
        "--hold=5s",
        "--publish=10",
        "--size=1KiB",
        "--to=random",
        "--streams=7",
        "--source=127.0.0.2,127.0.1.0/30",
        "--source-ports=10000-20000",
        "--ports=80-82",
        "--header=A: b",
        "--storm=30s",
        "--assert=lost == 0",
        "--assert=storm.recovered < 30s",
        "--name=n",
        "--publish-connections=3",
        "--keep",
        "--seed=7",
    ])
    .unwrap();
    let clients: Vec<usize> = plan
        .phases
        .iter()
        .filter_map(|phase| if let Phase::Ramp { to, .. } = phase { Some(*to) } else { None })
        .collect();
    assert_eq!(clients, [100, 2000, 50]);
    assert!(matches!(plan.phases.last(), Some(Phase::Storm { publish: Some(publish), .. })
        if publish.to == Pattern::Random && publish.size == 1024));
    assert_eq!(plan.target.streams, Streams::Spread(7));
    assert_eq!(plan.target.ports, [80, 81, 82]);
    assert_eq!((plan.sources.addresses.len(), plan.keep, plan.seed), (3, true, 7));
    assert_eq!((plan.assertions.len(), plan.name.as_str()), (2, "n"));
    assert_eq!(plan.target.publish.unwrap().connections, 3);
}

#[test]
fn keys_and_tokens_enable_publishing() {
    let hub = ["http://h", "--profile=mercure"];
    assert!(plan(&hub).unwrap().target.publish.is_none());
    let with_token = [&hub[..], &["--publish-header=Authorization: Bearer x"]].concat();
    let publish = plan(&with_token).unwrap().target.publish.unwrap();
    let PublishBy::Http { headers, body, .. } = publish.by else { panic!("not by HTTP") };
    assert_eq!((headers.len(), body.text()), (2, "topic=flood-{run}-{stream}&data={payload}"));
    let asked = [&hub[..], &["--publish=5"]].concat();
    let (message, code) = refusal(&asked);
    assert_eq!(code, EXIT_USAGE);
    assert!(
        message.starts_with(
            "--publish: the plan does not say how to publish; this profile needs a pub"
        )
    );
    let pusher = plan(&["ws://h/app/key", "--profile=pusher", "--publish-url=http://h/notify"]);
    let PublishBy::Http { body, .. } = pusher.unwrap().target.publish.unwrap().by else { panic!() };
    assert_eq!(body.text(), "{payload}");
}

#[test]
fn an_error_names_its_flag() {
    for (line, expected) in [
        (
            &["http://h", "--hold=-5"][..],
            "invalid value '-5' for '--hold <TIME>': \"-5\" is not a time",
        ),
        (&["h/a"], "URL: \"h/a\" has no scheme; did you mean \"http://h/a\"?"),
        (&["http://h", "--profile=nchn"], "there is no profile \"nchn\"; did you mean \"nchan\"?"),
        (&["http://h", "--assert=lots == 0"], "did you mean \"lost\"?"),
        (&["http://h", "--size=49"], "--size: 49 bytes cannot hold the mark, which has 50"),
        (&["http://h", "--clients=0"], "--clients: there are no clients"),
        (&["http://h", "--rate=0"], "for '--rate <RATE>': \"0\" is not a rate"),
        (&["http://h", "--churn=0"], "for '--churn <RATE>': \"0\" is not a rate"),
        (&["http://h", "--header=Host: x"], "--header: the header Host is set by the client"),
        (&["http://h", "--sni=x"], "--sni: this is for TLS, and the URL is neither https:// nor"),
        (&["https://h", "--ca=no.pem"], "certificates in PEM from no.pem: there is no such file"),
        (&["http://h/{strem}"], "URL: there is nothing to fill in for {strem}; did you mean"),
        (&["http://h", "--source=nosuch0"], "this machine has no interface \"nosuch0\""),
        (&["http://h", "--assert=server.cpu < 1s"], "--assert: \"server.cpu < 1s\" cannot be"),
        (&["http://h", "--urls=no.txt"], "there is no file no.txt"),
        (&["http://h", "--clents=5"], "'--clients'"),
        (&[], "required"),
    ] {
        let (message, code) = refusal(line);
        assert!(message.contains(expected), "{line:?}: {message}");
        assert_eq!(code, EXIT_USAGE);
    }
}

#[test]
fn results_and_comparisons() {
    assert!(parsed(&["compare", "a.json"]).is_err());
    let both = parsed(&["compare", "a.json", "b.json", "--html", "c.html"]).unwrap();
    assert!(
        matches!(both.command, Some(FloodCommand::Compare(compare)) if compare.files.len() == 2)
    );
    let run = parsed(&["http://h", "--json=-", "--csv=-"]).unwrap().run;
    assert_eq!(run::run(&run).unwrap_err().code, EXIT_USAGE);
}

/// `--dry-run` prints a file with the same plan.
#[test]
fn a_shown_plan_can_be_read_again() {
    for line in [
        &["http://127.0.0.1:1", "--storm=1m", "--slow=10%", "--publish=0.5"][..],
        &["ws://h:1", "--profile=websocket", "--steps=5,10", "--churn=3", "--count=9"],
        &["ws://h:1", "--profile=centrifugo", "--publish-header=X-API-Key: k", "--publish=1"],
        &["ws://h:1/app/k", "--profile=pusher", "--publish-by=websocket", "--streams=4"],
        &["http://h:1", "--streams=friends:10", "--transport=long-poll", "--assert=lost == 0"],
        &["http://h:1", "--source=127.0.0.2", "--source-ports=2000-3000", "--ports=1-3"],
        &["ws://h:1/\"x", "--profile=custom", "--hello=a\"b\\{{c\n", "--subscribed=ok"],
        &["ws://h:1", "--profile=custom", "--subscribed=ok", "--refused=no", "--refused=\"e\":"],
        &["http://h:1", "--keep", "--seed=7", "--publish-refused=\"error\":"],
    ] {
        let plan = plan(line).unwrap_or_else(|failure| panic!("{line:?}: {failure:?}"));
        let text = plan.toml();
        let (options, _) = parse("shown.toml".as_ref(), text.clone())
            .unwrap_or_else(|error| panic!("{error:?}\n{text}"));
        let again = options.into_plan().unwrap_or_else(|error| panic!("{error:?}\n{text}"));
        assert_eq!(again.toml(), text, "{line:?}");
        // What the profile filled in is written out, so the profile is custom now.
        let again = Plan { profile: plan.profile, ..again };
        let json = |plan: &Plan| serde_json::to_value(plan).unwrap();
        assert_eq!(json(&again), json(&plan), "{line:?}");
    }
}

//! Flags become a draft of a plan, over what the file says.

use std::sync::Arc;

use super::arguments::{Load, Publish, Run, Target};
use super::{EXIT_PLAN, EXIT_USAGE, Failure};
use crate::plan::Plan;
use crate::plan::draft::{Draft, Objection, Phases, Simple};
use crate::plan::file::{self, File};
use crate::template::Table;

/// The flag that an objection is about, by the end of its key. The first one that fits counts.
const FLAGS: &[(&str, &str)] = &[
    ("target.url", "URL"),
    ("publish.rate", "--publish"),
    ("publish.count", "--count"),
    ("publish.size", "--size"),
    ("publish.to", "--to"),
    ("publish.url", "--publish-url"),
    ("publish.by", "--publish-by"),
    ("publish.method", "--publish-method"),
    ("publish.body", "--publish-body"),
    ("publish.refused", "--publish-refused"),
    ("publish.connections", "--publish-connections"),
    ("publish.pipeline", "--publish-pipeline"),
    ("sources.addresses", "--source"),
    ("sources.ports", "--source-ports"),
    ("pings", "--ping"),
    ("time", "--hold"),
    ("timeout", "--storm"),
    ("share", "--slow"),
    ("to", "--clients"),
    ("publish", "--publish"),
    ("hello", "--hello"),
    ("subscribed", "--subscribed"),
    ("refused", "--refused"),
    ("subprotocol", "--subprotocol"),
    ("handshake-timeout", "--handshake-timeout"),
    ("transport", "--transport"),
    ("channel", "--channel"),
    ("streams", "--streams"),
    ("rate", "--rate"),
    ("in-flight", "--in-flight"),
    ("network", "--network"),
    ("threads", "--threads"),
    ("deadline", "--deadline"),
    ("server-pid", "--server-pid"),
];

/// The plan that flags and file make, checked.
pub(super) fn plan(run: &Run) -> Result<Plan, Failure> {
    let (mut draft, file) = match &run.target.plan {
        Some(path) => {
            let (draft, file) =
                file::load(path).map_err(|error| Failure { lines: error.0, code: EXIT_PLAN })?;
            (draft, Some(file))
        }
        None => (Draft::default(), None),
    };
    overrule(&mut draft, run)?;
    let publishes = run.publish.publish.is_some_and(|rate| rate.0 > 0.0);
    let needs = draft.profile.and_then(|profile| profile.publish_needs());
    draft.into_plan().map_err(|objections| {
        let describe = |objection: &Objection| {
            let told = describe(objection, run, file.as_ref());
            match needs {
                Some(needs) if publishes && objection.message == "nothing says how to publish" => {
                    format!("{told}; this profile needs {needs}")
                }
                _ => told,
            }
        };
        let code = if file.is_some() { EXIT_PLAN } else { EXIT_USAGE };
        Failure { lines: objections.iter().map(describe).collect(), code }
    })
}

/// Where the mistake is: in the file, unless a flag has overruled that.
fn describe(objection: &Objection, run: &Run, file: Option<&File>) -> String {
    let key = objection.key.as_str();
    if let Some(file) = file.filter(|_| !is_overruled(key, run)) {
        return file.describe(objection);
    }
    let ends_with = |end: &str| key == end || key.ends_with(&format!(".{end}"));
    let is_under = |list: &str| key.split('.').any(|part| part == list);
    let flag = match FLAGS.iter().find(|(end, _)| ends_with(end)) {
        _ if is_under("headers") && key.starts_with("publish") => Some("--publish-header"),
        _ if is_under("headers") => Some("--header"),
        _ if is_under("assertions") => Some("--assert"),
        Some((_, flag)) => Some(*flag),
        // Of a phase as a whole.
        None if key.starts_with("phases") => Some("--clients"),
        None => None,
    };
    match flag {
        Some(flag) => format!("{flag}: {}", objection.message),
        None => objection.message.clone(),
    }
}

fn is_overruled(key: &str, run: &Run) -> bool {
    match key {
        "target.url" => run.url.is_some() || run.target.urls.is_some(),
        "target.transport" => run.target.transport.is_some(),
        "target.channel" => run.target.channel.is_some(),
        "target.streams" => run.target.streams.is_some(),
        "target.hello" => !run.target.hello.is_empty(),
        "target.subscribed" => run.target.subscribed.is_some(),
        "target.refused" => !run.target.refused.is_empty(),
        "server-pid" => run.target.server_pid.is_some(),
        "deadline" => run.load.deadline.is_some(),
        "network" => run.load.network.is_some(),
        "threads" => run.load.threads.is_some(),
        "publish.url" => run.publish.publish_url.is_some(),
        "publish.body" => run.publish.publish_body.is_some(),
        "publish.refused" => run.publish.publish_refused.is_some(),
        "sources.addresses" => !run.target.source.is_empty(),
        _ => false,
    }
}

/// Whatever is given by a flag counts; lists are added to.
fn overrule(draft: &mut Draft, run: &Run) -> Result<(), Failure> {
    overrule_target(draft, &run.target)?;
    if run.url.is_some() {
        draft.url.clone_from(&run.url);
    }
    overrule_publish(draft, &run.publish);
    if run.target.plan.is_none() {
        draft.phases = Phases::Simple(simple(&run.load, &run.publish));
    }
    let count = |count: throng_units::Count| count.0;
    set(&mut draft.network, run.load.network);
    set(&mut draft.threads, run.load.threads.map(count));
    draft.keep |= run.load.keep;
    set(&mut draft.seed, run.load.seed.map(|seed| seed.0 as u64));
    set(&mut draft.deadline, run.load.deadline.map(|time| time.0));
    set(&mut draft.name, run.results.name.clone());
    draft.assertions.extend(run.results.assertions.iter().cloned());
    Ok(())
}

fn set<T>(place: &mut Option<T>, given: Option<T>) {
    if given.is_some() {
        *place = given;
    }
}

fn overrule_target(draft: &mut Draft, target: &Target) -> Result<(), Failure> {
    let refuse = |error| Failure::new(EXIT_USAGE, error);
    if let Some(path) = &target.urls {
        draft.table = Some(Arc::new(Table::read_urls(path).map_err(refuse)?));
        draft.url = Some("{url}".to_owned());
    }
    if let Some(path) = &target.data {
        draft.table = Some(Arc::new(Table::read_csv(path).map_err(refuse)?));
    }
    set(&mut draft.profile, target.profile);
    set(&mut draft.transport, target.transport.map(|by| by.0));
    set(&mut draft.channel, target.channel.clone());
    set(&mut draft.streams, target.streams.map(|followed| followed.0));
    set(&mut draft.subprotocol, target.subprotocol.clone());
    set(&mut draft.subscribed, target.subscribed.clone().map(|when| when.0));
    set(&mut draft.handshake_timeout, target.handshake_timeout.map(|time| time.0));
    set(&mut draft.source_ports, target.source_ports.map(|range| range.0));
    set(&mut draft.server, target.server_pid.clone());
    if let Some(ports) = &target.ports {
        draft.ports.clone_from(&ports.0);
    }
    let headers = target.header.iter().map(|header| (header.0.clone(), header.1.clone()));
    draft.headers.extend(headers);
    if !target.hello.is_empty() {
        draft.hello = Some(target.hello.clone());
    }
    if !target.refused.is_empty() {
        draft.refused = Some(target.refused.clone());
    }
    if !target.ping.is_empty() {
        draft.pings = Some(target.ping.iter().map(|pair| pair.0.clone()).collect());
    }
    if !target.source.is_empty() {
        draft.addresses = target.source.iter().flat_map(|source| source.0.clone()).collect();
    }
    Ok(())
}

fn overrule_publish(draft: &mut Draft, given: &Publish) {
    let publish = &mut draft.publish;
    set(&mut publish.url, given.publish_url.clone());
    set(&mut publish.by_websocket, given.publish_by.map(|by| by.0));
    set(&mut publish.method, given.publish_method.clone());
    set(&mut publish.body, given.publish_body.clone());
    set(&mut publish.refused, given.publish_refused.clone());
    set(&mut publish.connections, given.publish_connections.map(|count| count.0));
    set(&mut publish.pipeline, given.publish_pipeline.map(|count| count.0));
    let headers = given.publish_header.iter().map(|header| (header.0.clone(), header.1.clone()));
    publish.headers.extend(headers);
}

fn simple(load: &Load, publish: &Publish) -> Simple {
    let usual = Simple::default();
    let steps: Vec<usize> = load.steps.iter().chain(&load.clients).map(|count| count.0).collect();
    Simple {
        steps: if steps.is_empty() { usual.steps } else { steps },
        rate: load.rate.map(|rate| rate.0),
        in_flight: load.in_flight.map_or(usual.in_flight, |count| count.0),
        hold: load.hold.map_or(usual.hold, |time| time.0),
        publish_rate: publish.publish.map(|rate| rate.0),
        count: publish.count.map(|count| count.0 as u64),
        size: publish.size.map_or(usual.size, |size| size.0),
        to: publish.to.map(|to| to.0),
        churn: load.churn.map(|rate| rate.0),
        storm: load.storm.map(|time| time.0),
        slow: load.slow.map(|share| share.0),
    }
}

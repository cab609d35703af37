//! A plan as TOML: what `--dry-run` prints.

use throng_units::{Count, Ports, Switch, Time};

use super::model::{Network, Plan, Profile, PublishBy, Target};
use super::option_table::Table;
use super::options::{Options, PublishOptions, SourceOptions, TargetOptions};
use super::phases;
use super::server_process::ServerProcess;
use super::sources::LocalAddresses;
use super::values::{Header, PortRange, PublishTransport};
use crate::template::Template;

/// The plan as a file. What its profile has filled in is written out.
pub(crate) fn show(plan: &Plan) -> String {
    let mut text = String::new();
    options_of(plan).write(&mut text);
    plan.phases.iter().for_each(|phase| phases::write(phase, &mut text));
    text
}

fn options_of(plan: &Plan) -> Options {
    Options {
        name: Some(plan.name.clone()),
        deadline: Some(Time(plan.deadline)),
        network: Some(plan.network).filter(|&network| network != Network::default()),
        threads: plan.threads.map(Count),
        keep: plan.keep.then_some(Switch(true)),
        // Read from a `Count`.
        seed: Some(Count(plan.seed as usize)),
        server_pid: non_empty(&plan.server_pids).map(|pids| ServerProcess::Ids(pids.to_vec())),
        assertions: non_empty(&plan.assertions).map(<[_]>::to_vec),
        target: target_options(&plan.target),
        publish: publish_options(&plan.target),
        sources: SourceOptions {
            addresses: non_empty(&plan.sources.addresses)
                .map(|all| all.iter().map(|&address| LocalAddresses(vec![address])).collect()),
            ports: plan.sources.ports.map(PortRange),
        },
        ..Options::default()
    }
}

fn target_options(target: &Target) -> TargetOptions {
    TargetOptions {
        profile: Some(Profile::Custom),
        url: Some(target.url.text().to_owned()),
        transport: Some(target.transport),
        streams: Some(target.streams),
        ports: non_empty(&target.ports)
            .map(|ports| ports.iter().map(|&port| Ports(vec![port])).collect()),
        headers: headers(&target.headers),
        subprotocol: target.subprotocol.clone(),
        hello: non_empty(&target.hello)
            .map(|hello| hello.iter().map(|text| text.text().to_owned()).collect()),
        subscribed: Some(target.subscribed.clone()),
        refused: non_empty(&target.refused).map(<[_]>::to_vec),
        pings: non_empty(&target.pings).map(<[_]>::to_vec),
        handshake_timeout: Some(Time(target.handshake_timeout)),
        ..TargetOptions::default()
    }
}

fn publish_options(target: &Target) -> PublishOptions {
    let Some(publish) = &target.publish else { return PublishOptions::default() };
    let options = PublishOptions {
        refused: publish.refused.clone(),
        connections: Some(Count(publish.connections)),
        pipeline: Some(Count(publish.pipeline)),
        ..PublishOptions::default()
    };
    match &publish.by {
        PublishBy::Http { method, url, headers: given, body } => PublishOptions {
            by: Some(PublishTransport::Http),
            method: Some(method.clone()),
            url: Some(url.text().to_owned()),
            headers: headers(given),
            body: Some(body.text().to_owned()),
            ..options
        },
        PublishBy::WebSocket { frame } => PublishOptions {
            by: Some(PublishTransport::WebSocket),
            body: Some(frame.text().to_owned()),
            ..options
        },
    }
}

fn headers(headers: &[(String, Template)]) -> Option<Vec<Header>> {
    let header = |(name, value): &(String, Template)| Header(name.clone(), value.text().to_owned());
    non_empty(headers).map(|headers| headers.iter().map(header).collect())
}

fn non_empty<T>(list: &[T]) -> Option<&[T]> {
    Some(list).filter(|list| !list.is_empty())
}

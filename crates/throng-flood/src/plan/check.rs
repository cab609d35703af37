//! Contradictions in a plan, and what cannot be done.

use std::net::IpAddr;
use std::time::Duration;

use throng_units::{Time, no_scheme};

use super::model::{
    Network, Pattern, Phase, Plan, PlanError, PublishBy, Publishing, Streams, Subscribed, Target,
    Transport,
};
use crate::assertions::Requirement;
use crate::marker::MARK_BYTES;
use crate::protocol::url::{authority, host_and_port};
use crate::template::{Placeholder, Template, TemplateValues};

/// Larger than any server in use accepts. Each published message is kept in memory once.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// The most clients; their numbers must fit 32 bits with room to spare.
const CLIENTS_MAX: usize = 1 << 28;

/// More per second than any machine sends.
const RATE_MAX: f64 = 1e8;

/// Headers that every request has already.
const OWN_HEADERS: [&str; 8] = [
    "host",
    "connection",
    "upgrade",
    "content-length",
    "transfer-encoding",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
];

/// All errors in a plan; none if it can run.
pub(super) fn errors(plan: &Plan) -> Vec<PlanError> {
    let mut found = Vec::new();
    check_url(&plan.target, &mut found);
    check_target(&plan.target, &mut found);
    check_publish(&plan.target, &mut found);
    plan.check_sources(&mut found);
    if plan.phases.is_empty() {
        found.push(PlanError::new("phases", "the plan has no phases"));
    }
    let mut clients = 0;
    for (number, phase) in plan.phases.iter().enumerate() {
        let mut report = |key: &str, message: String| {
            let dot = if key.is_empty() { "" } else { "." };
            found.push(PlanError::new(format!("phases.{number}{dot}{key}"), message));
        };
        check_phase(phase, clients, &mut report);
        if let Some(publishing) = phase.publishing() {
            check_publishing(publishing, &plan.target, &mut report);
        }
        if let Phase::Ramp { to, .. } = phase {
            clients = *to;
        }
    }
    plan.check_assertions(&mut found);
    plan.check_times(&mut found);
    found
}

impl Plan {
    fn check_sources(&self, found: &mut Vec<PlanError>) {
        if self.threads == Some(0) {
            found.push(PlanError::new("threads", "at least one thread is needed"));
        }
        if self.network == Network::Tunnel {
            let message = "clients of the network tunnel have addresses and ports of its own";
            if !self.sources.addresses.is_empty() {
                found.push(PlanError::new("sources.addresses", message));
            }
            if self.sources.ports.is_some() {
                found.push(PlanError::new("sources.ports", message));
            }
        }
        let rendered = self.target.url.rendered(&TemplateValues::default());
        let host = authority(&rendered).map(|authority| host_and_port(authority).0);
        let Some(Ok(target)) = host.map(str::parse::<IpAddr>) else { return };
        let other = |source: &&IpAddr| source.is_ipv4() != target.is_ipv4();
        if let Some(source) = self.sources.addresses.iter().find(other) {
            let message = format!("no connection from {source} to {target} is possible");
            found.push(PlanError::new("sources.addresses", message));
        }
    }

    fn check_assertions(&self, found: &mut Vec<PlanError>) {
        let publishes = self.phases.iter().any(|phase| phase.publishing().is_some());
        let storms = self.phases.iter().any(|phase| matches!(phase, Phase::Storm { .. }));
        for (number, assertion) in self.assertions.iter().enumerate() {
            let missing = match assertion.requirement() {
                Some(Requirement::Publishing) if !publishes => "nothing is published",
                Some(Requirement::Server) if self.server_pids.is_empty() => {
                    "the server's process is not known (server-pid)"
                }
                Some(Requirement::Storm) if !storms => "there is no storm",
                _ => continue,
            };
            let message = format!("\"{assertion}\" cannot be measured: {missing}");
            found.push(PlanError::new(format!("assertions.{number}"), message));
        }
    }

    fn check_times(&self, found: &mut Vec<PlanError>) {
        let needed: Duration = self.phases.iter().map(Phase::time).sum();
        if self.deadline < needed {
            let (deadline, needed) = (Time(self.deadline), Time(needed));
            let message =
                format!("the phases take at least {needed}, but the deadline is {deadline}");
            found.push(PlanError::new("deadline", message));
        }
    }
}

/// The port in the URL of the first client; 80 if it names none.
pub(super) fn port(target: &Target) -> Option<u16> {
    let url = target.url.rendered(&TemplateValues::default());
    host_and_port(authority(&url)?).1.map_or(Some(80), |port| port.parse().ok())
}

/// The error in a rendered URL, if there is one.
fn url_fault(url: &str) -> Option<String> {
    let Some((scheme, _)) = url.split_once("://") else {
        return Some(no_scheme(url).0);
    };
    if !["http", "ws"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Some(format!("{url:?}: only http and ws are supported"));
    }
    if let Some(bad) = url.chars().find(|letter| !letter.is_ascii_graphic()) {
        return Some(format!("{url:?} contains {bad:?}: percent-encode it"));
    }
    if url.contains('#') {
        return Some(format!("{url:?}: what follows # is never sent; percent-encode it as %23"));
    }
    let (host, port) = host_and_port(authority(url).unwrap_or_default());
    if host.is_empty() || host.contains('@') {
        return Some(format!("{url:?} names no host; credentials go into a header"));
    }
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => None,
        _ => Some(format!("{url:?}: the port is a number from 1 to 65535")),
    }
}

fn check_url(target: &Target, found: &mut Vec<PlanError>) {
    if target.url.has(Placeholder::Payload) {
        let message = "{payload} is for published messages, not for a subscriber's URL";
        found.push(PlanError::new("target.url", message));
        return;
    }
    // With a table every line makes a URL of its own. All are checked before any client connects.
    for client in 0..target.url.rows().unwrap_or(1) {
        let stream = match target.streams {
            Streams::Spread(n) => client as u32 % n.max(1),
            Streams::Own | Streams::Friends { .. } => client as u32,
            Streams::One => 0,
        };
        let url =
            target.url.rendered(&TemplateValues { client, stream, ..TemplateValues::default() });
        if let Some(fault) = url_fault(&url) {
            let message = match target.url.rows() {
                Some(_) => format!("for client {client}, {fault}"),
                None => fault,
            };
            found.push(PlanError::new("target.url", message));
            return;
        }
    }
}

fn check_target(target: &Target, found: &mut Vec<PlanError>) {
    let mut report = |key: &str, message: &str| {
        found.push(PlanError::new(format!("target.{key}"), message));
    };
    if target.transport != Transport::WebSocket {
        let only = "is for the transport websocket only";
        if !target.hello.is_empty() {
            report("hello", &format!("a message to send after connecting {only}"));
        }
        if !target.pings.is_empty() {
            report("pings", &format!("an answer to pings {only}"));
        }
        if target.subprotocol.is_some() {
            report("subprotocol", &format!("a sub-protocol {only}"));
        }
    }
    if matches!(&target.subscribed, Subscribed::Message(text) if text.is_empty()) {
        report("subscribed", "an empty text is in every message; leave it out, or say handshake");
    }
    if target.refused.iter().any(String::is_empty) {
        report("refused", "an empty text is in every message; leave it out");
    }
    let by_poll = target.transport == Transport::LongPoll;
    if by_poll && target.subscribed != Subscribed::Handshake {
        report("subscribed", "with long-poll the first message ends the request; use handshake");
    }
    if target.handshake_timeout.is_zero() {
        report("handshake-timeout", "must be more than 0");
    }
    if target.hello.iter().any(|hello| hello.has(Placeholder::Payload)) {
        report("hello", "{payload} is for published messages");
    }
    check_headers("target.headers", &target.headers, found);
    check_streams(target, found);
}

fn check_headers(key: &str, headers: &[(String, Template)], found: &mut Vec<PlanError>) {
    for (name, value) in headers {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let message = if name.is_empty() || !name.bytes().all(is_token) {
            format!("{name:?} is not the name of a header")
        } else if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            format!("the header {name} is set by the client itself")
        } else if value.text().contains(char::is_control) {
            format!("the header {name} contains a line break or another control character")
        } else if value.has(Placeholder::Payload) && key.starts_with("target") {
            format!("the header {name}: {{payload}} is for published messages")
        } else {
            continue;
        };
        found.push(PlanError::new(format!("{key}.{name}"), message));
    }
}

/// Clients of different streams must send different requests.
fn check_streams(target: &Target, found: &mut Vec<PlanError>) {
    let headers = target.headers.iter().map(|(_, value)| value);
    let mut templates = std::iter::once(&target.url).chain(&target.hello).chain(headers);
    let message = match target.streams {
        Streams::Spread(0) => "at least one stream is needed".to_owned(),
        Streams::Friends { edges: 0 } => "a client needs at least one friend".to_owned(),
        Streams::Friends { .. } if !templates.any(|each| each.has(Placeholder::Streams)) => {
            "friends are followed over one connection each: the URL or a hello message must name \
             them, with {streams:SEPARATOR}"
                .to_owned()
        }
        Streams::Spread(2..) | Streams::Own
            if !templates
                .any(|each| each.has(Placeholder::Stream) || each.has(Placeholder::Client)) =>
        {
            "every client subscribes to the same: put {stream} into the URL or a hello message"
                .to_owned()
        }
        _ => return,
    };
    found.push(PlanError::new("target.streams", message));
}

fn check_publish(target: &Target, found: &mut Vec<PlanError>) {
    let Some(publish) = &target.publish else { return };
    let is_reported = found.iter().any(|error| error.key == "target.url");
    let mut report = |key: &str, message: &str| {
        found.push(PlanError::new(format!("publish.{key}"), message));
    };
    if publish.connections == 0 {
        report("connections", "at least one connection is needed");
    }
    if publish.refused.as_ref().is_some_and(String::is_empty) {
        report("refused", "an empty text is in every answer; leave it out");
    }
    if publish.refused.is_some() && matches!(publish.by, PublishBy::WebSocket { .. }) {
        report("refused", "frames are not answered; this is for publishing by HTTP");
    }
    if publish.pipeline == 0 {
        report("pipeline", "at least one request must be allowed in flight");
    }
    let mut parts: Vec<&Template> = Vec::new();
    match &publish.by {
        PublishBy::Http { method, url, headers, body } => {
            if !["POST", "PUT"].contains(&method.as_str()) {
                report(
                    "method",
                    &format!("{method:?} is not a method to publish with: POST or PUT"),
                );
            }
            let values = TemplateValues { payload: b"x", ..TemplateValues::default() };
            // A profile derives it from the target's URL, whose error is reported already.
            let fault = url_fault(&url.rendered(&values)).filter(|_| !is_reported);
            if let Some(fault) = fault {
                report("url", &fault);
            }
            parts.extend([url, body]);
            parts.extend(headers.iter().map(|(_, value)| value));
            check_headers("publish.headers", headers, found);
        }
        PublishBy::WebSocket { frame } => {
            if target.transport != Transport::WebSocket {
                report(
                    "by",
                    "a WebSocket publisher connects like a subscriber, but the transport is not \
                     websocket",
                );
            }
            parts.push(frame);
        }
    }
    let body = match &publish.by {
        PublishBy::Http { body, .. } => body,
        PublishBy::WebSocket { frame } => frame,
    };
    let mut report = |message: &str| found.push(PlanError::new("publish.body", message));
    match parts.iter().map(|part| part.count(Placeholder::Payload)).sum() {
        0 => report("{payload}, which carries the mark, is missing"),
        1 => {}
        _ => report("{payload} occurs more than once, so each delivery would count several times"),
    }
    let is_one = matches!(target.streams, Streams::One | Streams::Spread(1));
    if !is_one && !parts.iter().any(|part| part.has(Placeholder::Stream)) {
        report("{stream} is missing, so all messages would go to one channel");
    }
    if body.has(Placeholder::Client) {
        report("a publisher is not a client: {i} and columns have no value in messages");
    }
}

fn check_phase(phase: &Phase, clients: usize, report: &mut impl FnMut(&str, String)) {
    let is_rate = |rate: f64| rate > 0.0 && rate <= RATE_MAX;
    if !matches!(phase, Phase::Ramp { .. }) && clients == 0 {
        report("", "there are no clients yet: ramp up first".to_owned());
    }
    match phase {
        Phase::Ramp { to, rate, in_flight } => {
            if *to > CLIENTS_MAX {
                report("to", format!("{to} clients are more than the limit of {CLIENTS_MAX}"));
            }
            if rate.is_some_and(|rate| !is_rate(rate)) {
                report("rate", "must be more than 0; leave it out for no limit".to_owned());
            }
            if *in_flight == 0 {
                report("in-flight", "at least one connect must be allowed at a time".to_owned());
            }
        }
        Phase::Hold { time, .. } | Phase::Churn { time, .. } | Phase::Slow { time, .. }
            if time.is_zero() =>
        {
            report("time", "a phase must take more than 0".to_owned());
        }
        Phase::Hold { .. } => {}
        Phase::Churn { rate, .. } => {
            if !is_rate(*rate) {
                report("rate", "the number of clients per second must be more than 0".to_owned());
            }
        }
        Phase::Storm { timeout, .. } => {
            if timeout.is_zero() {
                report("timeout", "a storm must have more than 0".to_owned());
            }
        }
        Phase::Slow { share, .. } => {
            if !(*share > 0.0 && *share <= 1.0) {
                let message =
                    format!("{share} is not a share of the clients: more than 0, at most 1");
                report("share", message);
            }
        }
    }
}

fn check_publishing(
    publishing: &Publishing,
    target: &Target,
    report: &mut impl FnMut(&str, String),
) {
    if target.publish.is_none() {
        report("publish", "the plan does not say how to publish".to_owned());
        return;
    }
    if !(publishing.rate > 0.0 && publishing.rate <= RATE_MAX) {
        report("publish.rate", "the number of messages per second must be more than 0".to_owned());
    }
    if publishing.count == Some(0) {
        report("publish.count", "must be more than 0; leave it out for no limit".to_owned());
    }
    if publishing.size < MARK_BYTES {
        let size = publishing.size;
        let message = format!("{size} bytes cannot hold the mark, which has {MARK_BYTES}");
        report("publish.size", message);
    }
    if publishing.size > PAYLOAD_BYTES_MAX {
        report("publish.size", "a message can have at most 64MiB".to_owned());
    }
    if publishing.to == Pattern::Random && matches!(target.streams, Streams::One) {
        let message = "there is only one stream to choose from; set streams";
        report("publish.to", message.to_owned());
    }
}

#[cfg(test)]
mod tests;

//! Contradictions in a plan, and what cannot be done.

use std::net::IpAddr;
use std::time::Duration;

use throng_units::{Time, no_scheme};

use super::model::{Plan, PlanError, PublishBy, PublishTarget, Target};
use super::phase::{Phase, Publishing};
use super::values::{Network, Pattern, Streams, Subscribed, Transport};
use crate::assertions::Requirement;
use crate::marker::MARK_BYTES;
use crate::protocol::url::{authority, default_port, host_and_port, is_secure};
use crate::template::{Placeholder, Template, TemplateValues};
use crate::tls::server_name;

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
    let mut found = Findings(Vec::new());
    found.check_url(&plan.target);
    found.check_target(&plan.target);
    found.check_tls(&plan.target);
    if let Some(publish) = &plan.target.publish {
        found.check_publish(&plan.target, publish);
    }
    found.check_sources(plan);
    found.refuse_if(plan.phases.is_empty(), "phases", "the plan has no phases");
    let mut clients = 0;
    for (number, phase) in plan.phases.iter().enumerate() {
        let place = format!("phases.{number}");
        if let Phase::Ramp { to, .. } = phase {
            clients = *to;
        } else {
            found.refuse_if(clients == 0, &place, "there are no clients yet: ramp up first");
        }
        found.check_phase(&place, phase);
        if let Some(publishing) = phase.publishing() {
            found.check_publishing(&format!("{place}.publish"), publishing, &plan.target);
        }
    }
    found.check_assertions(plan);
    found.check_times(plan);
    found.0
}

/// The port in the URL of the first client; that of the scheme if it names none.
pub(super) fn port(target: &Target) -> Option<u16> {
    let url = target.url.rendered(&TemplateValues::default());
    let default = default_port(url.split_once("://")?.0);
    host_and_port(authority(&url)?).1.map_or(default, |port| port.parse().ok())
}

/// The error in a rendered URL, if there is one.
fn url_fault(url: &str) -> Option<String> {
    let Some((scheme, _)) = url.split_once("://") else {
        return Some(no_scheme(url).0);
    };
    if default_port(scheme).is_none() {
        return Some(format!("{url:?}: the scheme is http, ws, https or wss"));
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

/// The errors found so far.
struct Findings(Vec<PlanError>);

impl Findings {
    fn refuse(&mut self, key: &str, message: impl ToString) {
        self.0.push(PlanError::new(key, message));
    }

    fn refuse_if(&mut self, is_wrong: bool, key: &str, message: impl ToString) {
        if is_wrong {
            self.refuse(key, message);
        }
    }

    fn check_url(&mut self, target: &Target) {
        if target.url.has(Placeholder::Payload) {
            let message = "{payload} is for published messages, not for a subscriber's URL";
            return self.refuse("target.url", message);
        }
        let first = target.url.rendered(&TemplateValues::default());
        // With a table every line makes a URL of its own. All are checked before any client
        // connects.
        for client in 0..target.url.rows().unwrap_or(1) {
            let stream = match target.streams {
                Streams::Spread(n) => client as u32 % n.max(1),
                Streams::Own | Streams::Friends { .. } => client as u32,
                Streams::One => 0,
            };
            let values = TemplateValues { client, stream, ..TemplateValues::default() };
            let url = target.url.rendered(&values);
            let is_other = is_secure(&url) != is_secure(&first);
            let mixed = || format!("{url:?}: either all clients speak TLS or none");
            let fault = url_fault(&url).or_else(|| is_other.then(mixed));
            let Some(fault) = fault else { continue };
            return self.refuse(
                "target.url",
                match target.url.rows() {
                    Some(_) => format!("for client {client}, {fault}"),
                    None => fault,
                },
            );
        }
    }

    fn check_target(&mut self, target: &Target) {
        if target.transport != Transport::WebSocket {
            for (key, is_set, what) in [
                ("target.deflate", target.deflate, "compression of messages"),
                ("target.hello", !target.hello.is_empty(), "a message to send after connecting"),
                ("target.pings", !target.pings.is_empty(), "an answer to pings"),
                ("target.subprotocol", target.subprotocol.is_some(), "a sub-protocol"),
            ] {
                self.refuse_if(is_set, key, format!("{what} is for the transport websocket only"));
            }
        }
        let is_empty = target.subscribed == Subscribed::Message(String::new());
        let message = "an empty text is in every message; leave it out, or say handshake";
        self.refuse_if(is_empty, "target.subscribed", message);
        let is_empty = target.refused.iter().any(String::is_empty);
        let message = "an empty text is in every message; leave it out";
        self.refuse_if(is_empty, "target.refused", message);
        let waits_for_text = target.subscribed != Subscribed::Handshake;
        let message = "with long-poll the first message ends the request; use handshake";
        let by_poll = target.transport == Transport::LongPoll;
        self.refuse_if(by_poll && waits_for_text, "target.subscribed", message);
        let is_zero = target.handshake_timeout.is_zero();
        self.refuse_if(is_zero, "target.handshake-timeout", "must be more than 0");
        let has_payload = target.hello.iter().any(|hello| hello.has(Placeholder::Payload));
        self.refuse_if(has_payload, "target.hello", "{payload} is for published messages");
        self.check_headers("target.headers", &target.headers);
        self.check_streams(target);
    }

    fn check_tls(&mut self, target: &Target) {
        let values = TemplateValues::default();
        let publish_url = target.publish.as_ref().and_then(|publish| match &publish.by {
            PublishBy::Http { url, .. } => Some(url.rendered(&values)),
            PublishBy::WebSocket { .. } => None,
        });
        let speaks_tls = is_secure(&target.url.rendered(&values))
            || publish_url.is_some_and(|url| is_secure(&url));
        let tls = &target.tls;
        for (key, is_set) in [
            ("target.ca", tls.authorities.is_some()),
            ("target.insecure", tls.is_insecure),
            ("target.sni", tls.sni.is_some()),
            ("target.tls-resume", tls.resumes),
        ] {
            let message = "this is for TLS, and the URL is neither https:// nor wss://";
            self.refuse_if(is_set && !speaks_tls, key, message);
        }
        let message = "with insecure no certificate is checked; leave one of them out";
        self.refuse_if(tls.authorities.is_some() && tls.is_insecure, "target.ca", message);
        if let Some(Err(error)) = tls.sni.as_deref().map(server_name) {
            self.refuse("target.sni", error);
        }
    }

    fn check_headers(&mut self, key: &str, headers: &[(String, Template)]) {
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
            self.refuse(&format!("{key}.{name}"), message);
        }
    }

    /// Clients of different streams must send different requests.
    fn check_streams(&mut self, target: &Target) {
        let headers = target.headers.iter().map(|(_, value)| value);
        let mut templates = std::iter::once(&target.url).chain(&target.hello).chain(headers);
        let message = match target.streams {
            Streams::Spread(0) => "at least one stream is needed",
            Streams::Friends { edges: 0 } => "a client needs at least one friend",
            Streams::Friends { .. } if !templates.any(|each| each.has(Placeholder::Streams)) => {
                "friends are followed over one connection each: the URL or a hello message must \
                 name them, with {streams:SEPARATOR}"
            }
            Streams::Spread(2..) | Streams::Own
                if !templates
                    .any(|each| each.has(Placeholder::Stream) || each.has(Placeholder::Client)) =>
            {
                "every client subscribes to the same: put {stream} into the URL or a hello message"
            }
            _ => return,
        };
        self.refuse("target.streams", message);
    }

    fn check_publish(&mut self, target: &Target, publish: &PublishTarget) {
        let is_websocket = matches!(publish.by, PublishBy::WebSocket { .. });
        let no_connection = publish.connections == 0;
        self.refuse_if(no_connection, "publish.connections", "at least one connection is needed");
        let is_empty = publish.refused.as_ref().is_some_and(String::is_empty);
        let message = "an empty text is in every answer; leave it out";
        self.refuse_if(is_empty, "publish.refused", message);
        let message = "frames are not answered; this is for publishing by HTTP";
        self.refuse_if(publish.refused.is_some() && is_websocket, "publish.refused", message);
        let message = "at least one request must be allowed in flight";
        self.refuse_if(publish.pipeline == 0, "publish.pipeline", message);
        let mut parts: Vec<&Template> = Vec::new();
        let body = match &publish.by {
            PublishBy::Http { method, url, headers, body } => {
                let message = format!("{method:?} is not a method to publish with: POST or PUT");
                let is_known = ["POST", "PUT"].contains(&method.as_str());
                self.refuse_if(!is_known, "publish.method", message);
                // A profile derives it from the target's URL, whose error is reported already.
                let is_reported = self.0.iter().any(|error| error.key == "target.url");
                let values = TemplateValues { payload: b"x", ..TemplateValues::default() };
                let fault = url_fault(&url.rendered(&values)).filter(|_| !is_reported);
                self.0.extend(fault.map(|fault| PlanError::new("publish.url", fault)));
                parts.push(url);
                parts.extend(headers.iter().map(|(_, value)| value));
                self.check_headers("publish.headers", headers);
                body
            }
            PublishBy::WebSocket { frame } => frame,
        };
        let message = "a WebSocket publisher connects like a subscriber, but the transport is not \
                       websocket";
        let is_other = target.transport != Transport::WebSocket;
        self.refuse_if(is_websocket && is_other, "publish.by", message);
        parts.push(body);
        match parts.iter().map(|part| part.count(Placeholder::Payload)).sum() {
            0 => self.refuse("publish.body", "{payload}, which carries the mark, is missing"),
            1 => {}
            _ => {
                let message =
                    "{payload} occurs more than once, so each delivery would count several times";
                self.refuse("publish.body", message);
            }
        }
        let is_one = matches!(target.streams, Streams::One | Streams::Spread(1));
        let names_stream = parts.iter().any(|part| part.has(Placeholder::Stream));
        let message = "{stream} is missing, so all messages would go to one channel";
        self.refuse_if(!is_one && !names_stream, "publish.body", message);
        let message = "a publisher is not a client: {i} and columns have no value in messages";
        self.refuse_if(body.has(Placeholder::Client), "publish.body", message);
    }

    fn check_sources(&mut self, plan: &Plan) {
        let sources = &plan.sources;
        self.refuse_if(plan.threads == Some(0), "threads", "at least one thread is needed");
        let message = "clients come back only with keep";
        let has_failover = !plan.target.failover.is_empty();
        self.refuse_if(has_failover && !plan.keep, "target.failover", message);
        let is_tunnel = plan.network == Network::Tunnel;
        let message = "clients of the network tunnel have addresses and ports of its own";
        self.refuse_if(is_tunnel && !sources.addresses.is_empty(), "sources.addresses", message);
        self.refuse_if(is_tunnel && sources.ports.is_some(), "sources.ports", message);
        let message = "clients of the network tunnel do not change their server";
        self.refuse_if(is_tunnel && has_failover, "target.failover", message);
        let rendered = plan.target.url.rendered(&TemplateValues::default());
        let host = authority(&rendered).map(|authority| host_and_port(authority).0);
        let Some(Ok(target)) = host.map(str::parse::<IpAddr>) else { return };
        let other = |source: &&IpAddr| source.is_ipv4() != target.is_ipv4();
        if let Some(source) = sources.addresses.iter().find(other) {
            let message = format!("no connection from {source} to {target} is possible");
            self.refuse("sources.addresses", message);
        }
    }

    /// Checks one phase, whose key is `place`.
    fn check_phase(&mut self, place: &str, phase: &Phase) {
        let is_rate = |rate: f64| rate > 0.0 && rate <= RATE_MAX;
        let mut refuse_if = |is_wrong: bool, key: &str, message: &str| {
            self.refuse_if(is_wrong, &format!("{place}.{key}"), message);
        };
        match phase {
            Phase::Ramp { to, rate, in_flight } => {
                let message = format!("{to} clients are more than the limit of {CLIENTS_MAX}");
                refuse_if(*to > CLIENTS_MAX, "to", &message);
                let message = "must be more than 0; leave it out for no limit";
                refuse_if(rate.is_some_and(|rate| !is_rate(rate)), "rate", message);
                let message = "at least one connect must be allowed at a time";
                refuse_if(*in_flight == 0, "in-flight", message);
            }
            Phase::Storm { timeout, .. } => {
                refuse_if(timeout.is_zero(), "timeout", "a storm must have more than 0");
            }
            Phase::Hold { .. } | Phase::Churn { .. } | Phase::Slow { .. } => {
                refuse_if(phase.time().is_zero(), "time", "a phase must take more than 0");
            }
        }
        if let Phase::Churn { rate, .. } = phase {
            let message = "the number of clients per second must be more than 0";
            refuse_if(!is_rate(*rate), "rate", message);
        }
        if let Phase::Slow { share, .. } = phase {
            let message = format!("{share} is not a share of the clients: more than 0, at most 1");
            refuse_if(!(*share > 0.0 && *share <= 1.0), "share", &message);
        }
    }

    /// Checks what one phase publishes. `place` is its key.
    fn check_publishing(&mut self, place: &str, publishing: &Publishing, target: &Target) {
        if target.publish.is_none() {
            return self.refuse(place, "the plan does not say how to publish");
        }
        let mut refuse_if = |is_wrong: bool, key: &str, message: &str| {
            self.refuse_if(is_wrong, &format!("{place}.{key}"), message);
        };
        let &Publishing { rate, count, size, to } = publishing;
        let is_rate = rate > 0.0 && rate <= RATE_MAX;
        refuse_if(!is_rate, "rate", "the number of messages per second must be more than 0");
        refuse_if(count == Some(0), "count", "must be more than 0; leave it out for no limit");
        let message = format!("{size} bytes cannot hold the mark, which has {MARK_BYTES}");
        refuse_if(size < MARK_BYTES, "size", &message);
        refuse_if(size > PAYLOAD_BYTES_MAX, "size", "a message can have at most 64MiB");
        let has_choice = target.streams != Streams::One;
        let message = "there is only one stream to choose from; set streams";
        refuse_if(to == Pattern::Random && !has_choice, "to", message);
    }

    fn check_assertions(&mut self, plan: &Plan) {
        let storms = plan.phases.iter().any(|phase| matches!(phase, Phase::Storm { .. }));
        for (number, assertion) in plan.assertions.iter().enumerate() {
            let missing = match assertion.requirement() {
                Some(Requirement::Publishing) if !plan.publishes() => "nothing is published",
                Some(Requirement::Server) if plan.server_pids.is_empty() => {
                    "the server's process is not known (server-pid)"
                }
                Some(Requirement::Storm) if !storms => "there is no storm",
                _ => continue,
            };
            let message = format!("\"{assertion}\" cannot be measured: {missing}");
            self.refuse(&format!("assertions.{number}"), message);
        }
    }

    fn check_times(&mut self, plan: &Plan) {
        let needed: Duration = plan.phases.iter().map(Phase::time).sum();
        let (deadline, needed) = (Time(plan.deadline), Time(needed));
        let message = format!("the phases take at least {needed}, but the deadline is {deadline}");
        self.refuse_if(deadline < needed, "deadline", message);
    }
}

#[cfg(test)]
mod tests;

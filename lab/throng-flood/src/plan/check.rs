//! Contradictions in a plan, and what cannot be done.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use throng_units::{Time, no_scheme};

use super::model::{Plan, PlanError, PublishBy, PublishTarget, Target};
use super::phases::{Phase, Publishing};
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

/// Reports each row whose condition holds: its key, and the error.
macro_rules! refuse {
    ($found:expr; $( $is_wrong:expr => $key:expr, $message:expr; )+) => {
        let rows: [(bool, &str, &dyn Display); _] = [$( ($is_wrong, &$key, &$message) ),+];
        for (_, key, message) in rows.iter().filter(|(is_wrong, ..)| *is_wrong) {
            $found.refuse(key, message);
        }
    };
}

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
    refuse! { found; plan.phases.is_empty() => "phases", "the plan has no phases"; }
    let mut clients = 0;
    for (number, phase) in plan.phases.iter().enumerate() {
        let place = format!("phases.{number}");
        if let Phase::Ramp { to, .. } = phase {
            clients = *to;
        }
        let is_empty = clients == 0 && !matches!(phase, Phase::Ramp { .. });
        refuse! { found; is_empty => place, "there are no clients yet: ramp up first"; }
        found.check_phase(&place, phase, plan.network == Network::Tunnel);
        if let Some(publishing) = phase.publishing() {
            found.check_publishing(&format!("{place}.publish"), publishing, &plan.target);
        }
    }
    found.check_assertions(plan);
    let (deadline, needed) = (plan.deadline, plan.phases.iter().map(Phase::time).sum::<Duration>());
    let message = format!(
        "the phases take at least {}, but the deadline is {}",
        Time(needed),
        Time(deadline)
    );
    refuse! { found; deadline < needed => "deadline", message; }
    found.0
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

    fn check_url(&mut self, target: &Target) {
        if target.url.has(Placeholder::Payload) {
            let message = "{payload} is for published messages, not for a subscriber's URL";
            return self.refuse("target.url", message);
        }
        let first = target.first_url();
        // With a table every line makes a URL of its own. All are checked before any client
        // connects.
        let clients = target.url.rows().unwrap_or(1);
        let streams = u64::from(target.stream_count(clients));
        for client in 0..clients {
            let stream = (client as u64 * u64::from(target.streams_each) % streams) as u32;
            let values = TemplateValues { client, stream, ..TemplateValues::default() };
            let url = target.url.rendered(&values);
            let is_other = is_secure(&url) != is_secure(&first);
            let mixed = || format!("{url:?}: either all clients speak TLS or none");
            let fault = url_fault(&url).or_else(|| is_other.then(mixed));
            let Some(fault) = fault else { continue };
            let place = target.url.rows().map(|_| format!("for client {client}, "));
            return self.refuse("target.url", place.unwrap_or_default() + &fault);
        }
    }

    fn check_target(&mut self, target: &Target) {
        let Target { transport, subscribed, refused, hello, .. } = target;
        let is_other = *transport != Transport::WebSocket;
        let only = |what| format!("{what} is for the transport websocket only");
        refuse! { self;
            is_other && target.deflate => "target.deflate", only("compression of messages");
            is_other && !hello.is_empty() =>
                "target.hello", only("a message to send after connecting");
            is_other && !target.pings.is_empty() => "target.pings", only("an answer to pings");
            is_other && target.subprotocol.is_some() =>
                "target.subprotocol", only("a sub-protocol");
            *subscribed == Subscribed::Message(String::new()) => "target.subscribed",
                "an empty text is in every message; leave it out, or say handshake";
            refused.iter().any(String::is_empty) =>
                "target.refused", "an empty text is in every message; leave it out";
            *transport == Transport::LongPoll && *subscribed != Subscribed::Handshake =>
                "target.subscribed",
                "with long-poll the first message ends the request; use handshake";
            target.handshake_timeout.is_zero() => "target.handshake-timeout", "must be more than 0";
            hello.iter().any(|hello| hello.has(Placeholder::Payload)) =>
                "target.hello", "{payload} is for published messages";
        }
        self.check_headers("target.headers", &target.headers);
        self.check_streams(target);
    }

    fn check_tls(&mut self, target: &Target) {
        let publish_speaks_tls = match target.publish.as_ref().map(|publish| &publish.by) {
            Some(PublishBy::Http { url, .. }) => {
                is_secure(&url.rendered(&TemplateValues::default()))
            }
            _ => false,
        };
        let speaks_tls = is_secure(&target.first_url()) || publish_speaks_tls;
        let tls = &target.tls;
        let message = "this is for TLS, and the URL is neither https:// nor wss://";
        let wrong_name = tls.sni.as_deref().and_then(|name| server_name(name).err());
        refuse! { self;
            !speaks_tls && tls.authorities.is_some() => "target.ca", message;
            !speaks_tls && tls.is_insecure => "target.insecure", message;
            !speaks_tls && tls.sni.is_some() => "target.sni", message;
            !speaks_tls && tls.resumes => "target.tls-resume", message;
            tls.authorities.is_some() && tls.is_insecure => "target.ca",
                "with insecure no certificate is checked; leave one of them out";
        }
        wrong_name.into_iter().for_each(|error| self.refuse("target.sni", error));
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
        let templates: Vec<_> =
            std::iter::once(&target.url).chain(&target.hello).chain(headers).collect();
        let have = |place| templates.iter().any(|template| template.has(place));
        let is_same = !have(Placeholder::Stream) && !have(Placeholder::Client);
        let (streams, each) = (target.streams, target.streams_each);
        let has_several = each > 1 || matches!(streams, Streams::Friends { edges: 1.. });
        let by_hello = target.hello.iter().any(|hello| hello.has(Placeholder::Stream));
        refuse! { self;
            streams == Streams::Spread(0) => "target.streams", "at least one stream is needed";
            streams == Streams::Friends { edges: 0 } =>
                "target.streams", "a client needs at least one friend";
            has_several && !by_hello && !have(Placeholder::Streams) => "target.streams",
                "a client follows its channels over one connection: a hello message must name \
                 each, with {stream}, or the URL all, with {streams:SEPARATOR}";
            each == 0 => "target.channels-per-client", "a client follows at least one";
            each > 1 && matches!(streams, Streams::Friends { .. }) => "target.channels-per-client",
                "friends:EDGES says already how many a client follows";
            matches!(streams, Streams::Spread(1..) if each > target.stream_count(1)) =>
                "target.channels-per-client", "a client cannot follow more channels than streams";
            is_same && matches!(streams, Streams::Spread(2..) | Streams::Own) => "target.streams",
                "every client subscribes to the same: put {stream} into the URL or a hello message";
        }
    }

    fn check_publish(&mut self, target: &Target, publish: &PublishTarget) {
        let refused = publish.refused.as_deref();
        let is_websocket = matches!(publish.by, PublishBy::WebSocket { .. });
        refuse! { self;
            publish.connections == 0 =>
                "publish.connections", "at least one connection is needed";
            refused == Some("") =>
                "publish.refused", "an empty text is in every answer; leave it out";
            refused.is_some() && is_websocket =>
                "publish.refused", "frames are not answered; this is for publishing by HTTP";
            publish.pipeline == 0 =>
                "publish.pipeline", "at least one request must be allowed in flight";
        }
        let (mut parts, body): (Vec<&Template>, _) = match &publish.by {
            PublishBy::Http { method, url, headers, body } => {
                let message = format!("{method:?} is not a method to publish with: POST or PUT");
                let is_known = ["POST", "PUT"].contains(&method.as_str());
                refuse! { self; !is_known => "publish.method", message; }
                // A profile derives it from the target's URL, whose error is reported already.
                let is_reported = self.0.iter().any(|error| error.key == "target.url");
                let values = TemplateValues { payload: b"x", ..TemplateValues::default() };
                let fault = url_fault(&url.rendered(&values)).filter(|_| !is_reported);
                fault.into_iter().for_each(|fault| self.refuse("publish.url", fault));
                self.check_headers("publish.headers", headers);
                let values = headers.iter().map(|(_, value)| value);
                (std::iter::once(url).chain(values).collect(), body)
            }
            PublishBy::WebSocket { frame } => (Vec::new(), frame),
        };
        parts.push(body);
        let payloads: usize = parts.iter().map(|part| part.count(Placeholder::Payload)).sum();
        let is_one = matches!(target.streams, Streams::One | Streams::Spread(1));
        let names_stream = parts.iter().any(|part| part.has(Placeholder::Stream));
        refuse! { self;
            is_websocket && target.transport != Transport::WebSocket => "publish.by",
                "a WebSocket publisher connects like a subscriber, but the transport is not \
                 websocket";
            payloads == 0 => "publish.body", "{payload}, which carries the mark, is missing";
            payloads > 1 => "publish.body",
                "{payload} occurs more than once, so each delivery would count several times";
            !is_one && !names_stream =>
                "publish.body", "{stream} is missing, so all messages would go to one channel";
            body.has(Placeholder::Client) => "publish.body",
                "a publisher is not a client: {i} and columns have no value in messages";
        }
    }

    fn check_sources(&mut self, plan: &Plan) {
        let sources = &plan.sources;
        let has_failover = !plan.target.failover.is_empty();
        let is_tunnel = plan.network == Network::Tunnel;
        let own = "clients of the network tunnel have addresses and ports of its own";
        refuse! { self;
            plan.threads == Some(0) => "threads", "at least one thread is needed";
            has_failover && !plan.keep => "target.failover", "clients come back only with keep";
            is_tunnel && !sources.addresses.is_empty() => "sources.addresses", own;
            is_tunnel && sources.ports.is_some() => "sources.ports", own;
            is_tunnel && has_failover =>
                "target.failover", "clients of the network tunnel do not change their server";
        }
        let rendered = plan.target.first_url();
        let host = authority(&rendered).map(|authority| host_and_port(authority).0);
        let Some(Ok(target)) = host.map(str::parse::<IpAddr>) else { return };
        let other = |source: &&IpAddr| source.is_ipv4() != target.is_ipv4();
        if let Some(source) = sources.addresses.iter().find(other) {
            let message = format!("no connection from {source} to {target} is possible");
            self.refuse("sources.addresses", message);
        }
    }

    /// Checks one phase, whose key is `place`.
    fn check_phase(&mut self, place: &str, phase: &Phase, is_tunnel: bool) {
        let key = |key| format!("{place}.{key}");
        // A kind without a number has one that is right.
        let (to, share) = match phase {
            Phase::Ramp { to, .. } => (*to, 1.0),
            Phase::Slow { share, .. } => (0, *share),
            _ => (0, 1.0),
        };
        let has_time = !matches!(phase, Phase::Ramp { .. } | Phase::Storm { .. });
        refuse! { self;
            to > CLIENTS_MAX =>
                key("to"), format!("{to} clients are more than the limit of {CLIENTS_MAX}");
            matches!(phase, Phase::Ramp { rate: Some(rate), .. } if !is_rate(*rate)) =>
                key("rate"), "must be more than 0; leave it out for no limit";
            matches!(phase, Phase::Ramp { in_flight: 0, .. }) =>
                key("in-flight"), "at least one connect must be allowed at a time";
            matches!(phase, Phase::Storm { timeout, .. } if timeout.is_zero()) =>
                key("timeout"), "a storm must have more than 0";
            has_time && phase.time().is_zero() => key("time"), "a phase must take more than 0";
            matches!(phase, Phase::Churn { rate, .. } if !is_rate(*rate)) =>
                key("rate"), "the number of clients per second must be more than 0";
            matches!(phase, Phase::Slow { speed: 1.., .. }) && is_tunnel => key("speed"),
                "clients of the network tunnel read everything or nothing";
            !(share > 0.0 && share <= 1.0) => key("share"),
                format!("{share} is not a share of the clients: more than 0, at most 1");
        }
    }

    /// Checks what one phase publishes. `place` is its key.
    fn check_publishing(&mut self, place: &str, publishing: &Publishing, target: &Target) {
        if target.publish.is_none() {
            return self.refuse(place, "the plan does not say how to publish");
        }
        let key = |key| format!("{place}.{key}");
        let &Publishing { rate, count, size, to } = publishing;
        refuse! { self;
            !is_rate(rate) =>
                key("rate"), "the number of messages per second must be more than 0";
            count == Some(0) => key("count"), "must be more than 0; leave it out for no limit";
            size < MARK_BYTES => key("size"),
                format!("{size} bytes cannot hold the mark, which has {MARK_BYTES}");
            size > PAYLOAD_BYTES_MAX => key("size"), "a message can have at most 64MiB";
            to == Pattern::Random && target.streams == Streams::One =>
                key("to"), "there is only one stream to choose from; set streams";
        }
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
}

fn is_rate(rate: f64) -> bool {
    rate > 0.0 && rate <= RATE_MAX
}

#[cfg(test)]
mod tests;

//! A plan as the file that would say the same: what `--dry-run` prints.

use std::fmt::Write as _;

use crate::plan::{
    Network, Pattern, Phase, Plan, PublishBy, Publishing, Streams, Subscribed, Target,
};
use crate::profile::transport_name;
use crate::template::Template;
use throng_units::{Size, Time};

/// The plan in TOML, with everything that the profile has said spelt out.
pub fn show(plan: &Plan) -> String {
    let mut text = String::new();
    line(&mut text, "name", quoted(&plan.name));
    line(&mut text, "deadline", quoted(&Time(plan.deadline).to_string()));
    if plan.network != Network::Sockets {
        line(&mut text, "network", quoted(plan.network.name()));
    }
    if let Some(threads) = plan.threads {
        line(&mut text, "threads", threads);
    }
    if plan.keep {
        line(&mut text, "keep", true);
    }
    line(&mut text, "seed", plan.seed);
    match &plan.server_pids[..] {
        [] => {}
        [pid] => line(&mut text, "server-pid", pid),
        pids => {
            let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>();
            line(&mut text, "server-pid", quoted(&pids.join(",")));
        }
    }
    if !plan.assertions.is_empty() {
        let assertions = plan.assertions.iter().map(|assertion| quoted(&assertion.to_string()));
        line(&mut text, "assertions", list(assertions));
    }
    show_target(&mut text, &plan.target);
    show_publish(&mut text, &plan.target);
    if !plan.sources.addresses.is_empty() || plan.sources.ports.is_some() {
        text.push_str("\n[sources]\n");
        let addresses = plan.sources.addresses.iter().map(|each| quoted(&each.to_string()));
        if addresses.len() > 0 {
            line(&mut text, "addresses", list(addresses));
        }
        if let Some((from, to)) = plan.sources.ports {
            line(&mut text, "ports", quoted(&format!("{from}-{to}")));
        }
    }
    for phase in &plan.phases {
        show_phase(&mut text, phase);
    }
    text
}

fn line(text: &mut String, key: &str, value: impl std::fmt::Display) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "{key} = {value}");
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn headers(text: &mut String, headers: &[(String, Template)]) {
    let each = headers.iter().map(|(name, value)| format!("{name} = {}", quoted(value.text())));
    if each.len() > 0 {
        line(text, "headers", format!("{{ {} }}", each.collect::<Vec<_>>().join(", ")));
    }
}

fn show_target(text: &mut String, target: &Target) {
    text.push_str("\n[target]\n");
    line(text, "profile", quoted("custom"));
    line(text, "url", quoted(target.url.text()));
    line(text, "transport", quoted(transport_name(target.transport)));
    let streams = match target.streams {
        Streams::One => quoted("one"),
        Streams::Spread(number) => number.to_string(),
        Streams::Own => quoted("own"),
        Streams::Friends { edges } => quoted(&format!("friends:{edges}")),
    };
    line(text, "streams", streams);
    if !target.ports.is_empty() {
        line(text, "ports", list(target.ports.iter().map(ToString::to_string)));
    }
    headers(text, &target.headers);
    if let Some(subprotocol) = &target.subprotocol {
        line(text, "subprotocol", quoted(subprotocol));
    }
    if !target.hello.is_empty() {
        line(text, "hello", list(target.hello.iter().map(|hello| quoted(hello.text()))));
    }
    let subscribed = match &target.subscribed {
        Subscribed::Handshake => "handshake",
        Subscribed::Message(text) => text,
    };
    line(text, "subscribed", quoted(subscribed));
    if !target.refused.is_empty() {
        line(text, "refused", list(target.refused.iter().map(|each| quoted(each))));
    }
    if !target.pings.is_empty() {
        let pings = target.pings.iter().map(|ping| {
            format!("{{ ask = {}, answer = {} }}", quoted(&ping.ask), quoted(&ping.answer))
        });
        line(text, "pings", list(pings));
    }
    line(text, "handshake-timeout", quoted(&Time(target.handshake_timeout).to_string()));
}

fn show_publish(text: &mut String, target: &Target) {
    let Some(publish) = &target.publish else { return };
    text.push_str("\n[publish]\n");
    match &publish.by {
        PublishBy::Http { method, url, headers: given, body } => {
            line(text, "by", quoted("http"));
            line(text, "method", quoted(method));
            line(text, "url", quoted(url.text()));
            headers(text, given);
            line(text, "body", quoted(body.text()));
        }
        PublishBy::WebSocket { frame } => {
            line(text, "by", quoted("websocket"));
            line(text, "body", quoted(frame.text()));
        }
    }
    if let Some(refused) = &publish.refused {
        line(text, "refused", quoted(refused));
    }
    line(text, "connections", publish.connections);
    line(text, "pipeline", publish.pipeline);
}

fn show_phase(text: &mut String, phase: &Phase) {
    text.push_str("\n[[phases]]\n");
    let time = |time: &std::time::Duration| quoted(&Time(*time).to_string());
    match phase {
        Phase::Ramp { to, rate, in_flight } => {
            line(text, "do", quoted("ramp"));
            line(text, "to", to);
            if let Some(rate) = rate {
                line(text, "rate", rate);
            }
            line(text, "in-flight", in_flight);
        }
        Phase::Hold { time: long, .. } => {
            line(text, "do", quoted("hold"));
            line(text, "time", time(long));
        }
        Phase::Churn { time: long, rate, .. } => {
            line(text, "do", quoted("churn"));
            line(text, "time", time(long));
            line(text, "rate", rate);
        }
        Phase::Storm { timeout, .. } => {
            line(text, "do", quoted("storm"));
            line(text, "timeout", time(timeout));
        }
        Phase::Slow { share, time: long, .. } => {
            line(text, "do", quoted("slow"));
            line(text, "share", share);
            line(text, "time", time(long));
        }
    }
    if let Some(publishing) = phase.publishing() {
        show_publishing(text, publishing);
    }
}

fn show_publishing(text: &mut String, publishing: &Publishing) {
    let to = match publishing.to {
        Pattern::One => "one",
        Pattern::InTurn => "in-turn",
        Pattern::Random => "random",
    };
    let (rate, size) = (publishing.rate, quoted(&Size(publishing.size).to_string()));
    let count = publishing.count.map_or(String::new(), |count| format!(", count = {count}"));
    line(text, "publish", format!("{{ rate = {rate}, size = {size}, to = {:?}{count} }}", to));
}

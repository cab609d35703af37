//! Judges what was found: whether a node can use the servers, and what has to change.

use std::time::Duration;

use throng_host::preflight::{Check, CheckVerdict};
use throng_nats::api::NatsLimit;
use throng_nats::api::StreamSettings;
use throng_nats::api::table::TableKind;
use throng_nats::client::version;
use throng_nats::permissions::Verb;
use throng_units::Time;
use throng_units::format::{bytes, count, counted, milliseconds};

use super::examine::{SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_OWN};
use super::findings::{
    Examined, ExaminedTable, Existing, ExistingStream, Findings, JetStream, Monitor,
};
use crate::journals::nats::NatsPeer;

#[cfg(test)]
mod tests;

/// Size of a message's headers, mostly an upper bound.
const HEADER_BYTES: usize = 1 << 10;

/// Longer names are identities.
const NAME_BYTES_MAX: usize = 50;

/// Clocks that differ by more show in the ages and times of messages.
const CLOCK_MS: u64 = 1_000;

/// One channel takes one publication after the other from a node: beyond this, fewer than 200 a
/// second.
const ROUND_TRIP: Duration = Duration::from_millis(5);

/// The same, with what the servers do to store it.
const STORED: Duration = Duration::from_millis(10);

/// The demands of the node's settings.
pub(super) struct WantedSettings<'a> {
    pub(super) stream: &'a StreamSettings,
    /// The largest message of a client.
    pub(super) message_bytes: usize,
    /// How many channels and inboxes a node is to follow, if that was said.
    pub(super) followed: Option<usize>,
}

/// All checks, in the order in which a newcomer asks.
pub(super) fn checks(found: &Findings, wanted: &WantedSettings<'_>) -> Vec<Check> {
    let mut checks = vec![servers(found)];
    let Some(examined) = &found.examined else { return checks };
    checks.extend([version(examined), login(examined), jetstream(examined)]);
    let is_usable = !matches!(examined.jetstream, JetStream::Disabled(_));
    if is_usable {
        let name = wanted.stream.name();
        checks.push(existing("stream", &name, &examined.stream));
        let bucket = throng_nats::api::bucket::stream(&wanted.stream.prefix);
        checks.push(existing("bucket", &bucket, &examined.bucket));
        for ExaminedTable { table, name, found } in &examined.tables {
            let check = match table.kind {
                TableKind::States => "subscriptions",
                TableKind::OnDemand => "markers",
                TableKind::Changes if table.name == "keys" => "keys",
                TableKind::Changes => "revocations",
            };
            checks.push(existing(check, name, found));
        }
        checks.push(replicas(examined, wanted));
    }
    let monitor = found.monitor.as_ref().and_then(|monitor| monitor.as_ref().ok());
    if is_usable && wanted.stream.replicas == 1 {
        checks.push(sync(monitor));
    }
    checks.push(max_payload(examined, wanted));
    checks.extend(storage(examined, monitor, wanted));
    checks.extend(streams(examined));
    checks.extend(connections(examined, monitor));
    if let Some(Err(error)) = &found.monitor {
        checks.push(unread("monitor", "an answer of /varz", error));
    }
    checks.push(subscriptions(examined, wanted));
    checks.extend([permissions(examined, Verb::Publish), permissions(examined, Verb::Subscribe)]);
    checks.push(clock(examined));
    checks.extend(latency(examined));
    checks
}

/// A check without a number of connections.
fn check(
    name: &'static str,
    (found, needed): (String, &str),
    verdict: CheckVerdict,
    why: &str,
) -> Check {
    Check {
        name,
        found: Some(found),
        needed: needed.to_owned(),
        verdict,
        why: why.to_owned(),
        limit: None,
        setting: None,
        by_hand: Vec::new(),
    }
}

/// A check that cannot be made, with advice.
fn unread(name: &'static str, needed: &str, advice: &str) -> Check {
    let mut check =
        check(name, (String::new(), needed), CheckVerdict::Unknown, "it cannot be seen");
    check.found = None;
    check.by_hand.push(format!("{name}: {advice}"));
    check
}

fn advised(mut check: Check, advice: impl IntoIterator<Item = String>) -> Check {
    check.by_hand.extend(advice);
    check
}

fn ok_or(is_ok: bool, otherwise: CheckVerdict) -> CheckVerdict {
    if is_ok { CheckVerdict::Ok } else { otherwise }
}

fn servers(found: &Findings) -> Check {
    let named = found.servers.len();
    let faults: Vec<String> = found
        .servers
        .iter()
        .filter_map(|(server, fault)| Some(format!("{server}: {}", fault.as_ref()?)))
        .collect();
    let cluster = found.examined.as_ref().and_then(|examined| examined.cluster.as_ref());
    let in_cluster = cluster.map_or(1, |(_, count)| *count).max(1);
    let is_lonely = named == 1 && in_cluster > 1;
    let verdict = match faults.len() {
        0 if is_lonely => CheckVerdict::Should,
        0 => CheckVerdict::Ok,
        _ if found.examined.is_some() => CheckVerdict::Should,
        _ => CheckVerdict::Must,
    };
    let text = format!("{} of {named} can be used", named - faults.len());
    let why = if is_lonely && faults.is_empty() {
        "a node that starts while this server is down knows no other"
    } else {
        "a node goes to the next server when one is lost"
    };
    let more = is_lonely.then(|| {
        format!(
            "name at least two of the {} with nats",
            counted(in_cluster as u64, "server", "servers")
        )
    });
    advised(
        check("servers", (text, "all that are named"), verdict, why),
        faults.into_iter().chain(more),
    )
}

fn version(found: &Examined) -> Check {
    let cluster = match &found.cluster {
        Some((name, _)) => format!(", in the cluster {name}"),
        None => String::new(),
    };
    // A server that was given no name has its identity, which nobody reads.
    let name = if found.name.len() > NAME_BYTES_MAX { "without a name" } else { &found.name };
    let text = format!("{} ({name}{cluster})", found.version);
    let verdict = ok_or(!version::is_old(&found.version), CheckVerdict::Must);
    check("version", (text, version::NEEDED), verdict, version::REASON)
}

fn login(found: &Examined) -> Check {
    let tls = if found.is_tls { "over TLS" } else { "without TLS" };
    let is_guarded = found.login != "none";
    let text = format!("{}, {tls}", if is_guarded { found.login } else { "no login" });
    let is_safe = found.is_loopback || (is_guarded && found.is_tls);
    let why =
        "a client that can publish there can forge messages, and an eavesdropper can read them";
    let needed = if found.is_loopback { "none on loopback" } else { "a login, over TLS" };
    check("login", (text, needed), ok_or(is_safe, CheckVerdict::Should), why)
}

fn jetstream(found: &Examined) -> Check {
    let needed = "enabled";
    match &found.jetstream {
        JetStream::Enabled(_) => check(
            "JetStream",
            ("enabled".into(), needed),
            CheckVerdict::Ok,
            "it stores the messages",
        ),
        JetStream::Unknown => unread(
            "JetStream",
            needed,
            "allow this user to publish to $JS.API.INFO to see its limits",
        ),
        JetStream::Leaderless => {
            let why = "nothing works until a majority of the servers has elected one";
            let found = ("has no leader".into(), needed);
            let advice = "start the other servers of the cluster, or look into their logs";
            advised(check("JetStream", found, CheckVerdict::Must, why), [advice.into()])
        }
        JetStream::Disabled(why) => advised(
            check("JetStream", (why.clone(), needed), CheckVerdict::Must, "it stores the messages"),
            ["start nats-server with -js, or with jetstream { } in its configuration, and enable \
              it for the account of this user"
                .into()],
        ),
    }
}

fn existing(kind: &'static str, name: &str, found: &Existing) -> Check {
    let needed = "as in the settings, or none";
    let why = "a node never changes a stream, and does not use one that differs";
    let of = |text: &str, verdict| check(kind, (format!("{name} {text}"), needed), verdict, why);
    match found {
        Existing::Missing => of("is not there: the first node creates it", CheckVerdict::Ok),
        Existing::Failed(error) => {
            advised(of("cannot be read", CheckVerdict::Must), [error.clone()])
        }
        Existing::Unknown => unread(kind, needed, "nobody has answered within 2 s"),
        Existing::There(stream) if !stream.info.differences.is_empty() => {
            let count = stream.info.differences.len() as u64;
            let text = format!("differs in {}", counted(count, "setting", "settings"));
            let lines = stream.info.differences.iter().map(|line| format!("{name}: {line}"));
            let edit = "change the settings of all nodes, or edit the stream (nats stream edit)";
            advised(of(&text, CheckVerdict::Must), lines.chain([edit.into()]))
        }
        Existing::There(stream) => {
            of_stream(of("is as the settings have it", CheckVerdict::Ok), name, stream)
        }
    }
}

/// The servers that have a stream.
fn of_stream(check: Check, name: &str, stream: &ExistingStream) -> Check {
    if !stream.has_leader {
        let check = Check { found: Some(format!("{name} has no leader")), ..check };
        let why = "nothing is stored until a majority of its servers is available";
        return Check { verdict: CheckVerdict::Must, why: why.into(), ..check };
    }
    let late = stream.peers.iter().filter_map(NatsPeer::fault);
    let late: Vec<String> = late.map(|fault| format!("{name}: {fault}")).collect();
    if late.is_empty() {
        return check;
    }
    let lacks = format!("{name} lacks {}", counted(late.len() as u64, "server", "servers"));
    let why = "losing another server may stop it";
    let check =
        Check { found: Some(lacks), verdict: CheckVerdict::Should, why: why.into(), ..check };
    advised(check, late)
}

fn replicas(found: &Examined, wanted: &WantedSettings<'_>) -> Check {
    let replicas = usize::from(wanted.stream.replicas);
    let servers = found.cluster.as_ref().map_or(1, |(_, count)| (*count).max(1));
    let verdict = match replicas {
        1 if found.cluster.is_some() && servers >= 3 => CheckVerdict::Should,
        // Servers need not announce all of their cluster.
        _ if replicas > 1 && found.cluster.is_none() => CheckVerdict::Must,
        _ => CheckVerdict::Ok,
    };
    let (needed, why) = if replicas > 1 {
        ("servers in a cluster", "each copy is on a different server")
    } else if servers >= 3 {
        ("3", "while the only server of the stream is down, nothing can be published")
    } else {
        ("1", "a single server has one copy; three survive the loss of one of them")
    };
    let text = format!("{replicas} on {}", counted(servers as u64, "server", "servers"));
    let edit = match verdict {
        CheckVerdict::Should => {
            Some("set nats-replicas = 3, and edit an existing stream".to_owned())
        }
        CheckVerdict::Must => {
            Some("set nats-replicas = 1, or run three servers as a cluster".to_owned())
        }
        _ => None,
    };
    advised(check("replicas", (text, needed), verdict, why), edit)
}

fn sync(monitor: Option<&Monitor>) -> Check {
    let needed = "sync_interval: always";
    let why = "with one copy, a power cut loses unsynced messages, and all ids begin anew";
    let advice = "set sync_interval: always in jetstream { } of a single server";
    let Some(syncs_always) = monitor.and_then(|monitor| monitor.syncs_always) else {
        let advice = "look for sync_interval: always in its jetstream { }, or give --nats-monitor";
        return Check { why: why.into(), ..unread("sync", needed, advice) };
    };
    let interval = monitor.and_then(|monitor| monitor.sync_interval);
    let text = match interval {
        _ if syncs_always => "always".to_owned(),
        Some(interval) => format!("every {}", Time(interval)),
        None => "not always".to_owned(),
    };
    let checked = check("sync", (text, needed), ok_or(syncs_always, CheckVerdict::Should), why);
    advised(checked, (!syncs_always).then(|| advice.to_owned()))
}

fn max_payload(found: &Examined, wanted: &WantedSettings<'_>) -> Check {
    let needed = wanted.message_bytes + HEADER_BYTES;
    let is_enough = found.max_payload >= needed;
    let shown = bytes(needed as f64);
    let found = bytes(found.max_payload as f64);
    let why = "larger messages get 413 too_large";
    let checked =
        check("max_payload", (found, &shown), ok_or(is_enough, CheckVerdict::Should), why);
    let advice = "raise max_payload of the servers, or lower max-message-bytes of the nodes";
    advised(checked, (!is_enough).then(|| advice.to_owned()))
}

/// Whether the stream can take the room that it is to have.
fn storage(
    found: &Examined,
    monitor: Option<&Monitor>,
    wanted: &WantedSettings<'_>,
) -> Option<Check> {
    let JetStream::Enabled(account) = &found.jetstream else { return None };
    let is_there = matches!(found.stream, Existing::There(_));
    let of_server = monitor
        .and_then(|monitor| Some(monitor.storage_max?.saturating_sub(monitor.storage_reserved)));
    let of_account = account.storage_max;
    let of_account =
        of_account.map(|most| most.saturating_sub(account.storage.max(account.reserved)));
    let free = [of_server, of_account].into_iter().flatten().min();
    let is_missing = |one: &&ExaminedTable| matches!(one.found, Existing::Missing);
    let missing = found.tables.iter().filter(is_missing);
    let tables: u64 = missing.map(|one| one.table.bytes_max).sum();
    let needed = tables + if is_there { 0 } else { wanted.stream.bytes_max };
    let text = match free {
        Some(free) => format!("{} free", bytes(free as f64)),
        None => format!("{} stored, no limit of the account", bytes(account.storage as f64)),
    };
    let shown =
        if needed == 0 { "the stream has its room".to_owned() } else { bytes(needed as f64) };
    let largest = if is_there { 0 } else { wanted.stream.bytes_max };
    let is_enough = free.is_none_or(|free| free >= needed)
        && account.stream_bytes_max.is_none_or(|most| most >= largest);
    let why = "servers do not create a stream that they may not have room for";
    let checked = check("storage", (text, &shown), ok_or(is_enough, CheckVerdict::Must), why);
    Some(advised(checked, (!is_enough).then(|| NatsLimit::Storage.remedy().to_owned())))
}

/// Whether the account may have all streams that nodes need.
fn streams(found: &Examined) -> Option<Check> {
    let JetStream::Enabled(account) = &found.jetstream else { return None };
    let free = account.streams_max?.saturating_sub(account.streams);
    let all = [&found.stream, &found.bucket].into_iter();
    let all = all.chain(found.tables.iter().map(|one| &one.found));
    let missing = all.filter(|one| matches!(one, Existing::Missing)).count() as u64;
    let is_enough = free >= missing;
    let text = format!("room for {}", counted(free, "stream", "streams"));
    let needed = if missing == 0 { "none is missing".into() } else { count(missing) };
    let why = "nodes keep messages in one, and what they share in buckets, which are streams";
    let checked = check("streams", (text, &needed), ok_or(is_enough, CheckVerdict::Must), why);
    Some(advised(checked, (!is_enough).then(|| NatsLimit::Streams.remedy().to_owned())))
}

fn connections(found: &Examined, monitor: Option<&Monitor>) -> Option<Check> {
    let (text, is_enough) = match monitor {
        _ if found.is_full => ("room for one".to_owned(), false),
        None => return None,
        Some(Monitor { connections, connections_max, .. }) => {
            let text = format!("{} of {}", count(*connections), count(*connections_max));
            (text, connections.saturating_mul(10) <= connections_max.saturating_mul(9))
        }
    };
    let why = "each node has one, a second one while it is upgraded, and reconnects to any server";
    let verdict = ok_or(is_enough, CheckVerdict::Should);
    let checked = check("connections", (text, "a tenth free"), verdict, why);
    Some(advised(checked, (!is_enough).then(|| NatsLimit::Connections.remedy().to_owned())))
}

fn subscriptions(found: &Examined, wanted: &WantedSettings<'_>) -> Check {
    let needed = wanted.followed.map(|followed| followed + SUBSCRIPTIONS_OWN);
    let is_enough = found.subscriptions.is_none_or(|room| needed.is_some_and(|most| most <= room));
    let text = match found.subscriptions {
        None => "no limit found".to_owned(),
        Some(room) => format!("{} at most", count(room as u64)),
    };
    let shown = match needed {
        None => "no limit".to_owned(),
        Some(needed) => {
            format!("{}, {SUBSCRIPTIONS_OWN} of them the node's own", count(needed as u64))
        }
    };
    let why = "each channel that clients follow takes one; others are polled, and late";
    if is_enough && needed.is_some_and(|needed| needed > SUBSCRIPTIONS_MAX) {
        let most = count(SUBSCRIPTIONS_MAX as u64);
        let advice = format!(
            "there is room for {most}, and more are not tried: look for \
                              max_subscriptions of the servers, and for that of the account"
        );
        return Check { why: why.into(), ..unread("channels", &shown, &advice) };
    }
    let verdict = ok_or(is_enough, CheckVerdict::Should);
    let advice = (!is_enough).then(|| NatsLimit::Subscriptions.remedy().to_owned());
    advised(check("channels", (text, &shown), verdict, why), advice)
}

fn permissions(found: &Examined, verb: Verb) -> Check {
    let denied = found.denied.iter().filter(|permission| permission.verb == verb);
    let missing: Vec<&str> = denied.map(|permission| permission.grant.as_str()).collect();
    let name = verb.word();
    let text = match missing.len() as u64 {
        0 => "all that a node needs".to_owned(),
        count => format!("{} not allowed", counted(count, "subject", "subjects")),
    };
    let why = "the guide \"From one node to many\" lists what a node does with each";
    let verdict = ok_or(missing.is_empty(), CheckVerdict::Must);
    let advice = (!missing.is_empty())
        .then(|| format!("allow this user to {name} to: {}", missing.join(", ")));
    advised(check(name, (text, "all that a node needs"), verdict, why), advice)
}

fn clock(found: &Examined) -> Check {
    let needed = "within 1 s";
    let Some(ahead_ms) = found.ahead_ms else {
        return unread("clock", needed, "servers tell their time once there is a stream");
    };
    let off_ms = ahead_ms.unsigned_abs();
    let side = if ahead_ms < 0 { "behind" } else { "ahead" };
    let text = format!("theirs is {} {side}", milliseconds(off_ms as f64));
    let why = "messages have the servers' times, and expire by them";
    let is_near = off_ms <= CLOCK_MS;
    let checked = check("clock", (text, needed), ok_or(is_near, CheckVerdict::Should), why);
    advised(checked, (!is_near).then(|| "synchronise the clocks of all machines (NTP)".to_owned()))
}

fn latency(found: &Examined) -> Vec<Check> {
    let why = "of one channel, a node has one publication under way at a time";
    let of = |name, times: &[Duration], most: Duration| {
        let (median, worst) = median_and_worst(times);
        let shown = |time: Duration| milliseconds(time.as_secs_f64() * 1e3);
        let text = format!("{}, worst {}, of {}", shown(median), shown(worst), times.len());
        let needed = format!("below {}", shown(most));
        check(name, (text, &needed), ok_or(median < most, CheckVerdict::Should), why)
    };
    let mut checks = vec![of("round trip", &found.round_trips, ROUND_TRIP)];
    match &found.stored {
        None => {}
        Some(Ok(stored)) => {
            checks.push(of("stored", &stored.stored, STORED));
            checks.push(of("republished", &stored.delivered, STORED));
        }
        Some(Err(error)) => {
            let text = ("a message was not stored".to_owned(), "an answer");
            checks.push(advised(check("stored", text, CheckVerdict::Must, why), [error.clone()]));
        }
    }
    checks
}

/// The middle one and the longest; nothing of nothing.
pub(super) fn median_and_worst(times: &[Duration]) -> (Duration, Duration) {
    let mut times = times.to_vec();
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    (median, times.last().copied().unwrap_or_default())
}

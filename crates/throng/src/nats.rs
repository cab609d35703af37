//! A node of several, whose channels are in a stream of NATS.

mod access;
mod arguments;
mod facts;
mod kept;
mod metrics;
mod peer;
mod revocations;
mod status;
mod succession;
mod tables;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use throng_access::{AccessControl, Policy};
use throng_core::events::EventSink;
use throng_core::{Channels, Epoch, IDEMPOTENCY_MS, MemoryEngine, Retention, Rules, clock};
use throng_nats::api::StreamSettings;
use throng_nats::client::NatsClientSettings;
use throng_nats::engine::{NatsEngine, NodeSettings};
use throng_nats::journal;

use crate::access::{RevocationSettings, RevocationsFile};
use crate::plane_settings::memory_plan;
use crate::settings::{self, Settings};

pub(crate) use access::NatsAccess;
pub(crate) use arguments::NatsFlags;
pub(crate) use facts::{describe, epoch_of_most, suspicions};
pub(crate) use metrics::NatsMetrics;
pub(crate) use peer::NatsPeer;
pub(crate) use succession::{Joining, pass_name};
pub(crate) use tables::tables;

/// The class of all channels: one stream has them all.
const CLASS: &str = "channels";

/// How long a publication is tried, in milliseconds: those who wait for it are told after five
/// seconds that its outcome is unknown.
const PUBLISH_MS: u64 = 4_000;

/// The largest message that settings allow, and its headers. The servers' `max_payload` is lower
/// mostly.
const MESSAGE_BYTES_MAX: u32 = (32 << 20) + (64 << 10);

/// Without a thread there is no node.
const NO_THREAD: &str = "cannot start the thread of the connection to NATS";

/// A stream without an age would keep everything.
const AGE_MS_MIN: u64 = 60_000;

/// Starts the node, if the settings have one and this process takes over from no other. `memory`
/// makes the engine for everything outside of the stream, with a sink of events. `policy` holds for
/// tokens.
pub(crate) fn start(
    (settings, policy): (&Settings, &Policy),
    room: (usize, usize),
    events: Option<Arc<dyn EventSink>>,
    memory: impl FnOnce(Option<Arc<dyn EventSink>>) -> MemoryEngine,
) -> Result<Option<(Arc<NatsEngine>, Arc<Channels>)>> {
    if !settings.engine.0 {
        return Ok(None);
    }
    let node = node((settings, policy), room, None)?;
    let engine = NatsEngine::start(node, events, |events| memory(Some(events)).with_all_listed())
        .context(NO_THREAD)?;
    let engine = Arc::new(engine);
    let channels = channels(&engine);
    Ok(Some((engine, channels)))
}

/// The settings of a node with as many workers, and room for as many bytes. It may be the one that
/// another process is, by its name.
fn node(
    (settings, policy): (&Settings, &Policy),
    (workers, max_cached_bytes): (usize, usize),
    successor_of: Option<String>,
) -> Result<NodeSettings> {
    let access = NatsAccess::of(settings);
    access.check()?;
    let stream = stream(settings, &settings::rules(settings));
    Ok(NodeSettings {
        client: NatsClientSettings {
            servers: settings.nats.addresses(),
            login: access.login(),
            tls: access.tls(),
            name: format!("throng {}", settings.listen),
            now_ms: clock::now_ms,
        },
        journal: journal::JournalSettings {
            tables: tables(settings, policy, &stream),
            stream,
            nonce: nonce(),
            successor_of,
            publish_ms: PUBLISH_MS,
        },
        markers: Some(tables::MARKERS),
        workers,
        max_cached_bytes,
        max_read_bytes: memory_plan(settings).1.parts,
        from_wall_ms: |wall_ms| clock::from_wall_ms(wall_ms).min(clock::now_ms()),
    })
}

/// Names this process to others in NATS: letters and digits that no other one has.
pub(crate) fn nonce() -> String {
    Epoch::random().to_string() + &Epoch::random().to_string()
}

/// All channels, over the node's journal.
fn channels(node: &Arc<NatsEngine>) -> Arc<Channels> {
    Arc::new(Channels::new(Arc::clone(node.memory()), Some(Arc::clone(node) as _)))
}

/// Tells the node, if there is one, how the connections of a user are found here, and shares what
/// users follow and what is revoked with the others. Returns the file of revocations of a server
/// that is alone, if it has one.
///
/// # Errors
///
/// An error of the system, if a thread cannot be started.
pub(crate) fn join(
    node: Option<(&Arc<NatsEngine>, &Arc<Channels>)>,
    access: &AccessControl,
    revocations: Option<RevocationSettings>,
) -> Result<Option<RevocationsFile>> {
    let Some((node, channels)) = node else {
        return Ok(revocations.and_then(RevocationSettings::file));
    };
    let tagger = access.tagger.clone();
    node.set_tags(move |user| tagger.of_user(user));
    if let Some(revocations) = revocations {
        let shared = revocations::share(node, access, |table| revocations.shared(table));
        let is_first = access.shared_revocations.set(shared).is_ok();
        debug_assert!(is_first);
    }
    kept::share(node, channels, access)?;
    Ok(None)
}

/// The stream of all channels: its retention is the largest of all rules. Reads leave out messages
/// beyond a channel's own rule.
pub(crate) fn stream(settings: &Settings, rules: &Rules) -> StreamSettings {
    let most = |of: fn(&Retention) -> u64| {
        rules.retentions().map(|retention| of(&retention)).max().unwrap_or(0)
    };
    let retention = Retention {
        max_messages: most(|retention| retention.max_messages as u64) as usize,
        max_bytes: most(|retention| retention.max_bytes as u64) as usize,
        max_age_ms: most(|retention| retention.max_age_ms).max(AGE_MS_MIN),
    };
    StreamSettings {
        prefix: settings.nats_prefix.0.clone(),
        class: CLASS.into(),
        replicas: settings.nats_replicas.0,
        is_in_memory: false,
        retention,
        bytes_max: settings.history.total_bytes.0 as u64,
        message_bytes_max: MESSAGE_BYTES_MAX,
        duplicate_window_ms: IDEMPOTENCY_MS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_keeps_what_any_rule_keeps() {
        let of = |text: &str| {
            let settings = settings::read_text(text).unwrap();
            stream(&settings, &settings::rules(&settings))
        };
        let found = of("
            nats-prefix = 'chat'
            history = { messages = 7, age = '2h', total-bytes = '3MiB' }
            [[channels]]
            match = 'a'
            messages = 9
            age = '1h'
            [[channels]]
            users = '*'
            messages = 0
        ");
        assert_eq!((found.name(), found.bytes_max), ("chat-channels".into(), 3 << 20));
        assert_eq!((found.retention.max_messages, found.retention.max_age_ms), (9, 7_200_000));
        let none = of("history = { messages = 0, age = 0 }");
        assert_eq!((none.per_channel(), none.retention.max_age_ms), (1, AGE_MS_MIN));
    }
}

//! How the settings relate to each other, and what no setting may be.

use std::time::Duration;

use throng_edge::HEAD_BYTES_MAX;
use throng_edge::start::WORKERS_MAX;

use super::channels::TABLES_MAX;
use super::written::Automatic;
use super::{Settings, SettingsError};

/// Every request of an ordinary browser fits; less would refuse them all.
const HEAD_BYTES_MIN: usize = 1024;

/// A message is copied to a worker's queue as one piece, which holds 64 MiB.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// With less, one answer of an ordinary size would be too much.
const HELD_BYTES_MIN: usize = 1 << 20;

/// The sweep over all connections needs some time.
const HEARTBEAT_MIN: Duration = Duration::from_secs(1);

/// A connection's id names its place in each channel: it must still fit into a head.
const CHANNELS_MAX: usize = 10_000;

/// Refuses what cannot work, with one sentence that says what to change.
pub fn check(settings: &Settings) -> Result<(), SettingsError> {
    let fault = address(settings)
        .or_else(|| admin(settings))
        .or_else(|| limits(settings))
        .or_else(|| times(settings))
        .or_else(|| behind(settings))
        .or_else(|| channels(settings));
    fault.map_or(Ok(()), |sentence| Err(SettingsError(sentence)))
}

fn address(settings: &Settings) -> Option<String> {
    let address = settings.listen;
    let is_open = !address.0.ip().to_canonical().is_loopback() && !settings.allow_anyone.0;
    is_open.then(|| {
        format!(
            "refusing to listen on {address}: others can reach it, and nothing checks who may \
             read and publish; listen on 127.0.0.1 behind a proxy that checks, or add \
             --allow-anyone if everybody may"
        )
    })
}

fn admin(settings: &Settings) -> Option<String> {
    let Some(address) = settings.admin_listen.0 else {
        return (!settings.clients_publish.0).then(|| {
            "clients-publish = false leaves no way to publish; add --admin-listen 127.0.0.1:9090, \
             which takes messages from your application"
                .into()
        });
    };
    if address == settings.listen.0 && address.port() != 0 {
        return Some(format!(
            "listen and admin-listen are both {address}; give one of them another port"
        ));
    }
    let is_open = !address.ip().to_canonical().is_loopback() && !settings.admin_allow_anyone.0;
    is_open.then(|| {
        format!(
            "refusing to listen on {address} for administration: others can reach it, and nothing \
             checks who sees the status or publishes; listen on 127.0.0.1, or add \
             --admin-allow-anyone if a firewall or the container's network keeps others out"
        )
    })
}

fn limits(settings: &Settings) -> Option<String> {
    let (head, message, batch) =
        (settings.max_head_bytes, settings.max_message_bytes, settings.max_batch_bytes);
    if !(HEAD_BYTES_MIN..=HEAD_BYTES_MAX).contains(&head.0) {
        return Some(format!("max-head-bytes must be between 1KiB and 64KiB, not {head}"));
    }
    if !(1..=MESSAGE_BYTES_MAX).contains(&message.0) {
        return Some(format!("max-message-bytes must be between 1 and 32MiB, not {message}"));
    }
    if message > batch {
        return Some(format!(
            "max-message-bytes ({message}) is more than max-batch-bytes ({batch}); \
             a batch must be able to hold one message"
        ));
    }
    let channels = settings.max_channels_per_connection;
    if !(1..=CHANNELS_MAX).contains(&channels.0) {
        return Some(format!(
            "max-channels-per-connection must be between 1 and {CHANNELS_MAX}, not {channels}"
        ));
    }
    let held = settings.max_held_bytes;
    if held.0 < HELD_BYTES_MIN {
        return Some(format!("max-held-bytes must be at least 1MiB, not {held}"));
    }
    match settings.workers {
        Automatic::Count(workers) if workers > WORKERS_MAX => {
            Some(format!("workers must be at most {WORKERS_MAX}, not {workers}"))
        }
        _ => None,
    }
}

fn times(settings: &Settings) -> Option<String> {
    for (key, interval) in
        [("heartbeat", settings.heartbeat), ("ping-interval", settings.ping_interval)]
    {
        if !interval.0.is_zero() && interval.0 < HEARTBEAT_MIN {
            return Some(format!("{key} must be at least 1s, or 0 for none, not {interval}"));
        }
    }
    for (key, time) in
        [("head-timeout", settings.head_timeout), ("idle-timeout", settings.idle_timeout)]
    {
        if time.0.is_zero() {
            return Some(format!(
                "{key} must be more than 0: connections without a request would pile up"
            ));
        }
    }
    None
}

/// A subscriber must be able to be behind by one message, or it could never get any.
fn behind(settings: &Settings) -> Option<String> {
    let message = settings.max_message_bytes;
    if settings.behind.messages.0 == 0 {
        return Some("behind.messages must be at least 1, or no subscriber gets a message".into());
    }
    (settings.behind.bytes < message).then(|| {
        format!(
            "behind.bytes ({}) is less than max-message-bytes ({message}); \
             a subscriber must be able to wait for one message",
            settings.behind.bytes
        )
    })
}

fn channels(settings: &Settings) -> Option<String> {
    if settings.channels.len() > TABLES_MAX {
        return Some(format!("there are more than {TABLES_MAX} [[channels]] tables"));
    }
    let message = settings.max_message_bytes;
    settings.channels.iter().zip(1..).find_map(|(table, nth)| {
        if let Some(fault) = table.fault() {
            return Some(format!("[[channels]] number {nth} {fault}"));
        }
        if table.behind_messages.is_some_and(|messages| messages.0 == 0) {
            return Some(format!("[[channels]] number {nth}: behind-messages must be at least 1"));
        }
        let bytes = table.behind_bytes.filter(|bytes| *bytes < message)?;
        Some(format!(
            "[[channels]] number {nth}: behind-bytes ({bytes}) is less than \
             max-message-bytes ({message})"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::file;

    fn fault(text: &str) -> Option<String> {
        let settings = file::read("throng.toml", text).unwrap().resolve();
        check(&settings).err().map(|error| error.to_string())
    }

    #[test]
    fn what_works_is_accepted() {
        for text in [
            "",
            "listen = '[::1]:0'",
            "listen = '127.9.9.9:80'",
            "listen = '0.0.0.0:80'\nallow-anyone = true",
            "admin-listen = '127.0.0.1:0'\nclients-publish = false",
            "admin-listen = '0.0.0.0:0'\nadmin-allow-anyone = true",
            "heartbeat = 0",
            "history = { messages = 0 }",
            "max-message-bytes = '1MiB'",
            "[[channels]]\nusers = '*'\nage = 0",
        ] {
            assert_eq!(fault(text), None, "{text}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (text, expected) in [
            ("listen = '0.0.0.0:8080'", "refusing to listen on 0.0.0.0:8080: others can reach it"),
            ("clients-publish = false", "clients-publish = false leaves no way to publish"),
            (
                "listen = '127.0.0.1:1'\nadmin-listen = 1",
                "listen and admin-listen are both 127.0.0.1:1; give one of them another port",
            ),
            (
                "admin-listen = '0.0.0.0:1'\nallow-anyone = true",
                "refusing to listen on 0.0.0.0:1 for administration: others can reach it",
            ),
            ("listen = '[::]:8080'", "refusing to listen on [::]:8080"),
            ("max-message-bytes = '9MiB'", "max-message-bytes (9MiB) is more than max-batch-bytes"),
            ("max-message-bytes = 0", "max-message-bytes must be between"),
            ("max-head-bytes = 100", "max-head-bytes must be between 1KiB and 64KiB, not 100"),
            ("max-head-bytes = \"65KiB\"", "max-head-bytes must be between 1KiB and 64KiB, not"),
            ("heartbeat = '500ms'", "heartbeat must be at least 1s, or 0 for none, not 500ms"),
            (
                "ping-interval = '500ms'",
                "ping-interval must be at least 1s, or 0 for none, not 500ms",
            ),
            ("head-timeout = 0", "head-timeout must be more than 0"),
            ("max-channels-per-connection = 0", "max-channels-per-connection must be between"),
            ("behind = { bytes = 1000 }", "behind.bytes (1000) is less than max-message-bytes"),
            ("behind = { messages = 0 }", "behind.messages must be at least 1"),
            ("[[channels]]\nage = 0", "[[channels]] number 1 does not say for whom"),
            ("[[channels]]\nmatch = 'a'\nusers = 'b'", "[[channels]] number 1 has both"),
            ("[[channels]]\nmatch = ''", "[[channels]] number 1 matches nothing"),
            (
                "[[channels]]\nmatch = '*'\n[[channels]]\nusers = '*'\nbehind-bytes = 1",
                "[[channels]] number 2: behind-bytes (1) is less than max-message-bytes (64KiB)",
            ),
        ] {
            let fault = fault(text).unwrap_or_default();
            assert!(fault.starts_with(expected), "{text}: {fault}");
        }
    }
}

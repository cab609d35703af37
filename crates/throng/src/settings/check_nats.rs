//! Which settings several nodes can have.

use std::time::Duration;

use throng_units::{Count, Time};

use super::channels::ChannelTable;
use super::table::Settings;
use super::values::LogPlace;

/// A channel is read as a whole, in parts of a thousand messages, for its newest ones.
const MESSAGES_MAX: usize = 10_000;

/// Servers of NATS count ages in nanoseconds, with 63 bits.
const AGE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Rejects what does not work over NATS, or works there only.
pub(super) fn nats(settings: &Settings) -> Option<String> {
    if !settings.engine.0 {
        let set = [
            ("nats", !settings.nats.0.is_empty()),
            ("nats-login", settings.nats_login.0.is_some()),
            ("nats-ca", settings.nats_ca.0.is_some()),
            ("nats-cert", settings.nats_cert.0.is_some()),
            ("nats-key", settings.nats_key.0.is_some()),
            ("nats-tls-first", settings.nats_tls_first.0),
            ("nats-replicas", settings.nats_replicas.0 > 1),
        ];
        let (key, _) = set.into_iter().find(|(_, is_set)| *is_set)?;
        return Some(format!("{key} has no effect without engine = nats"));
    }
    if settings.nats.0.is_empty() {
        return Some(
            "engine = nats needs servers of NATS JetStream; set nats, like nats = \
             'nats://10.0.0.1:4222'"
                .into(),
        );
    }
    if let Some(path) = &settings.revocations_file.0
        && settings.records_journal() == LogPlace::Nats
    {
        return Some(format!(
            "engine = nats and revocations-file = {} exclude each other: revocations are in NATS, \
             for all nodes",
            path.display()
        ));
    }
    connection(settings).or_else(|| retention(settings))
}

fn connection(settings: &Settings) -> Option<String> {
    if settings.nats_cert.0.is_some() != settings.nats_key.0.is_some() {
        return Some("nats-cert and nats-key need each other; set both".into());
    }
    let is_tls = settings.nats_ca.0.is_some() || settings.nats_cert.0.is_some();
    let plain = || settings.nats.addresses().into_iter().find(|server| !server.is_tls);
    let plain = plain().filter(|_| settings.nats_tls_first.0 && !is_tls)?;
    Some(format!(
        "nats-tls-first begins TLS at once, which {plain} does not say; name each server as tls://"
    ))
}

/// The tables whose channels are in the stream, with their numbers.
fn tables_in_nats(settings: &Settings) -> impl Iterator<Item = (usize, &ChannelTable)> {
    let tables = (1..).zip(&settings.channels);
    tables.filter(|(_, table)| settings.journal_of(table) == LogPlace::Nats)
}

fn retention(settings: &Settings) -> Option<String> {
    let history = &settings.history;
    let tables = tables_in_nats(settings).map(|(nth, table)| {
        let key = format!("[[channels]] number {nth}:");
        (key, table.messages.unwrap_or(history.messages), table.age.unwrap_or(history.age))
    });
    let all = std::iter::once(("history:".to_owned(), history.messages, history.age));
    all.chain(tables).find_map(|(key, messages, age)| {
        if messages.0 > MESSAGES_MAX {
            let most = Count(MESSAGES_MAX).short();
            return Some(format!(
                "{key} messages must be at most {most} with engine = nats, not {messages}"
            ));
        }
        let most = Time(AGE_MAX);
        (age.0 > AGE_MAX)
            .then(|| format!("{key} age must be at most {most} with engine = nats, not {age}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::read_text;

    #[test]
    fn what_does_not_work_over_nats_is_rejected() {
        for (text, expected) in [
            ("nats = ['nats://a']", "nats has no effect without engine = nats"),
            ("nats-login = 'a'", "nats-login has no effect without engine = nats"),
            ("nats-key = 'a'", "nats-key has no effect without engine = nats"),
            ("nats-tls-first = true", "nats-tls-first has no effect without engine = nats"),
            ("nats-replicas = 3", "nats-replicas has no effect without engine = nats"),
            (
                "engine = 'nats'\nnats = 'a'\nnats-cert = 'c'",
                "nats-cert and nats-key need each other",
            ),
            (
                "engine = 'nats'\nnats = ['tls://a', 'b']\nnats-tls-first = true",
                "nats-tls-first begins TLS at once, which nats://b:4222 does not say",
            ),
            ("engine = 'nats'", "engine = nats needs servers of NATS JetStream; set nats"),
            (
                "engine = 'nats'\nnats = 'a'\nrevocations-file = '/r'\n\
                 [[token-keys]]\nsecret-file = 's'",
                "engine = nats and revocations-file = /r exclude each other",
            ),
            (
                "engine = 'nats'\nnats = 'a'\nhistory = { messages = 10001 }",
                "history: messages must be at most 10k with engine = nats, not 10001",
            ),
            (
                "engine = 'nats'\nnats = 'a'\n[[channels]]\nusers = '*'\nage = '400d'",
                "[[channels]] number 1: age must be at most 366d with engine = nats, not 400d",
            ),
        ] {
            let found = nats(&read_text(text).unwrap()).unwrap_or_default();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
        for text in [
            "",
            "engine = 'memory'\nhistory = { messages = 100000 }",
            "engine = 'nats'\nnats = ['a', 'nats://b:1']\nnats-login = 'c'\nnats-prefix = 'd'",
            "engine = 'nats'\nnats = 'a'\nnats-ca = 'c'\nnats-tls-first = true",
            "engine = 'nats'\nnats = 'tls://a'\nnats-tls-first = true",
            "engine = 'nats'\nnats = 'a'\ndata = '/d'",
            "engine = 'nats'\nnats = 'a'\npresence = { events = true }",
            "engine = 'nats'\nnats = 'a'\npresence = { members = 'user' }",
            "engine = 'nats'\nnats = 'a'\n[[channels]]\nmatch = 'a'\nmembers = 'user'",
            "engine = 'nats'\nnats = 'a'\n[[channels]]\nmatch = 'a'\njournal = 'memory'\n\
             local = true\npresence-events = true\nmessages = 20000\nage = '400d'",
            "engine = 'nats'\nnats = 'a'\nrecords = 'memory'\nrevocations-file = '/r'",
        ] {
            assert_eq!(nats(&read_text(text).unwrap()), None, "{text}");
        }
    }
}

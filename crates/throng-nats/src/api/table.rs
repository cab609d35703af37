//! A table that every node has whole: a bucket whose entries the servers republish.
//!
//! Nodes take its entries in their order. Those of a table of [changes](TableKind::Changes) are
//! changes, of which the stream has several of each key: so two nodes that write the same key at
//! the same time do not depend on which of them is the last. Those of a table of
//! [states](TableKind::States) are all that there is to say about their key, so the last one is
//! enough, and whoever writes one says which it replaces.
//!
//! A table [on demand](TableKind::OnDemand) is a bucket like others, of which nodes have nothing.

use serde_json::{Value, json};

use super::stream::{self, StreamInfo};
use super::{FORMAT, FORMAT_KEY, JetStreamError, StreamSettings};
use crate::protocol::headers::{HeaderWriter, Headers};

/// Entries of one key of a table of changes, of which the last one holds for who reads it with the
/// tools of NATS.
const CHANGES_PER_KEY: u32 = 8;

/// The kind of a table's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// Changes, each of which matters.
    Changes,
    /// The state of their key, of which the last one matters.
    States,
    /// The same, which nodes read when they need it. Those that do not fit are dropped, the oldest
    /// first.
    OnDemand,
}

/// A table of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSettings {
    /// Its name, after the prefix of the installation: one token of a subject.
    pub name: String,
    pub kind: TableKind,
    /// For how long an entry matters, in milliseconds; 0 if for ever.
    pub max_age_ms: u64,
    /// Size limit on each server in bytes, unless somebody edits it. Beyond it changes are refused.
    pub bytes_max: u64,
    /// The largest entry, in bytes, with its headers.
    pub entry_bytes_max: u32,
}

/// One entry, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// Its key: one or more tokens of a subject.
    pub key: Box<str>,
    /// Its value; `None` if it was removed.
    pub value: Option<Box<[u8]>>,
}

/// An entry that the table has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    pub entry: TableEntry,
    /// Its place among all entries of the table, which grows.
    pub sequence: u64,
}

/// The names of a table in NATS.
#[derive(Debug, Clone)]
pub(crate) struct TableNames {
    /// The stream that is the bucket.
    pub(crate) stream: String,
    /// The subjects of entries start with this.
    pub(crate) keys: String,
    /// Prefix of republished subjects.
    pub(crate) live: String,
}

impl TableNames {
    pub(crate) fn new(prefix: &str, name: &str) -> TableNames {
        TableNames {
            stream: format!("KV_{prefix}-{name}"),
            keys: format!("$KV.{prefix}-{name}."),
            live: format!("{prefix}.table.{name}."),
        }
    }

    /// The entry that a message of the stream is; `None` if it is of no table.
    pub(crate) fn entry(&self, headers: Headers<'_>, payload: &[u8]) -> Option<StoredEntry> {
        let key = headers.get("Nats-Subject")?.strip_prefix(&*self.keys)?.into();
        let is_removed = matches!(headers.get("KV-Operation"), Some("DEL" | "PURGE"));
        let entry = TableEntry { key, value: (!is_removed).then(|| payload.into()) };
        Some(StoredEntry { entry, sequence: headers.number("Nats-Sequence")? })
    }
}

/// The configuration of a table's stream, which every client of NATS recognises as a bucket.
pub(crate) fn config(
    names: &TableNames,
    settings: &TableSettings,
    (replicas, is_memory): (u8, bool),
) -> Value {
    let (src, dest) = (format!("{}>", names.keys), format!("{}>", names.live));
    let (per_key, republish) = match settings.kind {
        TableKind::Changes => (CHANGES_PER_KEY, json!({ "src": src, "dest": dest })),
        TableKind::OnDemand => (1, Value::Null),
        // Nodes read them from the stream: of what is republished they need the sequence.
        TableKind::States => (1, json!({ "src": src, "dest": dest, "headers_only": true })),
    };
    json!({
        "name": names.stream,
        "subjects": [format!("{}>", names.keys)],
        "retention": "limits",
        "discard": if settings.kind == TableKind::OnDemand { "old" } else { "new" },
        "storage": if is_memory { "memory" } else { "file" },
        "num_replicas": replicas,
        "max_msgs_per_subject": per_key,
        "max_age": settings.max_age_ms.saturating_mul(1_000_000),
        "max_bytes": settings.bytes_max,
        "max_msgs": -1,
        "max_msg_size": settings.entry_bytes_max,
        "max_consumers": -1,
        "allow_direct": true,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "republish": republish,
        "metadata": { FORMAT_KEY: FORMAT },
    })
}

/// The name of the stream of a table, and how it has to be: for those who examine servers.
pub fn wanted(stream: &StreamSettings, table: &TableSettings) -> (String, Value) {
    let names = TableNames::new(&stream.prefix, &table.name);
    let config = config(&names, table, (stream.replicas, stream.is_in_memory));
    (names.stream, config)
}

/// Reads the answer to a request for, or to create, a table. One that keeps entries longer than is
/// wanted is as good, and how much it may take is for its operator to say.
///
/// # Errors
///
/// The server's error, or an unreadable answer.
pub fn parse(payload: &[u8], wanted: &Value) -> Result<StreamInfo, JetStreamError> {
    let age_ns = wanted["max_age"].as_u64().unwrap_or(0);
    let mut others = wanted.clone();
    for key in ["max_age", "max_bytes"] {
        others.as_object_mut().map(|fields| fields.remove(key));
    }
    let mut info = stream::parse(payload, &others)?;
    let found_ns = info.max_age_ns;
    if found_ns != 0 && (found_ns < age_ns || age_ns == 0) {
        let wanted = if age_ns == 0 { "0".into() } else { format!("at least {age_ns}") };
        info.differences.push(format!("max_age is {found_ns}, but should be {wanted}"));
    }
    Ok(info)
}

/// The headers of an entry, which removes its key or has a value, and may be stored only in place
/// of the entry with this sequence.
pub fn headers(is_removal: bool, replaces: Option<u64>) -> Vec<u8> {
    let mut headers = HeaderWriter::default();
    if is_removal {
        headers = headers.field("KV-Operation", "DEL");
    }
    if let Some(last) = replaces {
        headers = headers.field("Nats-Expected-Last-Subject-Sequence", last);
    }
    headers.finish()
}

/// The request for the number of keys like this one, or to remove their entries.
pub(crate) fn match_keys(keys: &str, removes: bool) -> Vec<u8> {
    let field = if removes { "filter" } else { "subjects_filter" };
    json!({ field: keys }).to_string().into_bytes()
}

/// Reads the answer: the number of them.
pub(crate) fn matched(payload: &[u8], removes: bool) -> Option<u64> {
    let answer: Value = serde_json::from_slice(payload).ok()?;
    if !answer["error"].is_null() {
        return None;
    }
    if removes {
        return answer["purged"].as_u64();
    }
    let subjects = &answer["state"]["subjects"];
    // Without any there is no such field.
    answer["state"].is_object().then(|| subjects.as_object().map_or(0, |all| all.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(kind: TableKind, max_age_ms: u64) -> TableSettings {
        let (bytes_max, entry_bytes_max) = (1 << 20, 1 << 10);
        TableSettings { name: "t".into(), kind, max_age_ms, bytes_max, entry_bytes_max }
    }

    #[test]
    fn entries_are_told_apart_from_removals() {
        let names = TableNames::new("chat", "revocations");
        let entry = |block: &str| names.entry(Headers::new(block.as_bytes()), b"x");
        let put =
            "NATS/1.0\r\nNats-Subject: $KV.chat-revocations.user.ann\r\nNats-Sequence: 7\r\n\r\n";
        let removed = put.replace("\r\n\r\n", "\r\nKV-Operation: DEL\r\n\r\n");
        let found = |value| {
            let entry = TableEntry { key: "user.ann".into(), value };
            Some(StoredEntry { entry, sequence: 7 })
        };
        assert_eq!(entry(put), found(Some((*b"x").into())));
        assert_eq!(entry(&removed), found(None));
        assert_eq!(entry(&put.replace(": 7", ": x")), None);
        assert_eq!(entry("NATS/1.0\r\nNats-Subject: $KV.chat-epochs.a\r\n\r\n"), None);
        assert_eq!(entry(""), None);
    }

    #[test]
    fn a_table_that_keeps_entries_longer_or_takes_more_is_as_good() {
        let names = TableNames::new("chat", "t");
        let of = |age_ms| config(&names, &settings(TableKind::Changes, age_ms), (1, false));
        let (wanted, for_ever) = (of(1_000), of(0));
        let differs = |wanted: &Value, age: Value| {
            let mut found = wanted.clone();
            (found["max_age"], found["max_bytes"]) = (age, (-1).into());
            let answer = json!({ "config": found, "state": {} });
            parse(answer.to_string().as_bytes(), wanted).map(|info| info.differences.len())
        };
        let differences = |age: Value| differs(&wanted, age);
        assert_eq!(differs(&for_ever, 0.into()), Ok(0));
        assert_eq!(differs(&for_ever, 1_000_000_000u64.into()), Ok(1));
        assert_eq!(differences(1_000_000_000u64.into()), Ok(0));
        assert_eq!(differences(2_000_000_000u64.into()), Ok(0));
        assert_eq!(differences(0.into()), Ok(0), "for ever");
        assert_eq!(differences(999_999_999u64.into()), Ok(1));
    }

    #[test]
    fn matching_entries_are_counted() {
        let counted = |answer: &[u8]| matched(answer, false);
        assert_eq!(counted(br#"{"state":{"subjects":{"a.b":1,"a.c":1}}}"#), Some(2));
        assert_eq!(counted(br#"{"state":{"messages":3}}"#), Some(0));
        assert_eq!(counted(br#"{"error":{"code":404},"state":{}}"#), None);
        let purged = |answer: &[u8]| matched(answer, true);
        assert_eq!(purged(br#"{"success":true,"purged":5}"#), Some(5));
        assert_eq!(purged(br#"{"error":{"code":500}}"#), None);
        assert_eq!(purged(b"?"), None);
    }
}

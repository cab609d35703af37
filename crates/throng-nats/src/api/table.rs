//! A table that every node has whole: a bucket whose entries the servers republish.
//!
//! Its stream has several entries of each key, and nodes take all of them in order. So two nodes
//! that write the same key at the same time do not depend on which of them is the last.

use serde_json::{Value, json};

use super::stream::{self, StreamInfo};
use super::{ApiError, StreamSettings};
use crate::protocol::headers::Headers;

/// What a table may take on each server, in bytes. Beyond it changes are refused.
const BYTES_MAX: u64 = 64 << 20;

/// The largest entry, in bytes, with its headers.
const ENTRY_BYTES_MAX: u32 = 16 << 10;

/// Entries of one key, of which the last one holds for who reads it with the tools of NATS.
const ENTRIES_PER_KEY: u32 = 8;

/// The format of what a table stores. Another one is another table.
const FORMAT: &str = "1";

/// A table of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSettings {
    /// Its name, after the prefix of the installation: one token of a subject.
    pub name: String,
    /// For how long an entry matters, in milliseconds.
    pub max_age_ms: u64,
}

/// One entry, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// Its key: one or more tokens of a subject.
    pub key: Box<str>,
    /// Its value; `None` if it was removed.
    pub value: Option<Box<[u8]>>,
}

/// The names of a table in NATS.
#[derive(Debug, Clone)]
pub(crate) struct TableNames {
    /// The stream that is the bucket.
    pub(crate) stream: String,
    /// The subjects of entries start with this.
    pub(crate) keys: String,
    /// What is republished starts with this.
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
    pub(crate) fn entry(&self, headers: Headers<'_>, payload: &[u8]) -> Option<TableEntry> {
        let key = headers.get("Nats-Subject")?.strip_prefix(&*self.keys)?.into();
        let is_removed = matches!(headers.get("KV-Operation"), Some("DEL" | "PURGE"));
        Some(TableEntry { key, value: (!is_removed).then(|| payload.into()) })
    }
}

/// The configuration of a table's stream, which every client of NATS recognises as a bucket.
pub(crate) fn config(names: &TableNames, max_age_ms: u64, replicas: u8, is_memory: bool) -> Value {
    json!({
        "name": names.stream,
        "subjects": [format!("{}>", names.keys)],
        "retention": "limits",
        "discard": "new",
        "storage": if is_memory { "memory" } else { "file" },
        "num_replicas": replicas,
        "max_msgs_per_subject": ENTRIES_PER_KEY,
        "max_age": age_ns(max_age_ms),
        "max_bytes": BYTES_MAX,
        "max_msgs": -1,
        "max_msg_size": ENTRY_BYTES_MAX,
        "max_consumers": -1,
        "allow_direct": true,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "republish": {
            "src": format!("{}>", names.keys),
            "dest": format!("{}>", names.live),
        },
        "metadata": { "throng.format": FORMAT },
    })
}

fn age_ns(age_ms: u64) -> u64 {
    age_ms.saturating_mul(1_000_000)
}

/// The name of the stream of a table, and how it has to be: for those who examine servers.
pub fn wanted(stream: &StreamSettings, table: &TableSettings) -> (String, Value) {
    let names = TableNames::new(&stream.prefix, &table.name);
    let config = config(&names, table.max_age_ms, stream.replicas, stream.is_in_memory);
    (names.stream, config)
}

/// Reads the answer to a request for, or to create, a table. One that keeps entries longer than is
/// wanted is as good.
///
/// # Errors
///
/// What the server says, or that its answer cannot be read.
pub fn parse(payload: &[u8], wanted: &Value) -> Result<StreamInfo, ApiError> {
    let age_ns = wanted["max_age"].as_u64().unwrap_or(0);
    let mut others = wanted.clone();
    others.as_object_mut().map(|fields| fields.remove("max_age"));
    let mut info = stream::parse(payload, &others)?;
    if info.max_age_ns != 0 && info.max_age_ns < age_ns {
        let found_ns = info.max_age_ns;
        info.differences.push(format!("max_age is {found_ns}, but should be at least {age_ns}"));
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_apart_from_removals() {
        let names = TableNames::new("chat", "revocations");
        let entry = |block: &str| names.entry(Headers::new(block.as_bytes()), b"x");
        let put = "NATS/1.0\r\nNats-Subject: $KV.chat-revocations.user.ann\r\n\r\n";
        let removed = put.replace("\r\n\r\n", "\r\nKV-Operation: DEL\r\n\r\n");
        let key = || "user.ann".into();
        assert_eq!(entry(put), Some(TableEntry { key: key(), value: Some((*b"x").into()) }));
        assert_eq!(entry(&removed), Some(TableEntry { key: key(), value: None }));
        assert_eq!(entry("NATS/1.0\r\nNats-Subject: $KV.chat-epochs.a\r\n\r\n"), None);
        assert_eq!(entry(""), None);
    }

    #[test]
    fn a_table_that_keeps_entries_longer_is_as_good() {
        let wanted = config(&TableNames::new("chat", "revocations"), 1_000, 1, false);
        let differences = |age: Value| {
            let mut found = wanted.clone();
            found["max_age"] = age;
            let answer = json!({ "config": found, "state": {} });
            parse(answer.to_string().as_bytes(), &wanted).map(|info| info.differences.len())
        };
        assert_eq!(differences(1_000_000_000u64.into()), Ok(0));
        assert_eq!(differences(2_000_000_000u64.into()), Ok(0));
        assert_eq!(differences(0.into()), Ok(0), "for ever");
        assert_eq!(differences(999_999_999u64.into()), Ok(1));
    }
}

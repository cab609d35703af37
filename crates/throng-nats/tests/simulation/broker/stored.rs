//! Messages as the model stores them.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use throng_core::Attributes;
use throng_nats::protocol::headers::Headers;

/// A stored message.
#[derive(Debug, Clone)]
pub(crate) struct StoredBytes {
    pub(crate) subject: String,
    pub(crate) headers: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(super) at_ms: u64,
}

impl StoredBytes {
    /// The key that it sets or removes, and whether it removes it.
    pub(crate) fn key(&self) -> Option<(String, bool)> {
        let block = Headers::new(&self.headers).get("Throng-Attributes")?;
        let attributes = Attributes::read(&URL_SAFE_NO_PAD.decode(block).ok()?).ok()?;
        Some((attributes.key()?.to_owned(), attributes.removes_key()))
    }

    /// True if nodes renew it while it is the last one of its subject, or it is younger.
    pub(super) fn can_be_renewed(&self) -> bool {
        let of = |kind: &str| self.subject.starts_with(&format!("throng.in.default.{kind}."));
        of("i") || (of("k") && self.key().is_none_or(|(_, is_tombstone)| !is_tombstone))
    }
}

/// True if a subject is wanted, which may have a wildcard at its end.
pub(super) fn is_wanted(subject: &str, wanted: &str) -> bool {
    match (wanted.strip_suffix('>'), wanted.strip_suffix('*')) {
        (Some(start), _) => subject.starts_with(start),
        (_, Some(start)) => subject.strip_prefix(start).is_some_and(|rest| !rest.contains('.')),
        _ => subject == wanted,
    }
}

/// A time, as servers write it.
pub(super) fn time_text(at_ms: u64) -> String {
    let (seconds, rest) = (at_ms / 1_000, at_ms % 1_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    assert!(hours < 24, "no world lasts for a day");
    format!("1970-01-01T{hours:02}:{minutes:02}:{:02}.{rest:03}Z", seconds % 60)
}

/// The subjects that a request names, of which an answer has few here, and how many there are.
pub(super) fn named<'a>(
    messages: &'a BTreeMap<u64, StoredBytes>,
    asked: &Value,
) -> (BTreeMap<&'a str, u64>, usize) {
    let Some(filter) = asked["subjects_filter"].as_str() else { return Default::default() };
    let all = messages.values().map(|stored| &*stored.subject);
    let all: BTreeSet<_> = all.filter(|subject| is_wanted(subject, filter)).collect();
    let offset = asked["offset"].as_u64().unwrap_or(0) as usize;
    (all.iter().skip(offset).take(3).map(|subject| (*subject, 1)).collect(), all.len())
}

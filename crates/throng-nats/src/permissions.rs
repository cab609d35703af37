//! Permissions that a node needs in NATS, and a check for them that changes nothing.

use serde_json::json;

use crate::api::{StreamSettings, bucket, consumer};
use crate::protocol::headers::HeaderWriter;
use crate::subject::Subjects;

/// The name of no stream and of no channel that matters.
const NOBODY: &str = "throng-doctor";

/// The tables that nodes share; the last one belongs to nodes with keys.
const TABLES: [&str; 4] = ["subscriptions", "markers", "keys", "revocations"];

/// An operation on a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Publish,
    Subscribe,
}

impl Verb {
    /// The name of the verb, as the configuration of servers has it.
    pub fn word(self) -> &'static str {
        match self {
            Verb::Publish => "publish",
            Verb::Subscribe => "subscribe",
        }
    }
}

/// One thing that a node has to be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsPermission {
    pub verb: Verb,
    /// The subjects, as the permissions of a user have them.
    pub grant: String,
    /// One of them, with which it is tried.
    pub(crate) subject: String,
    /// Headers that make servers and nodes ignore it.
    pub(crate) headers: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl NatsPermission {
    fn publish(grant: &str, subject: &str, headers: &[u8], payload: &[u8]) -> NatsPermission {
        let (verb, grant, subject) = (Verb::Publish, grant.to_owned(), subject.to_owned());
        NatsPermission { verb, grant, subject, headers: headers.into(), payload: payload.into() }
    }

    fn subscribe(grant: &str, subject: &str) -> NatsPermission {
        let (verb, grant, subject) = (Verb::Subscribe, grant.to_owned(), subject.to_owned());
        NatsPermission { verb, grant, subject, headers: Vec::new(), payload: Vec::new() }
    }
}

/// Markers of users and of channels are erased; nobody has the name with which it is tried.
fn purge_of_markers(prefix: &str) -> NatsPermission {
    let purge = format!("$JS.API.STREAM.PURGE.KV_{prefix}-markers");
    let nobody = format!("$KV.{prefix}-markers.{NOBODY}.{NOBODY}");
    let none = json!({ "filter": nobody }).to_string();
    NatsPermission::publish(&purge, &purge, b"", none.as_bytes())
}

/// Everything that a node of this stream has to be allowed, as the guide lists it.
pub fn of_node(settings: &StreamSettings) -> Vec<NatsPermission> {
    let StreamSettings { prefix, class, .. } = settings;
    let (stream, bucket) = (settings.name(), bucket::stream(prefix));
    let subjects = Subjects::new(prefix, class);
    let channel = format!("c.{NOBODY}");
    // A stream refuses what is meant for another one.
    let elsewhere = HeaderWriter::default().field("Nats-Expected-Stream", NOBODY).finish();
    // And a request to create one whose name differs from the subject's.
    let misnamed = json!({ "name": NOBODY, "subjects": [NOBODY] }).to_string();
    let entry = bucket::subject(prefix, class);
    // Of a channel that is not there, nothing is erased.
    let none = json!({ "filter": subjects.ingest(&channel) }).to_string();
    let of_leader = |what: &str| format!("$JS.API.STREAM.{what}.{stream}");
    let [get, erase, purge] = ["MSG.GET", "MSG.DELETE", "PURGE"].map(of_leader);
    let read = bucket::read(&entry);
    let last = json!({ "last_by_subj": subjects.ingest(&channel) }).to_string();
    let (of, on) = (NatsPermission::publish, NatsPermission::subscribe);
    let mut all = vec![
        of(&format!("{prefix}.in.>"), &subjects.ingest(&channel), &elsewhere, b""),
        // Volatile messages, whose headers say so.
        of(&format!("{prefix}.live.>"), &subjects.live(&channel), b"", b""),
        // Nodes read a sequence and a channel, which are not there.
        of(&format!("{prefix}.hint.>"), subjects.hint(), b"", b""),
        // And the name of a node, or where an answer goes to, which are not there either.
        of(&format!("{prefix}.node.>"), subjects.nodes(), b"", b""),
        of(&format!("{prefix}.ask.>"), subjects.ask(), b"", b""),
        of("_INBOX.>", &format!("_INBOX.{NOBODY}.none"), b"", b""),
        of(&format!("$KV.{prefix}-epochs.>"), &entry, &elsewhere, b""),
    ];
    for table in TABLES {
        let key = format!("$KV.{prefix}-{table}.{NOBODY}");
        all.push(of(&format!("$KV.{prefix}-{table}.>"), &key, &elsewhere, b""));
    }
    all.extend([
        of("$JS.API.STREAM.INFO.*", &format!("$JS.API.STREAM.INFO.{stream}"), b"", b""),
        of(
            "$JS.API.STREAM.CREATE.*",
            &format!("$JS.API.STREAM.CREATE.{stream}"),
            b"",
            misnamed.as_bytes(),
        ),
        of(
            &format!("$JS.API.STREAM.MSG.GET.{bucket}"),
            &format!("$JS.API.STREAM.MSG.GET.{bucket}"),
            b"",
            &read,
        ),
        of(&get, &get, b"", last.as_bytes()),
        // Without a message that it names, the request is refused.
        of(&erase, &erase, b"", b""),
        of(&purge, &purge, b"", none.as_bytes()),
        of(
            &format!("$JS.API.DIRECT.GET.{stream}"),
            &format!("$JS.API.DIRECT.GET.{stream}"),
            b"",
            last.as_bytes(),
        ),
    ]);
    for table in TABLES {
        let read = format!("$JS.API.DIRECT.GET.KV_{prefix}-{table}");
        all.push(of(&read, &read, b"", last.as_bytes()));
    }
    all.push(purge_of_markers(prefix));
    // A consumer of another stream than the subject's is refused, and nobody has made this one.
    let (create, next) = ("$JS.API.CONSUMER.CREATE", "$JS.API.CONSUMER.MSG.NEXT");
    let consumer = consumer::create(NOBODY, NOBODY, &[]);
    for (what, request) in [(create, &*consumer), (next, b"")] {
        let subject = format!("{what}.{stream}.{NOBODY}");
        all.push(of(&format!("{what}.{stream}.*"), &subject, b"", request));
    }
    all.extend([
        on(&format!("{prefix}.live.>"), &subjects.live(&channel)),
        on(&format!("{prefix}.table.>"), &format!("{prefix}.table.revocations.{NOBODY}")),
        on(&format!("{prefix}.hint.>"), subjects.hint()),
        on(&format!("{prefix}.node.>"), subjects.nodes()),
        on(&format!("{prefix}.ask.>"), subjects.ask()),
        on("_INBOX.>", &format!("_INBOX.{NOBODY}.*")),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use throng_core::Retention;

    use super::*;

    /// The rows of the table in the guide, as `(verb, subject)`.
    fn of_the_guide() -> Vec<(String, String)> {
        let guide = include_str!("../../../docs/guides/nodes.md");
        let rows = guide.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let rows = rows.filter(|(verb, _)| ["publish", "subscribe"].contains(verb));
        rows.flat_map(|(verb, cell)| {
            let subjects = cell.split('`').skip(1).step_by(2);
            subjects.map(|subject| (verb.to_owned(), subject.to_owned())).collect::<Vec<_>>()
        })
        .collect()
    }

    #[test]
    fn what_is_tried_is_what_the_guide_lists() {
        let settings = StreamSettings {
            prefix: "throng".into(),
            class: "channels".into(),
            replicas: 1,
            is_in_memory: false,
            retention: Retention { max_messages: 100, max_bytes: 1 << 20, max_age_ms: 60_000 },
            bytes_max: 1 << 30,
            message_bytes_max: 1 << 17,
            duplicate_window_ms: 300_000,
        };
        let needed = of_node(&settings);
        let mut found: Vec<_> =
            needed.iter().map(|one| (one.verb.word().to_owned(), one.grant.clone())).collect();
        let mut expected = of_the_guide();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        for NatsPermission { grant, subject, .. } in &needed {
            let is_covered = match grant.strip_suffix(['>', '*']) {
                Some(start) => subject.starts_with(start),
                None => subject == grant,
            };
            assert!(is_covered, "{subject} is not covered by {grant}");
        }
    }
}

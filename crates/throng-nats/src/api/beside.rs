//! The entries of a stream beside a channel's messages: the record of its log, and its erasures.
//!
//! Both are the last messages of subjects of their own. No node takes them for messages of a
//! channel.
//!
//! # How an erased message is no gap
//!
//! A message that the stream does not have any more was dropped because of a limit, or erased. Only
//! the second is nothing that a client lacks. So before a message is erased, this is written down;
//! and before a whole history is, that clients lack what came before its end.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::json;
use throng_core::LogRecord;

use super::link::Link;
use super::{JetStreamError, message};
use crate::protocol::headers::{HeaderWriter, Headers};

/// Erased messages of a channel that are counted one by one. Beyond it, clients whose last message
/// is older than the oldest of them, and gone, are told of a gap.
const ERASED_MAX: usize = 1_000;

/// A renewed record has the version of the one that it renews.
const VERSION: &str = "Throng-Record";

/// A stored message, as its stream's leader gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sequence: u64,
    pub(crate) subject: String,
    pub(crate) headers: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// When it was stored, in milliseconds since 1970 by the server's clock; 0 if that is not
    /// known.
    pub(crate) wall_ms: u64,
}

/// The condition that a subject's last message has a certain sequence.
pub(crate) const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

/// That subject, if it is another one than the message's own.
pub(crate) const EXPECTED_OF: &str = "Nats-Expected-Last-Subject-Sequence-Subject";

/// A block of headers with the condition that the last message of `subject` is this one.
pub(crate) fn under_condition(block: &[u8], subject: &str, expected: u64) -> Vec<u8> {
    let condition = format!("{EXPECTED}: {expected}\r\n{EXPECTED_OF}: {subject}\r\n\r\n");
    [block.strip_suffix(b"\r\n").unwrap_or(block), condition.as_bytes()].concat()
}

/// The bytes that it has more than the block, at most.
pub(crate) fn condition_bytes(subject: &str) -> usize {
    under_condition(b"\r\n", subject, u64::MAX).len() - 2
}

impl Found {
    /// The record that it is; `None` if it says that there is none any more.
    pub(crate) fn record(&self) -> Option<LogRecord> {
        LogRecord::read(&self.data).ok()
    }

    /// True if it is the record of a channel that has ended.
    pub(crate) fn is_of_end(&self) -> bool {
        self.record().is_some_and(|record| record.is_of_end())
    }

    /// A message as a replica gives it, without its body.
    pub(crate) fn of(sequence: u64, subject: &str, headers: Headers<'_>) -> Found {
        let version = headers.number(VERSION).map(|it| HeaderWriter::default().field(VERSION, it));
        let headers = version.unwrap_or_default().finish();
        Found { sequence, subject: subject.to_owned(), headers, data: Vec::new(), wall_ms: 0 }
    }

    /// The headers of a record that renews this one, after others.
    pub(crate) fn renewed(&self, headers: HeaderWriter) -> HeaderWriter {
        headers.field(EXPECTED, self.sequence).field(VERSION, self.version())
    }

    /// The version of the record that this is.
    pub(crate) fn version(&self) -> u64 {
        Headers::new(&self.headers).number(VERSION).unwrap_or(self.sequence)
    }
}

/// The request for the message with a sequence.
pub(crate) fn message(sequence: u64) -> Vec<u8> {
    json!({ "seq": sequence }).to_string().into_bytes()
}

/// The request to erase the message with a sequence. The servers overwrite its bytes.
pub(crate) fn erase(sequence: u64) -> Vec<u8> {
    json!({ "seq": sequence, "no_erase": false }).to_string().into_bytes()
}

/// The request to remove the messages of a subject up to a sequence.
pub(crate) fn purge(subject: &str, up_to: u64) -> Vec<u8> {
    json!({ "filter": subject, "seq": up_to.saturating_add(1) }).to_string().into_bytes()
}

#[derive(Deserialize)]
struct Answer {
    error: Option<JetStreamError>,
    message: Option<Stored>,
    #[serde(default)]
    success: bool,
}

#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    #[serde(default)]
    time: String,
}

fn answer(payload: &[u8]) -> Result<Answer, JetStreamError> {
    let answer: Answer = serde_json::from_slice(payload).map_err(|error| JetStreamError {
        code: 503,
        err_code: 0,
        description: format!("the answer about a channel cannot be read: {error}"),
    })?;
    answer.error.clone().map_or(Ok(answer), Err)
}

/// Reads the answer to the request for a message; `None` if there is none.
///
/// # Errors
///
/// The server's error, or an unreadable answer, which passes.
pub(crate) fn found(payload: &[u8]) -> Result<Option<Found>, JetStreamError> {
    let stored = match answer(payload) {
        Ok(answer) => answer.message,
        Err(error) if error.err_code == JetStreamError::NO_MESSAGE => None,
        Err(error) => return Err(error),
    };
    let decode = |text: &str| STANDARD.decode(text).unwrap_or_default();
    Ok(stored.map(|Stored { subject, seq, hdrs, data, time }| Found {
        sequence: seq,
        subject,
        headers: decode(&hdrs),
        data: decode(&data),
        wall_ms: message::wall_ms(&time).unwrap_or(0),
    }))
}

/// Reads the answer to a request to erase messages: whether there were any.
///
/// # Errors
///
/// The server's error, or an unreadable answer, which passes.
pub(crate) fn erased(payload: &[u8]) -> Result<bool, JetStreamError> {
    match answer(payload) {
        Ok(answer) => Ok(answer.success),
        Err(error) if error.err_code == JetStreamError::NO_MESSAGE_TO_ERASE => Ok(false),
        Err(error) => Err(error),
    }
}

/// The erased messages of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Erasures {
    /// The channel's last message when something was erased last.
    pub(crate) head: u64,
    /// All messages up to here were erased with their history.
    pub(crate) floor: u64,
    /// Not all messages up to here that were erased are known.
    uncounted: u64,
    /// Messages that were erased one by one, in ascending order.
    erased: Vec<u64>,
    /// The links of those that had any, with their sequences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<(u64, Link)>,
}

impl Erasures {
    /// Reads what is written in a message; nothing if it cannot be read.
    pub(crate) fn read(found: Option<&Found>) -> Erasures {
        found.and_then(|found| serde_json::from_slice(&found.data).ok()).unwrap_or_default()
    }

    pub(crate) fn block(&self) -> Vec<u8> {
        // Numbers always become JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The same after the erasure of a message of a channel whose last message is `head`.
    pub(crate) fn with_message(mut self, sequence: u64, head: u64) -> Erasures {
        self.head = self.head.max(head);
        if let Err(place) = self.erased.binary_search(&sequence)
            && sequence > self.floor
        {
            self.erased.insert(place, sequence);
        }
        while self.erased.len() > ERASED_MAX {
            self.uncounted = self.uncounted.max(self.erased.remove(0));
        }
        self
    }

    /// The same with the link of a message that was erased by itself.
    pub(crate) fn with_link(mut self, sequence: u64, link: Option<Link>) -> Erasures {
        if let (Some(link), Err(place)) =
            (link, self.links.binary_search_by_key(&sequence, |(of, _)| *of))
            && self.has(sequence)
        {
            self.links.insert(place, (sequence, link));
        }
        self.links.retain(|(of, _)| self.erased.binary_search(of).is_ok());
        self
    }

    /// The links of messages that were erased one by one, if they had any.
    pub(crate) fn links(&self) -> BTreeMap<u64, Link> {
        self.links.iter().copied().collect()
    }

    /// The same after the erasure of all messages up to the channel's last one.
    pub(crate) fn with_history(mut self, up_to: u64) -> Erasures {
        self.head = self.head.max(up_to);
        self.floor = self.floor.max(up_to);
        self.erased.retain(|sequence| *sequence > self.floor);
        self.links.retain(|(sequence, _)| *sequence > self.floor);
        self
    }

    /// True if it is written down that this message is erased, by itself or with the history.
    pub(crate) fn have(&self, sequence: u64) -> bool {
        sequence <= self.floor || self.has(sequence)
    }

    /// True if this message was erased by itself.
    pub(crate) fn has(&self, sequence: u64) -> bool {
        self.erased.binary_search(&sequence).is_ok()
    }

    /// Whether all messages after a position were `found`, or are among the `left` ones, but for
    /// those that were erased one by one, of a channel that keeps `per_channel`: none of them was
    /// erased with a history, nor dropped because there were too many.
    ///
    /// If one after the position was dropped, `per_channel` newer ones were left then; since then
    /// these can have become less by erasure only. An erasure is written down before it is done, so
    /// a message can be both erased and found: it is one.
    pub(crate) fn is_whole(
        &self,
        after: u64,
        (found, left): (&BTreeSet<u64>, u64),
        per_channel: u64,
    ) -> bool {
        let erased = self.erased.iter().rev().take_while(|sequence| **sequence > after);
        let erased = erased.filter(|sequence| !found.contains(sequence)).count();
        let later = found.len() + erased;
        after >= self.floor.max(self.uncounted) && later as u64 + left < per_channel
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_of_leaders_are_read() {
        let headers = STANDARD.encode("NATS/1.0\r\nThrong-Record: 3\r\n\r\n");
        let message = json!({ "subject": "a", "seq": 7, "hdrs": headers, "data": "aGk=" });
        let read = found(json!({ "message": message }).to_string().as_bytes())
            .expect("it is one")
            .expect("it is there");
        assert_eq!((read.sequence, &*read.subject, &*read.data), (7, "a", &b"hi"[..]));
        assert_eq!(read.version(), 3, "it was renewed");
        let read = found(br#"{"message":{"subject":"a","seq":7}}"#).expect("it is one");
        assert_eq!(read.map(|read| (read.version(), read.data)), Some((7, Vec::new())));
        let none = br#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert_eq!(found(none), Ok(None));
        assert!(found(b"").is_err_and(|error| error.is_passing()));
        assert_eq!(erased(br#"{"success":true,"purged":5}"#), Ok(true));
        let none = br#"{"error":{"code":500,"err_code":10057,"description":"stream store EOF"}}"#;
        assert_eq!(erased(none), Ok(false));
    }

    #[test]
    fn erasures_are_read_as_they_were_written() {
        let erasures = Erasures::default().with_history(5).with_message(7, 9).with_message(6, 9);
        let found = Found {
            sequence: 1,
            subject: String::new(),
            headers: Vec::new(),
            data: erasures.block(),
            wall_ms: 0,
        };
        assert_eq!(Erasures::read(Some(&found)), erasures);
        let text = String::from_utf8(found.data).expect("it is text");
        assert_eq!(text, r#"{"head":9,"floor":5,"uncounted":0,"erased":[6,7]}"#);
        assert_eq!(Erasures::read(None), Erasures::default());
        for kept in crate::kept::lines("erasures", &[text]) {
            assert_eq!(serde_json::from_str::<Erasures>(&kept).expect("it is read"), erasures);
        }
    }

    #[test]
    fn more_erased_messages_than_are_counted_show_as_a_gap() {
        let mut erasures = Erasures::default();
        for sequence in 1..=ERASED_MAX as u64 + 2 {
            erasures = erasures.with_message(sequence, 2_000);
        }
        assert_eq!((erasures.erased.len(), erasures.uncounted), (ERASED_MAX, 2));
        let none = BTreeSet::new();
        let is_whole = |after| erasures.is_whole(after, (&none, 0), 5_000);
        assert!(!is_whole(1) && is_whole(2));
    }

    #[test]
    fn a_message_that_is_about_to_be_erased_counts_once() {
        let erasures = Erasures::default().with_message(7, 9);
        let found = BTreeSet::from([7, 8, 9]);
        assert!(erasures.is_whole(5, (&found, 0), 4), "none was dropped");
        assert!(!erasures.is_whole(5, (&found, 1), 4), "one may have been");
        let found = BTreeSet::from([8, 9, 10]);
        assert!(!erasures.is_whole(5, (&found, 0), 4), "7 was there when 10 came");
    }

    /// An event of a channel.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Publish,
        /// The message at this place is erased.
        Erase(usize),
        EraseAll,
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => Just(Event::Publish),
            2 => (0usize..8).prop_map(Event::Erase),
            1 => Just(Event::EraseAll),
        ]
    }

    proptest! {
        /// A message that was dropped, or erased with a history, is never passed over; one that was
        /// erased by itself always is, as long as too many messages would not hide another.
        #[test]
        fn a_hole_is_never_taken_for_an_erased_message(
            events in prop::collection::vec(events(), 0..60),
            per_channel in 1usize..8,
            after in 0u64..40,
        ) {
            let (mut kept, mut last, mut lost) = (Vec::new(), 0, false);
            let mut erasures = Erasures::default();
            for event in events {
                match event {
                    Event::Publish => {
                        last += 1;
                        kept.push(last);
                        if kept.len() > per_channel {
                            lost |= kept.remove(0) > after;
                        }
                    }
                    Event::Erase(at) if at < kept.len() => {
                        erasures = erasures.with_message(kept.remove(at), last);
                    }
                    Event::Erase(_) => {}
                    Event::EraseAll => {
                        lost |= kept.iter().any(|sequence| *sequence > after);
                        erasures = erasures.with_history(last);
                        kept.clear();
                    }
                }
            }
            let found = kept.iter().copied().filter(|sequence| *sequence > after).collect();
            let is_whole = erasures.is_whole(after, (&found, 0), per_channel as u64);
            prop_assert!(!(lost && is_whole));
            let published = last.saturating_sub(after.min(last)) as usize;
            if !lost && published < per_channel && after >= erasures.floor {
                prop_assert!(is_whole);
            }
        }
    }
}

//! Reading a stream without a consumer: batches of messages, and the last ones of many channels.

use serde_json::json;

use super::message;
use crate::protocol::headers::Headers;

/// Channels whose last messages one request asks for: a server answers at most 1,024.
pub const HEADS_MAX: usize = 1_000;

/// Messages of one batch.
pub const BATCH_MAX: usize = 1_000;

/// Bytes after which a server ends a batch: what waits for its end stays small.
const BATCH_BYTES: usize = 4 << 20;

/// The request for the messages of a subject from a sequence on.
pub fn batch(subject: &str, from: u64) -> Vec<u8> {
    some(subject, from, BATCH_MAX)
}

/// The same for so many messages at most.
pub(crate) fn some(subject: &str, from: u64, count: usize) -> Vec<u8> {
    let request = json!({
        "seq": from.max(1),
        "next_by_subj": subject,
        "batch": count,
        "max_bytes": BATCH_BYTES,
    });
    request.to_string().into_bytes()
}

/// The request for the first message of a subject since a time of the servers. Its end says how
/// many come after it.
pub(crate) fn first_since(subject: &str, wall_ms: u64) -> Vec<u8> {
    let since = message::time_text(wall_ms);
    let request = json!({
        "start_time": since, "next_by_subj": subject, "batch": 1, "max_bytes": 1,
    });
    request.to_string().into_bytes()
}

/// The request for the last message of a subject.
pub fn last(subject: &str) -> Vec<u8> {
    json!({ "last_by_subj": subject }).to_string().into_bytes()
}

/// The request for the first message of a subject from a sequence on.
pub(crate) fn next(subject: &str, from: u64) -> Vec<u8> {
    json!({ "seq": from, "next_by_subj": subject }).to_string().into_bytes()
}

/// The request for the last message of each subject.
pub fn heads(subjects: &[String]) -> Vec<u8> {
    let request = json!({ "multi_last": subjects, "max_bytes": BATCH_BYTES });
    request.to_string().into_bytes()
}

/// One of the answers to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A message that was found.
    Message {
        sequence: u64,
        /// The sequence of the message before it in this answer; 0 for the first one.
        previous: u64,
    },
    /// The end of the answer.
    End {
        /// The sequence of the last message of this answer; 0 without any.
        last: u64,
        /// Messages that match and were left out, because the batch was full.
        left: u64,
        /// The stream's last sequence when the server looked; 0 if it does not say.
        up_to: u64,
    },
    /// The server cannot answer now.
    Failed,
}

/// How far an answer has come. Its parts are messages like others, of which one may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain(u64);

impl Chain {
    /// Whether this message is the next one of the answer. `None` if one before it is missing;
    /// `Some(false)` if it came already.
    pub fn continues(&mut self, sequence: u64, previous: u64) -> Option<bool> {
        if sequence <= self.0 {
            return Some(false);
        }
        let is_next = previous == self.0;
        self.0 = sequence;
        is_next.then_some(true)
    }

    /// True if the answer that ends with `last` has come whole.
    pub fn ends(self, last: u64) -> bool {
        self.0 == last
    }
}

/// Tells the parts of an answer apart.
pub fn part(headers: Headers<'_>) -> Part {
    let last = || headers.number("Nats-Last-Sequence").unwrap_or(0);
    match headers.status() {
        None => match headers.number("Nats-Sequence") {
            Some(sequence) => Part::Message { sequence, previous: last() },
            None => Part::Failed,
        },
        Some(204) => Part::End {
            last: last(),
            left: headers.number("Nats-Num-Pending").unwrap_or(0),
            up_to: headers.number("Nats-UpTo-Sequence").unwrap_or(0),
        },
        Some(404) => Part::End { last: 0, left: 0, up_to: 0 },
        Some(_) => Part::Failed,
    }
}

/// Whether a client that has all messages up to `after` gets all later ones from a batch: none of
/// them has been dropped. `None` if that depends on the stream's first sequence, which has to be
/// asked for after the batch was read.
///
/// * `has_after`: the batch, which starts with `after`, found a message there. Streams drop the
///   oldest messages of a channel, so all later ones are still there.
/// * `later`: messages after `after`, those that did not fit in the batch included. If one was
///   dropped because the channel had too many, exactly that many newer ones are left.
/// * `first`: a lower bound of the first sequence: those before it are gone.
pub fn is_whole(
    after: u64,
    has_after: bool,
    later: u64,
    per_channel: u64,
    first: u64,
) -> Option<bool> {
    if has_after {
        return Some(true);
    }
    if later >= per_channel || after.saturating_add(1) < first { Some(false) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parts_of_an_answer_are_told_apart() {
        let part = |block: &str| part(Headers::new(block.as_bytes()));
        assert_eq!(
            part("NATS/1.0\r\nNats-Sequence: 7\r\nNats-Last-Sequence: 5\r\n\r\n"),
            Part::Message { sequence: 7, previous: 5 }
        );
        assert_eq!(
            part(
                "NATS/1.0 204 EOB\r\nNats-Num-Pending: 2\r\nNats-Last-Sequence: 7\r\n\
                 Nats-UpTo-Sequence: 9\r\n\r\n"
            ),
            Part::End { last: 7, left: 2, up_to: 9 }
        );
        assert_eq!(
            part("NATS/1.0 404 Message Not Found\r\n\r\n"),
            Part::End { last: 0, left: 0, up_to: 0 }
        );
        assert_eq!(part("NATS/1.0 408 Bad Request\r\n\r\n"), Part::Failed);
        assert_eq!(part(""), Part::Failed);
    }

    /// Messages of several channels in a stream that keeps so many for each, and the newest
    /// `kept` of all.
    fn retained(channels: &[u8], per_channel: usize, kept: usize) -> (Vec<(u64, u8)>, u64) {
        let mut stream: Vec<(u64, u8)> = Vec::new();
        let mut first = 1;
        for (index, channel) in channels.iter().enumerate() {
            stream.push((index as u64 + 1, *channel));
            if stream.iter().filter(|(_, of)| of == channel).count() > per_channel {
                let oldest = stream.iter().position(|(_, of)| of == channel);
                stream.remove(oldest.expect("there are some"));
            }
            let last = index as u64 + 1;
            first = first.max(last.saturating_sub(kept as u64) + 1);
            stream.retain(|(sequence, _)| *sequence >= first);
        }
        let oldest = stream.first().map_or(channels.len() as u64 + 1, |(sequence, _)| *sequence);
        (stream, oldest)
    }

    proptest! {
        /// Never `true` if a message after the position is gone; and `true` whenever the position
        /// is a message that the channel still has.
        #[test]
        fn a_hole_is_never_taken_for_whole(
            channels in prop::collection::vec(0u8..3, 0..60),
            per_channel in 1usize..8,
            kept in 1usize..40,
            after in 0u64..60,
        ) {
            let (stream, first) = retained(&channels, per_channel, kept);
            let published = channels.iter().enumerate().filter(|(index, channel)| {
                **channel == 0 && *index as u64 + 1 > after
            });
            let own = stream.iter().filter(|(_, of)| *of == 0);
            let later = own.filter(|(sequence, _)| *sequence > after).count();
            let has_after = stream.contains(&(after, 0));
            let is_complete = published.count() == later;
            let (later, per_channel) = (later as u64, per_channel as u64);
            let verdict = is_whole(after, has_after, later, per_channel, first).unwrap_or(true);
            prop_assert!(is_complete || !verdict);
            if has_after {
                prop_assert!(verdict);
            }
        }
    }
}

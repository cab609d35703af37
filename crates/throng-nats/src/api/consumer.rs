//! A consumer of the stream that gives the last message of each subject, and then all that come. A
//! node pulls from it to learn which channels there are.

use serde::Deserialize;
use serde_json::json;

use super::JetStreamError;

/// After this time without a request, servers remove the consumer, in nanoseconds. Longer than a
/// node keeps the names that it has learnt.
const INACTIVE_NS: u64 = 120_000_000_000;

/// The request to make the consumer of a stream for messages of these subjects.
pub(crate) fn create(stream: &str, name: &str, subjects: &[String]) -> Vec<u8> {
    let config = json!({
        "name": name,
        "deliver_policy": "last_per_subject",
        "filter_subjects": subjects,
        "headers_only": true,
        "ack_policy": "none",
        "mem_storage": true,
        "num_replicas": 1,
        "inactive_threshold": INACTIVE_NS,
    });
    json!({ "stream_name": stream, "config": config }).to_string().into_bytes()
}

/// The request for the next messages that are there, so many at most.
pub(crate) fn pull(count: usize) -> Vec<u8> {
    json!({ "batch": count, "no_wait": true }).to_string().into_bytes()
}

#[derive(Deserialize)]
struct Answer {
    error: Option<JetStreamError>,
}

/// Reads the answer to the request for a consumer.
///
/// # Errors
///
/// The server's error, or an unreadable answer, which passes.
pub(crate) fn created(payload: &[u8]) -> Result<(), JetStreamError> {
    let answer: Answer = serde_json::from_slice(payload).map_err(|error| JetStreamError {
        code: 503,
        err_code: 0,
        description: format!("the answer about a consumer cannot be read: {error}"),
    })?;
    answer.error.map_or(Ok(()), Err)
}

/// Where a message comes from that a consumer has given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given<'a> {
    pub(crate) consumer: &'a str,
    /// Its place in the stream.
    pub(crate) sequence: u64,
    /// How many messages the consumer has given, with this one.
    pub(crate) number: u64,
    /// Messages that the consumer has not given yet.
    pub(crate) left: u64,
}

/// Reads the subject for the acknowledgement of a message. Servers have two forms of it:
/// `$JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.NUMBER.TIME.LEFT`, and one with a domain and an
/// account before the stream.
pub(crate) fn given(reply: &str) -> Option<Given<'_>> {
    let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
    let tokens = if tokens.len() > 7 { tokens.get(2..)? } else { &tokens };
    let [_, consumer, _, sequence, number, _, left, ..] = tokens else { return None };
    let (sequence, number) = (sequence.parse().ok()?, number.parse().ok()?);
    Some(Given { consumer, sequence, number, left: left.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_acknowledgement_are_read() {
        let expected = Given { consumer: "c", sequence: 10, number: 6, left: 1 };
        for reply in ["$JS.ACK.t.c.1.10.6.1795.1", "$JS.ACK.d.ACC.t.c.1.10.6.1795.1.random"] {
            assert_eq!(given(reply), Some(expected), "{reply}");
        }
        for none in ["", "$JS.ACK.", "$JS.ACK.t.c.1.10.6", "$JS.ACK.t.c.1.x.6.1795.1", "_INBOX.a.7"]
        {
            assert_eq!(given(none), None, "{none}");
        }
    }

    #[test]
    fn a_refusal_is_an_error() {
        assert_eq!(created(br#"{"name":"c","config":{}}"#), Ok(()));
        let refused =
            created(br#"{"error":{"code":400,"err_code":10026,"description":"maximum"}}"#);
        assert_eq!(refused.map_err(|error| error.err_code), Err(10026));
        assert!(created(b"").is_err_and(|error| error.is_passing()));
    }
}

//! The server's answer to a publication.

use std::borrow::Cow;

use serde::Deserialize;

use super::JetStreamError;
use crate::protocol::headers::Headers;

/// A stream's answer to a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ack {
    Stored {
        /// The message's sequence, or the sequence of the first publication with its id.
        sequence: u64,
        /// True if a publication with its id was stored before.
        is_duplicate: bool,
    },
    /// It is not stored.
    Refused(JetStreamError),
    /// Nobody was there to store it.
    Nobody,
    /// The answer cannot be understood.
    Unreadable,
}

#[derive(Deserialize)]
struct Answer<'a> {
    error: Option<JetStreamError>,
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
}

/// Reads the answer to a publication to the stream with this name. That another one has its
/// subject and has stored it is a refusal: no node would find it there.
pub fn parse(stream: &str, headers: Headers<'_>, payload: &[u8]) -> Ack {
    if headers.status() == Some(503) {
        return Ack::Nobody;
    }
    match serde_json::from_slice(payload) {
        Ok(Answer { error: Some(error), .. }) => Ack::Refused(error),
        Ok(Answer { error: None, stream: by, seq, .. }) if seq > 0 && by != stream => {
            Ack::Refused(JetStreamError::of_other_stream(stream, &by))
        }
        Ok(Answer { error: None, seq, duplicate, .. }) if seq > 0 => {
            Ack::Stored { sequence: seq, is_duplicate: duplicate }
        }
        _ => Ack::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_servers_write_them() {
        let read = |payload: &str| parse("a", Headers::default(), payload.as_bytes());
        assert_eq!(
            read(r#"{"stream":"a","seq":7}"#),
            Ack::Stored { sequence: 7, is_duplicate: false }
        );
        assert_eq!(
            read(r#"{"stream":"a", "seq":7,"duplicate": true}"#),
            Ack::Stored { sequence: 7, is_duplicate: true }
        );
        let refused = read(
            r#"{"error":{"code":429,"err_code":10167,"description":"too many requests"},"seq":0}"#,
        );
        let Ack::Refused(error) = refused else { panic!("{refused:?}") };
        assert_eq!(error.err_code, JetStreamError::TOO_MANY_REQUESTS);
        assert_eq!(error.to_string(), "too many requests (error 10167)");
        let Ack::Refused(error) = read(r#"{"stream":"b","seq":7}"#) else { panic!("it is lost") };
        assert_eq!(error.err_code, JetStreamError::OTHER_STREAM);
        assert!(!error.is_passing());
        assert_eq!(read("+OK"), Ack::Unreadable);
        assert_eq!(parse("a", Headers::new(b"NATS/1.0 503\r\n\r\n"), b""), Ack::Nobody);
    }
}

//! The bucket that has the epoch of each stream, and a secret that all nodes share.
//!
//! A bucket is a stream whose subjects are keys. An entry is replaced only if it is the one that
//! was read, so only one of several nodes that begin a new epoch succeeds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{FORMAT, FORMAT_KEY, JetStreamError};

/// Size limit of a bucket in bytes: entries are small, one for each stream.
const BYTES_MAX: u64 = 1 << 20;

/// The entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EpochRecord {
    pub epoch: u64,
    /// When the stream was created, as the server writes it. Another time is another stream.
    pub created: String,
    /// A sequence that the stream had reached. A stream that has not has lost messages.
    pub last: u64,
}

/// The entry of the secret from which all nodes make the keys of limits and the tags of users. It
/// is made once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedRecord {
    /// 16 bytes, as hexadecimal digits.
    pub seed: String,
}

/// The subject of that entry.
pub fn seed_subject(prefix: &str) -> String {
    format!("$KV.{prefix}-epochs.seed")
}

/// The name of the stream that is the bucket.
pub fn stream(prefix: &str) -> String {
    format!("KV_{prefix}-epochs")
}

/// The subject of a stream's entry.
pub fn subject(prefix: &str, class: &str) -> String {
    format!("$KV.{prefix}-epochs.{prefix}-{class}")
}

/// The configuration of the bucket, which every client of NATS recognises as one.
pub fn config(prefix: &str, replicas: u8, is_in_memory: bool) -> Value {
    json!({
        "name": stream(prefix),
        "subjects": [format!("$KV.{prefix}-epochs.>")],
        "retention": "limits",
        "discard": "new",
        "storage": if is_in_memory { "memory" } else { "file" },
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_bytes": BYTES_MAX,
        "max_msgs": -1,
        "max_consumers": -1,
        "allow_direct": true,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "metadata": { FORMAT_KEY: FORMAT },
    })
}

/// The request for the entry under a key.
pub fn read(key: &str) -> Vec<u8> {
    json!({ "last_by_subj": key }).to_string().into_bytes()
}

#[derive(Deserialize)]
struct Answer {
    error: Option<JetStreamError>,
    message: Option<StoreOutcome>,
}

#[derive(Deserialize)]
struct StoreOutcome {
    seq: u64,
    #[serde(default)]
    data: String,
}

/// Reads the answer: the entry and its revision. Revision 0 means that there is none. One that
/// cannot be read has to be replaced under its revision.
///
/// # Errors
///
/// The server's error, or an unreadable answer.
pub fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<(Option<T>, u64), JetStreamError> {
    let answer: Answer = serde_json::from_slice(payload).map_err(|error| JetStreamError {
        code: 500,
        err_code: 0,
        description: format!("the answer about the epoch cannot be read: {error}"),
    })?;
    match answer {
        Answer { error: Some(error), .. } if error.err_code == JetStreamError::NO_MESSAGE => {
            Ok((None, 0))
        }
        Answer { error: Some(error), .. } => Err(error),
        Answer { error: None, message: None } => Ok((None, 0)),
        Answer { error: None, message: Some(StoreOutcome { seq, data }) } => {
            let bytes = STANDARD.decode(data).unwrap_or_default();
            Ok((serde_json::from_slice(&bytes).ok(), seq))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_with_its_revision() {
        let record = EpochRecord { epoch: 7, created: "then".into(), last: 9 };
        let data = serde_json::to_vec(&record).expect("it has only texts and numbers");
        let answer = |data: &[u8]| {
            let answer = json!({ "message": { "seq": 3, "data": STANDARD.encode(data) } });
            parse(answer.to_string().as_bytes())
        };
        assert_eq!(answer(&data), Ok((Some(record), 3)));
        assert_eq!(answer(b"?"), Ok((None, 3)));
        let none = br#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert_eq!(parse::<EpochRecord>(none), Ok((None, 0)));
        let gone = br#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
        assert_eq!(
            parse::<EpochRecord>(gone).map_err(|error| error.err_code),
            Err(JetStreamError::STREAM_NOT_FOUND)
        );
    }
}

//! A stream: how it is created, and whether one that is there is as it should be.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{AGE_PERCENT, FORMAT, FORMAT_KEY, JetStreamError, StreamSettings, message};

/// A server's description of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// When it was created: as the server writes it, only to be compared.
    pub created: String,
    /// The sequence of the oldest message, or of the next one if there is none.
    pub first: u64,
    /// The sequence of the newest message there ever was.
    pub last: u64,
    /// The server that leads, and since when; empty with one server.
    pub leader: String,
    /// For how long the leader has not heard from so many servers that they are a majority with it,
    /// in milliseconds; 0 with one server.
    pub majority_silent_ms: u64,
    /// How long it keeps messages, in nanoseconds; 0 if for ever.
    pub max_age_ns: u64,
    pub abilities: StreamAbilities,
    /// The time of the server, in milliseconds since 1970; 0 if it does not say it.
    pub server_ms: u64,
    /// How the stream differs from what it should be: a sentence for each difference.
    pub differences: Vec<String>,
    pub size: StreamSize,
}

/// How much a stream has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct StreamSize {
    pub messages: u64,
    pub bytes: u64,
    /// A channel with messages has one, each key of a state has one, and each record beside a
    /// channel.
    #[serde(rename = "num_subjects")]
    pub subjects: u64,
}

/// The changes that a stream allows, which depends on the version of Throng or of the servers that
/// have made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamAbilities {
    /// Messages can be erased.
    pub(crate) can_erase: bool,
    /// Several messages can be stored all or none. Servers before version 2.12 cannot.
    pub(crate) is_atomic: bool,
}

impl StreamAbilities {
    /// The options of a stream that decide. Whoever uses a stream takes any of their values, and
    /// servers never take back that something is denied.
    const OPTIONS: [&str; 4] = ["allow_atomic", "allow_rollup_hdrs", "deny_delete", "deny_purge"];

    fn of(config: &Value) -> StreamAbilities {
        let has = |option: &str| config[option] == true;
        let can_erase = has("allow_rollup_hdrs") && !has("deny_delete") && !has("deny_purge");
        StreamAbilities { can_erase, is_atomic: can_erase && has("allow_atomic") }
    }
}

#[derive(Deserialize)]
struct Answer {
    error: Option<JetStreamError>,
    #[serde(default)]
    created: String,
    #[serde(default)]
    config: Value,
    #[serde(default)]
    state: SlotState,
    cluster: Option<Cluster>,
    #[serde(default)]
    ts: String,
}

#[derive(Deserialize, Default)]
struct SlotState {
    #[serde(default)]
    first_seq: u64,
    #[serde(default)]
    last_seq: u64,
    #[serde(flatten)]
    size: StreamSize,
}

#[derive(Deserialize, Default)]
struct Cluster {
    #[serde(default)]
    leader: String,
    #[serde(default)]
    leader_since: String,
    /// The other servers that have copies.
    #[serde(default)]
    replicas: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    #[serde(default)]
    offline: bool,
    /// How long ago the leader heard from it, in nanoseconds.
    #[serde(default)]
    active: u64,
}

/// For how long a leader has lacked a majority with these others.
fn majority_silent_ms(peers: &[Peer]) -> u64 {
    let silent = |peer: &Peer| if peer.offline { u64::MAX } else { peer.active / 1_000_000 };
    let mut silent: Vec<u64> = peers.iter().map(silent).collect();
    silent.sort_unstable();
    // Of 2 others 1 has to be there, of 4 others 2.
    let needed = silent.len().div_ceil(2);
    needed.checked_sub(1).and_then(|last| silent.get(last).copied()).unwrap_or(0)
}

/// The configuration of a stream of messages.
pub fn config(settings: &StreamSettings) -> Value {
    let StreamSettings { prefix, class, .. } = settings;
    let window_ns = settings.duplicate_window_ms.saturating_mul(1_000_000);
    // The window may not be longer than messages are kept: so short ages are longer here.
    let age_ns = settings.retention.max_age_ms.saturating_mul(1_000_000) / 100 * AGE_PERCENT;
    let age_ns = age_ns.max(window_ns);
    json!({
        "name": settings.name(),
        "subjects": [format!("{prefix}.in.{class}.>")],
        "retention": "limits",
        "discard": "old",
        "storage": if settings.is_in_memory { "memory" } else { "file" },
        "num_replicas": settings.replicas,
        "max_msgs_per_subject": settings.per_channel(),
        "max_age": age_ns,
        "max_bytes": settings.bytes_max,
        "max_msgs": -1,
        "max_msg_size": settings.message_bytes_max,
        "max_consumers": -1,
        "duplicate_window": window_ns,
        "allow_direct": true,
        "mirror_direct": false,
        "allow_msg_ttl": false,
        "allow_rollup_hdrs": true,
        "allow_atomic": true,
        "deny_delete": false,
        "deny_purge": false,
        "republish": {
            "src": format!("{prefix}.in.{class}.>"),
            "dest": format!("{prefix}.live.{class}.>"),
        },
        "metadata": { FORMAT_KEY: FORMAT },
    })
}

/// Reads the answer to a request for, or to create, a stream with the configuration `wanted`.
///
/// # Errors
///
/// The server's error, or an unreadable answer.
pub fn parse(payload: &[u8], wanted: &Value) -> Result<StreamInfo, JetStreamError> {
    let answer: Answer = serde_json::from_slice(payload).map_err(|error| JetStreamError {
        code: 500,
        err_code: 0,
        description: format!("the answer about the stream cannot be read: {error}"),
    })?;
    if let Some(error) = answer.error {
        return Err(error);
    }
    let Cluster { leader, leader_since, replicas } = answer.cluster.unwrap_or_default();
    Ok(StreamInfo {
        created: answer.created,
        first: answer.state.first_seq,
        last: answer.state.last_seq,
        leader: format!("{leader} {leader_since}").trim().to_owned(),
        majority_silent_ms: majority_silent_ms(&replicas),
        max_age_ns: answer.config["max_age"].as_u64().unwrap_or(0),
        abilities: StreamAbilities::of(&answer.config),
        server_ms: message::wall_ms(&answer.ts).unwrap_or(0),
        differences: differences(wanted, &answer.config),
        size: answer.state.size,
    })
}

/// How `found` differs in what is `wanted`. Servers leave out what is false or nothing.
fn differences(wanted: &Value, found: &Value) -> Vec<String> {
    let empty = Map::new();
    // Streams that were made before have other options, and are used for all that these allow.
    let is_able = StreamAbilities::of(wanted).can_erase;
    let is_nothing = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
    let wanted = wanted.as_object().unwrap_or(&empty);
    let mut said = Vec::new();
    if found["sealed"] == true {
        said.push("it is sealed, and stays so: remove it, and nodes make another one".to_owned());
    }
    for (key, wanted) in wanted {
        let found = &found[key];
        if is_able && StreamAbilities::OPTIONS.contains(&key.as_str()) {
            continue;
        }
        if key == "metadata" {
            said.extend(other_format(found));
        } else if found != wanted && !(is_nothing(found) && is_nothing(wanted)) {
            said.push(format!("{key} is {found}, but should be {wanted}"));
        }
    }
    said
}

/// Why a stream with this metadata, to which servers add their own, is of another format.
fn other_format(metadata: &Value) -> Option<String> {
    match metadata[FORMAT_KEY].as_str() {
        Some(FORMAT) => None,
        Some(other) => Some(format!("its format is {other}, and this version reads {FORMAT}")),
        None => Some(
            "no released version of Throng has made it; remove it, or set another nats-prefix"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_core::Retention;

    fn settings() -> StreamSettings {
        StreamSettings {
            prefix: "throng".into(),
            class: "default".into(),
            replicas: 1,
            is_in_memory: false,
            retention: Retention { max_messages: 100, max_bytes: 1 << 20, max_age_ms: 60_000 },
            bytes_max: 1 << 30,
            message_bytes_max: 1 << 17,
            duplicate_window_ms: 300_000,
        }
    }

    #[test]
    fn a_stream_keeps_one_message_more_and_a_quarter_longer() {
        let config = config(&settings());
        assert_eq!(config["max_msgs_per_subject"], 101);
        assert_eq!(config["max_age"], 300_000_000_000u64, "as long as ids are known");
        assert_eq!(config["duplicate_window"], 300_000_000_000u64);
        assert_eq!(config["name"], "throng-default");
    }

    #[test]
    fn a_stream_as_wanted_has_no_differences_and_others_say_theirs() {
        let wanted = config(&settings());
        let mut found = wanted.clone();
        let object = found.as_object_mut().expect("it is one");
        object.remove("allow_rollup_hdrs");
        object.insert("compression".into(), "none".into());
        object["metadata"]["_nats.ver"] = "2.15.2".into();
        assert_eq!(differences(&wanted, &found), [""; 0]);
        found["sealed"] = true.into();
        let sealed = "it is sealed, and stays so: remove it, and nodes make another one";
        assert_eq!(differences(&wanted, &found), [sealed]);
        found["sealed"] = Value::Null;
        found["max_age"] = 1.into();
        found["metadata"][FORMAT_KEY] = "2".into();
        found["max_msgs"] = Value::Null;
        let mut said = differences(&wanted, &found);
        said.sort();
        assert_eq!(
            said,
            [
                "its format is 2, and this version reads 1",
                "max_age is 1, but should be 300000000000",
                "max_msgs is null, but should be -1",
            ]
        );
        let mut unreleased = wanted.clone();
        for metadata in [json!({ "throng.format": "1" }), Value::Null] {
            unreleased["metadata"] = metadata;
            let said = differences(&wanted, &unreleased);
            assert!(said.len() == 1 && said[0].starts_with("no released version"), "{said:?}");
        }
    }

    #[test]
    fn a_stream_made_before_erasure_is_used_as_it_is() {
        let wanted = config(&settings());
        let able = StreamAbilities { can_erase: true, is_atomic: true };
        assert_eq!(StreamAbilities::of(&wanted), able);
        let mut found = wanted.clone();
        found["allow_atomic"] = Value::Null;
        let recent = StreamAbilities { is_atomic: false, ..able };
        assert_eq!(StreamAbilities::of(&found), recent, "servers of version 2.11 made it");
        for denied in ["deny_delete", "deny_purge"] {
            found[denied] = true.into();
            assert_eq!(StreamAbilities::of(&found), StreamAbilities::default());
        }
        found["allow_rollup_hdrs"] = false.into();
        assert_eq!(differences(&wanted, &found), [""; 0]);
        let bucket = crate::api::bucket::config("throng", 1, false);
        let mut other = bucket.clone();
        other["deny_delete"] = false.into();
        assert_eq!(differences(&bucket, &other).len(), 1);
    }

    #[test]
    fn silent_peers_reveal_a_leader_without_a_majority() {
        let silent_ms = |replicas: Value| {
            let answer = json!({ "cluster": { "replicas": replicas } }).to_string();
            parse(answer.as_bytes(), &json!({})).map(|info| info.majority_silent_ms)
        };
        let heard = |ms: u64| json!({ "name": "n", "current": true, "active": ms * 1_000_000 });
        let offline = json!({ "name": "n", "offline": true, "active": 5 });
        assert_eq!(silent_ms(json!([])), Ok(0));
        assert_eq!(silent_ms(json!([heard(9_000), heard(300)])), Ok(300));
        assert_eq!(silent_ms(json!([heard(9_000), offline])), Ok(9_000));
        assert_eq!(silent_ms(json!([offline, offline])), Ok(u64::MAX));
        assert_eq!(silent_ms(json!([offline, heard(7), heard(5_000), heard(9_000)])), Ok(5_000));
    }

    #[test]
    fn what_servers_say_is_read() {
        let payload = br#"{"type":"x","config":{},"created":"2026-01-02T03:04:05.6Z",
            "state":{"messages":2,"bytes":3,"num_subjects":1,"first_seq":7,"last_seq":9},
            "cluster":{"name":"c","leader":"n1","leader_since":"2026-01-02T03:04:05Z"}}"#;
        let info = parse(payload, &json!({})).expect("it is an answer");
        assert_eq!((info.first, info.last), (7, 9));
        assert_eq!(info.size, StreamSize { messages: 2, bytes: 3, subjects: 1 });
        assert_eq!(info.leader, "n1 2026-01-02T03:04:05Z");
        assert_eq!(info.majority_silent_ms, 0);
        let error = parse(br#"{"error":{"code":404,"err_code":10059}}"#, &json!({}));
        assert_eq!(error.map_err(|error| error.err_code), Err(JetStreamError::STREAM_NOT_FOUND));
        assert!(parse(b"", &json!({})).is_err());
    }
}

//! Facts about the servers, before they are judged.

use std::time::Duration;

use serde_json::Value;
use throng_nats::api::stream::StreamInfo;
use throng_nats::api::table::TableSettings;
use throng_nats::permissions::NatsPermission;

use crate::journals::nats::NatsPeer;

pub(super) struct Findings {
    /// Each server of the settings, and why it cannot be used.
    pub(super) servers: Vec<(String, Option<String>)>,
    /// The account on the first server that can be used.
    pub(super) examined: Option<Examined>,
    /// Its monitoring data, if it was asked.
    pub(super) monitor: Option<Result<Monitor, String>>,
}

/// A table that nodes share.
pub(super) struct ExaminedTable {
    pub(super) table: TableSettings,
    pub(super) name: String,
    pub(super) found: Existing,
}

/// One server, and the cluster behind it.
pub(super) struct Examined {
    pub(super) address: String,
    pub(super) name: String,
    pub(super) version: String,
    /// The cluster, and how many of its servers it announces.
    pub(super) cluster: Option<(String, usize)>,
    pub(super) max_payload: usize,
    pub(super) is_loopback: bool,
    pub(super) is_tls: bool,
    pub(super) login: &'static str,
    pub(super) jetstream: JetStream,
    pub(super) stream: Existing,
    pub(super) bucket: Existing,
    pub(super) tables: Vec<ExaminedTable>,
    /// How far the servers' clock is ahead of ours, in milliseconds.
    pub(super) ahead_ms: Option<i64>,
    /// Permissions that a node needs and this user lacks.
    pub(super) denied: Vec<NatsPermission>,
    /// How many subscriptions there is room for; `None` for very many, or if that is not known.
    pub(super) subscriptions: Option<usize>,
    /// True if there is no room for another connection.
    pub(super) is_full: bool,
    pub(super) round_trips: Vec<Duration>,
    /// How long publications took until they were stored, and until the stream republished them.
    pub(super) stored: Option<Result<StoreTimes, String>>,
}

/// Whether there is JetStream for this user.
pub(super) enum JetStream {
    Enabled(Account),
    /// There is none, and why.
    Disabled(String),
    /// It waits for a majority of its servers.
    Leaderless,
    /// The user may not ask, or nobody answers.
    Unknown,
}

/// Limits and use of JetStream by an account.
#[derive(Default)]
pub(super) struct Account {
    /// `None` for no limit.
    pub(super) storage_max: Option<u64>,
    pub(super) storage: u64,
    /// Limits of the existing streams, added up.
    pub(super) reserved: u64,
    /// How many streams there may be, and how many there are.
    pub(super) streams_max: Option<u64>,
    pub(super) streams: u64,
    /// The largest size that a stream may ask for.
    pub(super) stream_bytes_max: Option<u64>,
}

/// A stream that nodes need.
pub(super) enum Existing {
    There(Box<ExistingStream>),
    Missing,
    Failed(String),
    /// Nobody has answered.
    Unknown,
}

pub(super) struct ExistingStream {
    pub(super) info: StreamInfo,
    pub(super) has_leader: bool,
    /// The other servers that have a copy, and whether they are up to date.
    pub(super) peers: Vec<NatsPeer>,
}

/// How long publications took.
#[derive(Default)]
pub(super) struct StoreTimes {
    pub(super) stored: Vec<Duration>,
    pub(super) delivered: Vec<Duration>,
}

/// The monitoring data of a server.
pub(super) struct Monitor {
    pub(super) connections: u64,
    pub(super) connections_max: u64,
    /// `None` without JetStream.
    pub(super) syncs_always: Option<bool>,
    pub(super) sync_interval: Option<Duration>,
    pub(super) storage_max: Option<u64>,
    pub(super) storage_reserved: u64,
}

impl Monitor {
    /// Reads the answer of `/varz`.
    pub(super) fn of(varz: &Value) -> Option<Monitor> {
        let number = |value: &Value| value.as_u64();
        let jetstream = varz.get("jetstream").filter(|found| found.get("config").is_some());
        let config = jetstream.map_or(&Value::Null, |found| &found["config"]);
        let nanoseconds = number(&config["sync_interval"]);
        Some(Monitor {
            connections: number(&varz["connections"])?,
            connections_max: number(&varz["max_connections"])?,
            syncs_always: jetstream.map(|_| config["sync_always"].as_bool().unwrap_or(false)),
            sync_interval: nanoseconds.map(Duration::from_nanos),
            storage_max: number(&config["max_storage"]),
            storage_reserved: jetstream
                .and_then(|found| number(&found["stats"]["reserved_storage"]))
                .unwrap_or(0),
        })
    }
}

impl Account {
    /// Reads the answer to `$JS.API.INFO`. Limits may differ by the number of replicas.
    pub(super) fn of(info: &Value, replicas: u8) -> Account {
        let tier = info["tiers"].get(format!("R{replicas}"));
        let of = tier.unwrap_or(info);
        Account {
            storage_max: of["limits"]["max_storage"].as_u64(),
            storage: of["storage"].as_u64().unwrap_or(0),
            reserved: of["reserved_storage"].as_u64().unwrap_or(0),
            // No limit is a negative number.
            streams_max: of["limits"]["max_streams"].as_u64(),
            streams: of["streams"].as_u64().unwrap_or(0),
            stream_bytes_max: of["limits"]["storage_max_stream_bytes"]
                .as_u64()
                .filter(|most| *most > 0),
        }
    }
}

impl ExistingStream {
    pub(super) fn new(info: StreamInfo, answer: &Value) -> ExistingStream {
        let cluster = answer.get("cluster");
        let has_leader =
            |cluster: &Value| cluster["leader"].as_str().is_some_and(|to| !to.is_empty());
        ExistingStream {
            has_leader: cluster.is_none_or(has_leader),
            peers: NatsPeer::all(answer),
            info,
        }
    }
}

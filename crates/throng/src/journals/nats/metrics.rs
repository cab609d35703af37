//! How a node stands to NATS, on `/metrics`.

use std::collections::BTreeMap;

use throng_control::{OtherMetric, OtherValue};
use throng_core::clock;
use throng_nats::api::NatsLimit;
use throng_nats::engine::{NatsJournal, NodeFigures};

use super::{status, tables};
use crate::journals::interface::gauge;

pub(super) fn metrics(node: &NatsJournal) -> Vec<OtherMetric> {
    let figures = node.figures();
    let cut_off_ms = cut_off_ms(&figures, clock::now_ms()).unwrap_or(0);
    let revocations_age_ms = tables::revocations_age_ms(node).unwrap_or(0);
    let subscriptions_age_ms = node.table_age_ms(tables::SUBSCRIPTIONS);
    let NodeFigures { is_open, is_stalled, under_way, followed, polled, nodes, size, .. } = figures;
    let own = [
        gauge("nats_connected", "1 if the stream in NATS can be used.", is_open.into()),
        gauge(
            "nats_cut_off_seconds",
            "Time since the stream in NATS could be used; 0 if it can.",
            cut_off_ms / 1000,
        ),
        gauge("nats_stalled", "1 if NATS answers but stores no messages.", is_stalled.into()),
        gauge(
            "nats_revocations_age_seconds",
            "Maximum age of this node's revocations; 0 without keys.",
            revocations_age_ms / 1000,
        ),
        gauge(
            "nats_subscriptions_age_seconds",
            "Maximum age of this node's kept subscriptions.",
            subscriptions_age_ms / 1000,
        ),
        gauge("nats_other_nodes", "Other running nodes known to this one.", nodes),
        gauge(
            "nats_publications_under_way",
            "Publications that the stream in NATS has not answered yet.",
            under_way,
        ),
        gauge(
            "nats_followed_channels",
            "Channels and users that this node follows in NATS.",
            followed,
        ),
        gauge(
            "nats_polled_channels",
            "Channels and users that are polled, because NATS allows no more subscriptions.",
            polled,
        ),
        gauge("nats_stream_messages", "Messages in the stream, of all nodes.", size.messages),
        gauge("nats_stream_bytes", "Bytes of the stream, of all nodes.", size.bytes),
        gauge(
            "nats_stream_subjects",
            "Channels with messages, keys of states, and records beside them, of all nodes.",
            size.subjects,
        ),
    ];
    own.into_iter().chain(counted(figures)).chain(Standing::of(node).metrics()).collect()
}

/// Counters since the start.
fn counted(figures: NodeFigures) -> [OtherMetric; 4] {
    let NodeFigures {
        accepted,
        refused,
        busy,
        delivered,
        losses,
        gaps,
        epochs,
        read,
        volatile_lost,
        receipts_refused,
        keys_lost,
        limits,
        publish,
        ..
    } = figures;
    let counters = |name, help, label, values| OtherMetric {
        name,
        help,
        value: OtherValue::CountersBy(label, values),
    };
    [
        counters(
            "nats_messages_total",
            "Messages of this node that the stream accepted or did not, and those delivered here.",
            "what",
            vec![
                ("accepted", accepted),
                ("busy", busy),
                ("refused", refused.saturating_sub(busy)),
                ("delivered", delivered),
            ],
        ),
        counters(
            "nats_events_total",
            "Events of the connection and the stream, parts read from it, volatile messages that \
             were not sent to the other nodes, and receipts of theirs that were refused.",
            "event",
            vec![
                ("lost", losses),
                ("gap", gaps),
                ("new_epoch", epochs),
                ("read", read),
                ("volatile_lost", volatile_lost),
                ("receipt_refused", receipts_refused),
                ("key_lost", keys_lost),
            ],
        ),
        counters(
            "nats_limits_total",
            "Refusals by NATS because of a limit of the servers or of the account.",
            "limit",
            NatsLimit::ALL.map(NatsLimit::word).into_iter().zip(limits).collect(),
        ),
        OtherMetric {
            name: "nats_publish_seconds",
            help: "Time from a publication on this node to the stream's answer.",
            value: OtherValue::Histogram(publish),
        },
    ]
}

/// The state of all nodes, for the metrics.
#[derive(Default)]
struct Standing {
    versions: Vec<(String, u64)>,
    suspect: u64,
    lag_ms: u64,
    behind: u64,
}

impl Standing {
    fn of(node: &NatsJournal) -> Standing {
        let Some(view) = node.cluster() else { return Standing::default() };
        let (lag_ms, behind) = (view.facts.lag_ms, view.facts.behind);
        let nodes = status::nodes(view);
        let mut versions = BTreeMap::<String, u64>::new();
        for node in &nodes {
            let version = if node.version.is_empty() { "unknown" } else { &node.version };
            *versions.entry(version.to_owned()).or_default() += 1;
        }
        let suspect = nodes.iter().filter(|node| !node.suspect.is_empty()).count() as u64;
        Standing { versions: versions.into_iter().collect(), suspect, lag_ms, behind }
    }

    fn metrics(self) -> [OtherMetric; 4] {
        [
            OtherMetric {
                name: "nats_nodes",
                help: "Nodes known to this one, itself included, by version.",
                value: OtherValue::GaugesBy("version", self.versions),
            },
            gauge("nats_suspect_nodes", "Suspect nodes known to this one.", self.suspect),
            gauge(
                "nats_lag_milliseconds",
                "Delay of messages from NATS to this node.",
                self.lag_ms,
            ),
            gauge(
                "nats_behind_channels",
                "Followed channels and users that may lack messages.",
                self.behind,
            ),
        ]
    }
}

/// For how long the stream cannot be used; `None` if it can.
fn cut_off_ms(figures: &NodeFigures, now_ms: u64) -> Option<u64> {
    (!figures.is_open).then(|| now_ms.saturating_sub(figures.since_ms))
}

//! How a node stands to NATS: on `/metrics`, and in what the probes say.

use std::sync::Arc;

use throng_control::{Ailment, MetricSource, OtherMetric, OtherValue};
use throng_core::clock;
use throng_nats::engine::{Figures, LinkState, NatsEngine};

/// Beyond this age something is wrong: they are read each second.
const OLD_MS: u64 = 10_000;

/// The figures of a node; none of a server that is alone.
pub(crate) struct NatsMetrics(pub(crate) Option<Arc<NatsEngine>>);

impl MetricSource for NatsMetrics {
    fn metrics(&self) -> Vec<OtherMetric> {
        let Some(engine) = &self.0 else { return Vec::new() };
        let figures = engine.figures();
        let cut_off_ms = cut_off_ms(&figures, clock::now_ms()).unwrap_or(0);
        let table_age_ms = table_age_ms(engine, &figures).unwrap_or(0);
        let Figures { is_open, under_way, followed, accepted, refused, delivered, .. } = figures;
        let Figures { gaps, losses, epochs, read, publish, nodes, .. } = figures;
        let gauge = |name, help, value| OtherMetric { name, help, value: OtherValue::Gauge(value) };
        let counters = |name, help, label, values| OtherMetric {
            name,
            help,
            value: OtherValue::CountersBy(label, values),
        };
        vec![
            gauge("nats_connected", "Whether the stream in NATS can be used.", is_open.into()),
            gauge(
                "nats_cut_off_seconds",
                "For how long the stream in NATS cannot be used; 0 if it can.",
                cut_off_ms / 1000,
            ),
            gauge(
                "nats_revocations_age_seconds",
                "How old what this node knows of revocations may be; 0 without keys.",
                table_age_ms / 1000,
            ),
            gauge("nats_other_nodes", "Other nodes that are there, as this one knows.", nodes),
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
            counters(
                "nats_messages_total",
                "Messages of this node that the stream accepted or did not, and those delivered \
                 here.",
                "what",
                vec![("accepted", accepted), ("refused", refused), ("delivered", delivered)],
            ),
            counters(
                "nats_events_total",
                "What happened to the connection and the stream, and parts read from it.",
                "event",
                vec![("lost", losses), ("gap", gaps), ("new_epoch", epochs), ("read", read)],
            ),
            OtherMetric {
                name: "nats_publish_seconds",
                help: "Time from a publication on this node to the stream's answer.",
                value: OtherValue::Histogram(publish),
            },
        ]
    }

    fn ailments(&self) -> Vec<Ailment> {
        let Some(engine) = &self.0 else { return Vec::new() };
        let ailment = match engine.state() {
            LinkState::Open => None,
            // Strangers may read it: the log has what was said.
            LinkState::Away { .. } => Some(Ailment::new(
                "nats_away",
                "NATS cannot be reached: no messages are accepted, and none come from other nodes",
            )),
            LinkState::Refused { .. } => Some(Ailment::new(
                "nats_refused",
                "the stream in NATS cannot be used, the log says why: no messages are accepted, \
                 and none come from other nodes",
            )),
        };
        let is_open = engine.state() == LinkState::Open;
        let is_old = table_age_ms(engine, &engine.figures()).is_some_and(|age| age > OLD_MS);
        let revocations = (is_open && is_old).then(|| {
            Ailment::new(
                "nats_revocations",
                "revocations in NATS cannot be read, the log says why: what other nodes revoke \
                 does not hold here",
            )
        });
        ailment.into_iter().chain(revocations).collect()
    }
}

/// How old what the node knows of revocations may be: since when it has not read them, or runs;
/// `None` if it has none.
fn table_age_ms(engine: &NatsEngine, figures: &Figures) -> Option<u64> {
    let as_of_ms = engine.has_table().then(|| engine.table_as_of_ms())?;
    Some(clock::now_ms().saturating_sub(as_of_ms.unwrap_or(figures.since_ms)))
}

/// For how long the stream cannot be used; `None` if it can.
fn cut_off_ms(figures: &Figures, now_ms: u64) -> Option<u64> {
    (!figures.is_open).then(|| now_ms.saturating_sub(figures.since_ms))
}

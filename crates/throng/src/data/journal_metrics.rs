//! Disk usage of the data directory, and the speed of writes, on `/metrics` and in the status.

use std::sync::Arc;

use throng_control::{DataFigures, MetricSource, OtherMetric, OtherValue};
use throng_data::engine::DurableLogs;
use throng_data::journal::{DiskJournal, JournalFigures, JournalRefused};

/// The figures of a journal; none without a data directory.
pub(crate) struct JournalMetrics(pub(super) Option<(Arc<DiskJournal>, Arc<DurableLogs>)>);

impl MetricSource for JournalMetrics {
    fn metrics(&self) -> Vec<OtherMetric> {
        let Some((journal, engine)) = &self.0 else { return Vec::new() };
        let (figures, reads) = (journal.figures(), engine.read_figures());
        let JournalFigures { messages, message_bytes, disk_bytes, commits, unreadable, .. } =
            figures;
        let JournalFigures { names_kept, names_forgotten, .. } = figures;
        let metric = |name, help, value| OtherMetric { name, help, value };
        vec![
            metric(
                "data_bytes",
                "Size of the data directory on disk.",
                OtherValue::Gauge(disk_bytes),
            ),
            metric(
                "data_written_total",
                "Messages of durable channels that were written, and the bytes of their bodies.",
                OtherValue::CountersBy(
                    "of",
                    vec![("messages", messages), ("bytes", message_bytes)],
                ),
            ),
            metric(
                "data_commit_seconds",
                "Time to write and sync one group of messages.",
                OtherValue::Histogram(commits),
            ),
            metric(
                "data_unreadable_total",
                "Entries that were needed and cannot be read; the log has details.",
                OtherValue::Counter(unreadable),
            ),
            metric(
                "data_channels",
                "Channels and inboxes in the data directory; recounted after a start.",
                OtherValue::Gauge(names_kept),
            ),
            metric(
                "data_channels_forgotten_total",
                "Channels and inboxes forgotten because they were empty for long.",
                OtherValue::Counter(names_forgotten),
            ),
            metric(
                "log_reads_waiting",
                "Reads of durable logs that wait for a thread.",
                OtherValue::Gauge(reads.waiting),
            ),
            metric(
                "log_reads_held_bytes",
                "Bytes read from durable logs that wait for their subscription or page.",
                OtherValue::Gauge(reads.held_bytes),
            ),
            metric(
                "log_reads_held_bytes_max",
                "The limit of that.",
                OtherValue::Gauge(reads.held_bytes_max),
            ),
            metric(
                "log_reads_refused_total",
                "Readings of durable logs that were refused as others held the memory, refused as \
                 too many waited, or cut short as the client held its share of the memory.",
                OtherValue::CountersBy(
                    "reason",
                    vec![
                        ("memory", reads.refused_memory),
                        ("busy", reads.refused_busy),
                        ("share", reads.shortened),
                    ],
                ),
            ),
        ]
    }

    fn data(&self) -> Option<DataFigures> {
        let (journal, _) = self.0.as_ref()?;
        let figures = journal.figures();
        let JournalFigures { messages, message_bytes, disk_bytes, max_bytes, commits, .. } =
            figures;
        let refuses = journal.state().map(|refused| match refused {
            JournalRefused::Full => "full",
            JournalRefused::OverLimit => "limit",
            JournalRefused::Failed | JournalRefused::Busy => "failed",
        });
        let limit_bytes = (max_bytes < u64::MAX).then_some(max_bytes);
        Some(DataFigures { disk_bytes, limit_bytes, refuses, messages, message_bytes, commits })
    }
}

//! Refusals of changes by the data directory, its usage of the disk, and the speed of writes, on
//! `/metrics`, in the status and in what the probes say.

use throng_control::{Ailment, DataFigures, MetricSource, OtherMetric, OtherValue};
use throng_core::records::{Records as _, StoreError};
use throng_data::journal::{JournalFigures, JournalRefused};
use throng_data::rewriter::{RewriteFigures, Rewriter};

use super::DataDirectory;
use crate::journals::interface::gauge;

impl MetricSource for DataDirectory {
    fn metrics(&self) -> Vec<OtherMetric> {
        let (figures, reads) = (self.journal.figures(), self.logs.read_figures());
        let JournalFigures { messages, message_bytes, disk_bytes, commits, unreadable, .. } =
            figures;
        let JournalFigures { names_kept, names_forgotten, .. } = figures;
        let metric = |name, help, value| OtherMetric { name, help, value };
        let rewritten = rewritings(self.rewriter.as_ref().map(Rewriter::figures));
        let metrics = vec![
            refusals(self.records.state()),
            self.kept.metric(),
            gauge("data_bytes", "Size of the data directory on disk.", disk_bytes),
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
            gauge(
                "data_channels",
                "Channels and inboxes in the data directory; recounted after a start.",
                names_kept,
            ),
            metric(
                "data_channels_forgotten_total",
                "Channels and inboxes forgotten because they were empty for long.",
                OtherValue::Counter(names_forgotten),
            ),
            gauge(
                "log_reads_waiting",
                "Reads of durable logs that wait for a thread.",
                reads.waiting,
            ),
            gauge(
                "log_reads_held_bytes",
                "Bytes read from durable logs that wait for their subscription or page.",
                reads.held_bytes,
            ),
            gauge("log_reads_held_bytes_max", "The limit of that.", reads.held_bytes_max),
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
        ];
        metrics.into_iter().chain(rewritten).collect()
    }

    fn data(&self) -> Option<DataFigures> {
        let figures = self.journal.figures();
        let JournalFigures { messages, message_bytes, disk_bytes, max_bytes, commits, .. } =
            figures;
        let refuses = self.journal.state().map(|refused| match refused {
            JournalRefused::Full => "full",
            JournalRefused::OverLimit => "limit",
            JournalRefused::Failed | JournalRefused::Busy => "failed",
        });
        let limit_bytes = (max_bytes < u64::MAX).then_some(max_bytes);
        Some(DataFigures { disk_bytes, limit_bytes, refuses, messages, message_bytes, commits })
    }

    fn ailments(&self) -> Vec<Ailment> {
        ailment(self.records.state()).into_iter().chain(self.kept.ailment()).collect()
    }
}

fn rewritings(figures: Option<RewriteFigures>) -> [OtherMetric; 2] {
    let RewriteFigures { oldest_ms, done, failed } = figures.unwrap_or_default();
    [
        gauge(
            "data_erased_seconds",
            "Time since the first erasure whose bytes may still be in files; 0: there is none.",
            oldest_ms.map_or(0, |ms| ms / 1000),
        ),
        OtherMetric {
            name: "data_rewrites_total",
            help: "Rewritings of the data directory's files after erasures, by outcome.",
            value: OtherValue::CountersBy("outcome", vec![("done", done), ("failed", failed)]),
        },
    ]
}

fn refusals(state: Result<(), StoreError>) -> OtherMetric {
    let reasons = [
        ("full", StoreError::Full),
        ("limit", StoreError::OverLimit),
        ("failed", StoreError::Failed),
    ];
    let gauges = reasons.map(|(name, reason)| (name.into(), u64::from(state == Err(reason))));
    OtherMetric {
        name: "data_directory_refuses",
        help: "1 while the data directory refuses changes, by reason.",
        value: OtherValue::GaugesBy("reason", gauges.into()),
    }
}

fn ailment(state: Result<(), StoreError>) -> Option<Ailment> {
    state.err().map(|error| match error {
        StoreError::Full => {
            Ailment::new("data_full", "the disk of the data directory is full: it is not written")
        }
        StoreError::OverLimit => Ailment::new(
            "data_over_limit",
            "the data directory is beyond `data-max-bytes`: it is not written",
        ),
        StoreError::Failed | StoreError::Busy => {
            Ailment::new("data_failed", "the disk of the data directory fails: it is not written")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_nothing_is_shown() {
        for (state, gauges, reason) in [
            (Ok(()), [0, 0, 0], None),
            (Err(StoreError::Full), [1, 0, 0], Some("data_full")),
            (Err(StoreError::OverLimit), [0, 1, 0], Some("data_over_limit")),
            (Err(StoreError::Failed), [0, 0, 1], Some("data_failed")),
        ] {
            let OtherMetric { value: OtherValue::GaugesBy(_, values), .. } = refusals(state) else {
                panic!("a gauge for each reason");
            };
            assert_eq!(values.iter().map(|(_, value)| *value).collect::<Vec<_>>(), gauges);
            assert_eq!(ailment(state).map(|one| one.reason), reason);
        }
    }
}

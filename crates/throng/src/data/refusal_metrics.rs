//! Refusals of changes by the data directory, on `/metrics` and in what the probes say.

use std::sync::Arc;

use throng_control::{Ailment, MetricSource, OtherMetric, OtherValue};
use throng_core::records::{Records, StoreError};

use super::Data;

/// How the data directory is; nothing without one.
pub(crate) struct DataMetrics(Option<Arc<dyn Records>>);

impl DataMetrics {
    /// Those of a directory.
    pub(crate) fn of(data: Option<&Data>) -> DataMetrics {
        DataMetrics(data.map(|data| Arc::clone(&data.records)))
    }

    fn error(&self) -> Option<StoreError> {
        self.0.as_ref()?.state().err()
    }
}

impl MetricSource for DataMetrics {
    fn metrics(&self) -> Vec<OtherMetric> {
        if self.0.is_none() {
            return Vec::new();
        }
        let error = self.error();
        let reasons = [
            ("full", StoreError::Full),
            ("limit", StoreError::OverLimit),
            ("failed", StoreError::Failed),
        ];
        let gauges = reasons.map(|(name, reason)| (name.into(), u64::from(error == Some(reason))));
        vec![OtherMetric {
            name: "data_directory_refuses",
            help: "1 while the data directory refuses changes, by reason.",
            value: OtherValue::GaugesBy("reason", gauges.into()),
        }]
    }

    fn ailments(&self) -> Vec<Ailment> {
        let ailment = self.error().map(|error| match error {
            StoreError::Full => Ailment::new(
                "data_full",
                "the disk of the data directory is full: it is not written",
            ),
            StoreError::OverLimit => Ailment::new(
                "data_over_limit",
                "the data directory is beyond `data-max-bytes`: it is not written",
            ),
            StoreError::Failed | StoreError::Busy => Ailment::new(
                "data_failed",
                "the disk of the data directory fails: it is not written",
            ),
        });
        ailment.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use throng_core::Ticket;
    use throng_core::records::{Change, Each, Table};

    use super::*;

    struct Store(Result<(), StoreError>);

    impl Records for Store {
        fn change(&self, _: Vec<Change>, _: Ticket<Result<(), StoreError>>) {
            unreachable!("only its state is asked for")
        }

        fn state(&self) -> Result<(), StoreError> {
            self.0
        }

        fn read_all(&self, _: Table, _: Each<'_>) -> Result<(), String> {
            unreachable!("only its state is asked for")
        }
    }

    #[test]
    fn a_disk_that_takes_nothing_is_shown() {
        for (state, gauges, reason) in [
            (Ok(()), [0, 0, 0], None),
            (Err(StoreError::Full), [1, 0, 0], Some("data_full")),
            (Err(StoreError::OverLimit), [0, 1, 0], Some("data_over_limit")),
            (Err(StoreError::Failed), [0, 0, 1], Some("data_failed")),
        ] {
            let data = DataMetrics(Some(Arc::new(Store(state))));
            let [OtherMetric { value: OtherValue::GaugesBy(_, values), .. }] = &data.metrics()[..]
            else {
                panic!("one metric");
            };
            assert_eq!(values.iter().map(|(_, value)| *value).collect::<Vec<_>>(), gauges);
            let reasons: Vec<_> = data.ailments().iter().map(|one| one.reason).collect();
            assert_eq!(reasons, Vec::from_iter(reason));
        }
        let none = DataMetrics(None);
        assert!(none.metrics().is_empty() && none.ailments().is_empty());
    }
}

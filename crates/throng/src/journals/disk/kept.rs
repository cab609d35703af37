//! Reads which channels users follow from the data directory, while the server serves.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use throng_access::KeptSubscriptions;
use throng_access::kept::KeptProgress;
use throng_control::{Ailment, OtherMetric};
use throng_data::records::JournalRecords;
use throng_units::format::{counted, seconds};

use crate::journals::interface::gauge;

/// How long until a part that cannot be read is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Starts and ends the thread that reads, and says how far it has come.
pub(super) struct KeptReader(Arc<KeptSubscriptions>);

impl KeptReader {
    /// No thread yet.
    pub(super) fn new(kept: &Arc<KeptSubscriptions>) -> KeptReader {
        KeptReader(Arc::clone(kept))
    }

    /// Reads the first part, and starts the thread if there is more.
    ///
    /// # Errors
    ///
    /// The first part cannot be read, or an error of the system.
    pub(super) fn begin(&self, records: &Arc<JournalRecords>) -> Result<()> {
        let begun = Instant::now();
        let kept = Arc::clone(&self.0);
        let read = kept.begin_reading(Arc::clone(records) as _);
        read.context("cannot read the subscriptions of users from the disk")?;
        if kept.is_whole() {
            log_read(&kept, begun);
            return Ok(());
        }
        tracing::info!("reading the subscriptions of users while they are served");
        let thread = thread::Builder::new().name("kept".into());
        let thread = thread.spawn(move || read_all(&kept, begun));
        thread.context("cannot start the thread that reads subscriptions")?;
        Ok(())
    }

    /// Why no process can take over now: it would get a part of the subscriptions.
    pub(super) fn obstacle(&self) -> Option<String> {
        obstacle(self.0.progress())
    }

    /// Ends the thread, without waiting for it: it changes nothing, and the disk may hang.
    pub(super) fn end(&self) {
        self.0.end_reading();
    }

    /// How far reading has come, for the probes.
    pub(super) fn ailment(&self) -> Option<Ailment> {
        ailment(self.0.progress())
    }

    /// The same as a metric.
    pub(super) fn metric(&self) -> OtherMetric {
        let left = self.0.progress().map_or(0, |progress| progress.left);
        let help = "About how many kept subscriptions are not read from the disk yet; 0 once all \
                    are read.";
        gauge("kept_subscriptions_unread", help, left)
    }
}

fn obstacle(progress: Option<KeptProgress>) -> Option<String> {
    let percent = progress?.percent();
    Some(format!(
        "the subscriptions of users are still being read from the disk, about {percent} % so far; \
         try again later"
    ))
}

fn ailment(progress: Option<KeptProgress>) -> Option<Ailment> {
    let percent = progress?.percent();
    Some(Ailment::new(
        "reading_subscriptions",
        format!(
            "the subscriptions of users are being read from the disk, about {percent} % so far: \
             users who come have theirs read first"
        ),
    ))
}

/// Reads until nothing is left, or the server ends.
fn read_all(kept: &KeptSubscriptions, begun: Instant) {
    let mut is_failing = false;
    while !kept.has_ended_reading() {
        match kept.read_on() {
            Ok(true) => is_failing = false,
            Ok(false) => return log_read(kept, begun),
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(
                        "a part of the subscriptions of users cannot be read from the disk: \
                         {error}; it is tried again"
                    );
                }
                kept.wait_until_asked(RETRY);
            }
        }
    }
}

fn log_read(kept: &KeptSubscriptions, begun: Instant) {
    let counts = kept.counts();
    tracing::info!(
        "read {} of {} in {}",
        counted(counts.subscriptions as u64, "subscription", "subscriptions"),
        counted(counts.users as u64, "user", "users"),
        seconds(begun.elapsed().as_secs_f64()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_say_how_far_reading_has_come() {
        assert_eq!(ailment(None).map(|ailment| ailment.reason), None);
        assert_eq!(obstacle(None), None);
        for (read, left, shown) in [(0, 1, "about 0 %"), (30, 70, "30 %"), (9_999, 1, "99 %")] {
            let ailment = ailment(Some(KeptProgress { read, left })).expect("it is being read");
            assert!(ailment.message.contains(shown), "{}", ailment.message);
            assert!(!ailment.is_at_start, "users are served");
            assert!(
                obstacle(Some(KeptProgress { read, left })).is_some_and(|it| it.contains(shown))
            );
        }
    }
}

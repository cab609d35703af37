//! Waits for outstanding deliveries at the end of a phase, and audits.

use std::time::{Duration, Instant};

use super::state::{EarlyEnd, Runner};
use crate::audit::Audit;
use crate::clients::ClientSet;
use crate::plan::Network;
use crate::publish;

/// How long to wait for outstanding deliveries.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitLimits {
    /// Without any delivery.
    quiet: Duration,
    /// In total, deliveries or not.
    most: Duration,
}

impl WaitLimits {
    /// At the end of a phase.
    pub(super) const LONG: WaitLimits =
        WaitLimits { quiet: Duration::from_secs(3), most: Duration::from_secs(60) };
    /// When the run ends early.
    pub(super) const SHORT: WaitLimits =
        WaitLimits { quiet: Duration::from_millis(500), most: Duration::from_secs(3) };
}

/// The first audit comes after this time without deliveries, and the next ones after twice the
/// time each, because an audit accesses the memory of every client.
const FIRST_AUDIT: Duration = Duration::from_millis(60);

impl<C: ClientSet> Runner<'_, C> {
    /// Waits until all publishes are answered and all expected deliveries have arrived, or until
    /// none has arrived for a while.
    pub(super) fn wait_for_completion(&mut self, limits: WaitLimits) -> Result<(), EarlyEnd> {
        let nothing_published = self.scheduled == 0;
        if nothing_published {
            return Ok(());
        }
        let limits = match self.plan.network {
            Network::Sockets => limits,
            // Lost packets are retransmitted after this time.
            Network::Tunnel => {
                WaitLimits { quiet: limits.quiet + throng_tunnel::RTO_MIN, ..limits }
            }
        };
        let began = Instant::now();
        let answers = self.wait_for_publishes(began + limits.most);
        let deliveries =
            answers.and_then(|()| self.wait_for_deliveries(limits, began + limits.most));
        // Also if the run ends early, the current counts are audited.
        self.audit();
        self.collect_publishes(u64::MAX);
        deliveries
    }

    fn wait_for_publishes(&mut self, deadline: Instant) -> Result<(), EarlyEnd> {
        let mut passed = Ok(());
        while self.publishers.as_ref().is_some_and(|publishers| !publishers.is_idle()) {
            if passed.is_err() || Instant::now() >= deadline {
                if let Some(publishers) = &mut self.publishers {
                    publishers.abandon();
                }
                // The next poll counts what was given up.
                self.is_ending |= passed.is_err();
                let _ = self.wait_briefly();
                break;
            }
            passed = self.wait_briefly();
        }
        passed
    }

    fn wait_for_deliveries(
        &mut self,
        limits: WaitLimits,
        deadline: Instant,
    ) -> Result<(), EarlyEnd> {
        let mut received = self.phase.clients.received;
        let mut moved_at = Instant::now();
        let mut audit_after = FIRST_AUDIT;
        loop {
            self.wait_briefly()?;
            let now = Instant::now();
            if self.phase.clients.received != received {
                received = self.phase.clients.received;
                (moved_at, audit_after) = (now, FIRST_AUDIT);
            }
            let quiet = now - moved_at;
            if quiet >= audit_after {
                audit_after *= 2;
                self.audit();
                if self.audit.lost <= self.lost_for_good {
                    return Ok(());
                }
            }
            if quiet >= limits.quiet || now >= deadline {
                // What is missing now is lost. Later phases need not wait for it again.
                self.lost_for_good = self.audit.lost;
                return Ok(());
            }
        }
    }

    fn audit(&mut self) {
        let audit = self.client_set.audit(publish::sent(&self.counters));
        // Not accumulated: what is missing in one audit may arrive before the next.
        self.phase.audit = since(&audit, &self.audit_before);
        self.total.audit = audit;
        self.audit = audit;
    }
}

/// The difference to the audit at the start of the phase.
fn since(now: &Audit, before: &Audit) -> Audit {
    Audit {
        expected: now.expected.saturating_sub(before.expected),
        received: now.received.saturating_sub(before.received),
        // What was missing then may have arrived since.
        lost: now.lost.saturating_sub(before.lost),
        missed: now.missed.saturating_sub(before.missed),
        duplicated: now.duplicated.saturating_sub(before.duplicated),
        reordered: now.reordered.saturating_sub(before.reordered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_the_difference_of_audits() {
        let audit = |expected, lost| Audit { expected, lost, ..Audit::default() };
        assert_eq!(since(&audit(100, 1), &audit(40, 3)), audit(60, 0));
        assert_eq!(since(&audit(100, 5), &audit(40, 3)), audit(60, 2));
    }
}

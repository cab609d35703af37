//! The wait for what is still on its way at the end of a phase, and the audit.

use std::time::{Duration, Instant};

use super::{Conductor, Crowd, Cut};
use crate::audit::Audit;
use crate::plan::Network;
use crate::publish;

/// How long what is on its way is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Without a single delivery.
    quiet: Duration,
    /// In all.
    most: Duration,
}

impl Patience {
    /// At the end of a phase.
    pub(super) const LONG: Patience =
        Patience { quiet: Duration::from_secs(3), most: Duration::from_secs(60) };
    /// When the run is cut short.
    pub(super) const SHORT: Patience =
        Patience { quiet: Duration::from_millis(500), most: Duration::from_secs(3) };
}

/// After a silence of this length it is worth while to look whether all is there; and then again
/// after twice the time each, because looking costs each client a memory access.
const FIRST_AUDIT: Duration = Duration::from_millis(60);

impl<C: Crowd> Conductor<'_, C> {
    /// Waits until all publishes are answered and all deliveries that were due have come, or
    /// nothing has come for a while.
    pub(super) fn settle(&mut self, patience: Patience) -> Result<(), Cut> {
        let patience = match self.plan.network {
            Network::Sockets => patience,
            // What was lost comes again so late.
            Network::Tunnel => {
                Patience { quiet: patience.quiet + throng_tunnel::RTO_MIN, ..patience }
            }
        };
        let nothing_published = self.scheduled == 0;
        if nothing_published {
            return Ok(());
        }
        let began = Instant::now();
        let answers = self.settle_publishes(began + patience.most);
        let deliveries =
            answers.and_then(|()| self.settle_deliveries(patience, began + patience.most));
        // Cut short or not: the figures are those of now.
        self.audit();
        self.collect_publishes(Duration::ZERO);
        deliveries
    }

    fn settle_publishes(&mut self, deadline: Instant) -> Result<(), Cut> {
        let mut passed = Ok(());
        while self.publishers.as_ref().is_some_and(|publishers| !publishers.is_idle()) {
            if passed.is_err() || Instant::now() >= deadline {
                if let Some(publishers) = &mut self.publishers {
                    publishers.abandon();
                }
                // What was given up is counted with the next look.
                self.is_ending |= passed.is_err();
                let _ = self.pass_closely();
                break;
            }
            passed = self.pass_closely();
        }
        passed
    }

    fn settle_deliveries(&mut self, patience: Patience, deadline: Instant) -> Result<(), Cut> {
        let mut received = self.phase.clients.received;
        let mut moved_at = Instant::now();
        let mut audit_after = FIRST_AUDIT;
        loop {
            self.pass_closely()?;
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
            if quiet >= patience.quiet || now >= deadline {
                // What is missing now is lost; later phases need not wait for it again.
                self.lost_for_good = self.audit.lost;
                return Ok(());
            }
        }
    }

    fn audit(&mut self) {
        let audit = self.crowd.audit(publish::sent(&self.board));
        // Not summed up from look to look: what was missing at one may be there at the next.
        self.phase.audit = since(&audit, &self.audit_before);
        self.total.audit = audit;
        self.audit = audit;
    }
}

/// What an audit says beyond the one at the start of the phase.
fn since(now: &Audit, before: &Audit) -> Audit {
    Audit {
        expected: now.expected.saturating_sub(before.expected),
        received: now.received.saturating_sub(before.received),
        // What was missing then may have come since.
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
    fn a_phase_has_what_an_audit_added() {
        let audit = |expected, lost| Audit { expected, lost, ..Audit::default() };
        assert_eq!(since(&audit(100, 1), &audit(40, 3)), audit(60, 0));
        assert_eq!(since(&audit(100, 5), &audit(40, 3)), audit(60, 2));
    }
}

//! What the conductor needs of the clients: a fleet on this machine, or several, or a fake.

use std::sync::Arc;
use std::time::Duration;

use crate::audit::Audit;
use crate::clients::{Fleet, PublishSeen};
use crate::tally::Tally;

/// The clients of a run. The methods are those of [`Fleet`].
pub trait Crowd {
    /// See [`Fleet::ramp`].
    fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize);
    /// See [`Fleet::churn`].
    fn churn(&self, rate: f64);
    /// See [`Fleet::storm`].
    fn storm(&self, in_flight: usize);
    /// See [`Fleet::slow`].
    fn slow(&self, share: f64, is_slow: bool);
    /// See [`Fleet::tally`].
    fn tally(&self) -> Tally;
    /// See [`Fleet::publishes`].
    fn publishes(&self, age: Duration) -> Vec<PublishSeen>;
    /// See [`Fleet::audit`].
    fn audit(&self, sent: Arc<[u64]>) -> Audit;
    /// See [`Fleet::busiest`].
    fn busiest(&self) -> f64;
    /// Publishing begins, or has ended. Clients of this process see that on the board.
    fn publishing(&self, _is_publishing: bool) {}
    /// Called often while time passes: what is published is told to clients elsewhere now and then.
    fn keep_told(&self) {}
}

impl Crowd for Fleet {
    fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize) {
        Fleet::ramp(self, to, rate, in_flight);
    }

    fn churn(&self, rate: f64) {
        Fleet::churn(self, rate);
    }

    fn storm(&self, in_flight: usize) {
        Fleet::storm(self, in_flight);
    }

    fn slow(&self, share: f64, is_slow: bool) {
        Fleet::slow(self, share, is_slow);
    }

    fn tally(&self) -> Tally {
        Fleet::tally(self)
    }

    fn publishes(&self, age: Duration) -> Vec<PublishSeen> {
        Fleet::publishes(self, age)
    }

    fn audit(&self, sent: Arc<[u64]>) -> Audit {
        Fleet::audit(self, sent)
    }

    fn busiest(&self) -> f64 {
        Fleet::busiest(self)
    }
}

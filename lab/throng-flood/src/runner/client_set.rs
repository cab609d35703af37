//! What the runner needs of the clients: one pool on this machine, several pools, or a fake.

use std::sync::Arc;
use std::time::Duration;

use crate::audit::Audit;
use crate::clients::{ClientPool, PublishDeliveries};
use crate::counts::ClientCounts;

/// The clients of a run. The methods are those of [`ClientPool`], where their contracts are.
pub(crate) trait ClientSet {
    /// Brings the number of clients to `to`, at `rate` per second, with at most `in_flight`
    /// connects in progress.
    fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize);
    /// Closes and opens `rate` clients per second; 0 ends it.
    fn churn(&self, rate: f64);
    /// Resets all connections and opens them again.
    fn storm(&self, in_flight: usize);
    /// Makes a share of the clients stop reading, or read again.
    fn slow(&self, share: f64, is_slow: bool);
    /// The counts since the last call.
    fn counts(&self) -> ClientCounts;
    /// The deliveries of each message older than `age`.
    fn publishes(&self, age: Duration) -> Vec<PublishDeliveries>;
    /// Compares what the clients received with what was sent.
    fn audit(&self, sent: Arc<[u64]>) -> Audit;
    /// The share of time that the busiest client thread was busy since the last call.
    fn busiest(&self) -> f64;
    /// Publishing starts or has ended. Clients of this process see that in the counters.
    fn publishing(&self, _is_publishing: bool) {}
    /// Called often, so that clients on other machines learn what is published.
    fn send_updates(&self) {}
}

impl ClientSet for ClientPool {
    fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize) {
        ClientPool::ramp(self, to, rate, in_flight);
    }

    fn churn(&self, rate: f64) {
        ClientPool::churn(self, rate);
    }

    fn storm(&self, in_flight: usize) {
        ClientPool::storm(self, in_flight);
    }

    fn slow(&self, share: f64, is_slow: bool) {
        ClientPool::slow(self, share, is_slow);
    }

    fn counts(&self) -> ClientCounts {
        ClientPool::counts(self)
    }

    fn publishes(&self, age: Duration) -> Vec<PublishDeliveries> {
        ClientPool::publishes(self, age)
    }

    fn audit(&self, sent: Arc<[u64]>) -> Audit {
        ClientPool::audit(self, sent)
    }

    fn busiest(&self) -> f64 {
        ClientPool::busiest(self)
    }
}

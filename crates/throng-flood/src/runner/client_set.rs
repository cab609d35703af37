//! What the runner needs of the clients: one pool on this machine, several pools, or a fake.

use std::sync::Arc;
use std::time::Duration;

use crate::audit::Audit;
use crate::clients::{ClientPool, PublishDeliveries};
use crate::counts::ClientCounts;

/// The clients of a run. The methods are those of [`ClientPool`].
pub trait ClientSet {
    /// See [`ClientPool::ramp`].
    fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize);
    /// See [`ClientPool::churn`].
    fn churn(&self, rate: f64);
    /// See [`ClientPool::storm`].
    fn storm(&self, in_flight: usize);
    /// See [`ClientPool::slow`].
    fn slow(&self, share: f64, is_slow: bool);
    /// See [`ClientPool::counts`].
    fn counts(&self) -> ClientCounts;
    /// See [`ClientPool::publishes`].
    fn publishes(&self, age: Duration) -> Vec<PublishDeliveries>;
    /// See [`ClientPool::audit`].
    fn audit(&self, sent: Arc<[u64]>) -> Audit;
    /// See [`ClientPool::busiest`].
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

//! Callouts: the application's endpoints decide what clients may do, and are notified of what has
//! happened.
//!
//! Requests are signed after the [Standard Webhooks](https://www.standardwebhooks.com) convention.
//! A decision that does not come is a refusal that says so (`busy`); connections that are there
//! stay. An endpoint that fails again and again is left alone for a while.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `policy` | the access policy that asks the application |
//! | `decider` | asks one endpoint, within limits |
//! | `breaker` | leaves alone an endpoint that fails |
//! | `cache` | answers, as long as they hold |
//! | `question`, `answer` | both in JSON |
//! | `events` | events that wait for delivery |
//! | `delivery` | delivers them in batches, with retries |
//! | `retry` | when a batch is sent again |
//! | `caller` | sends a signed request |
//! | `secret` | signs |
//! | `metrics`, `error` | what is counted, and what can fail |

mod answer;
mod breaker;
mod cache;
mod caller;
mod decider;
mod delivery;
mod error;
mod events;
mod metrics;
mod policy;
mod question;
mod retry;
mod secret;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use throng_access::Access;
use throng_access::pattern::Pattern;
use throng_core::events::EventSink;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Origin, Trust};
use crate::endpoint::Endpoint;
use caller::Caller;
use decider::{Decider, DeciderLimits};
use delivery::Delivery;
pub use events::Notifies;
use events::{EventQueue, EventQueues};
pub use metrics::CalloutMetrics;
use policy::{CalloutPolicy, Route};
pub use question::Asks;
pub use secret::{SECRETS_MAX, Secret, SecretError};

/// One callout of the configuration.
#[derive(Debug)]
pub struct CalloutSettings {
    /// Where its requests go.
    pub endpoint: Endpoint,
    /// Each signs every request.
    pub secrets: Vec<Secret>,
    /// What the endpoint decides.
    pub asks: Vec<Asks>,
    /// What it is notified of.
    pub notifies: Vec<Notifies>,
    /// The channels or users that it decides about and hears of; `None` for all.
    pub pattern: Option<Pattern>,
    /// The deadline of a request.
    pub timeout: Duration,
    /// The most questions at a time.
    pub max_in_flight: usize,
    /// The most questions that wait, and the most events.
    pub max_queued: usize,
    /// The most answers that are cached.
    pub max_cached: usize,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All callouts of a server, not running yet.
pub struct Callouts {
    routes: Vec<Route>,
    queues: Vec<EventQueue>,
    deciders: Vec<Task>,
    deliveries: Vec<Task>,
    stops: Vec<Arc<Notify>>,
    metrics: Arc<CalloutMetrics>,
}

/// Callouts that run.
#[derive(Debug)]
pub struct RunningCallouts {
    /// They run until the process ends: both planes may ask until then.
    _deciders: JoinSet<()>,
    deliveries: JoinSet<()>,
    stops: Vec<Arc<Notify>>,
}

impl Callouts {
    /// The callouts of the configuration. The first that matches decides; each that matches is
    /// notified.
    pub fn new(settings: Vec<CalloutSettings>, trust: &Trust) -> Callouts {
        let mut callouts = Callouts {
            routes: Vec::new(),
            queues: Vec::new(),
            deciders: Vec::new(),
            deliveries: Vec::new(),
            stops: Vec::new(),
            metrics: Arc::default(),
        };
        for one in settings {
            callouts.add(one, trust);
        }
        callouts
    }

    fn add(&mut self, settings: CalloutSettings, trust: &Trust) {
        let caller = |max_connections| {
            let endpoint = settings.endpoint.clone();
            let origin = Origin::new(endpoint, trust.clone(), max_connections);
            Caller { origin, secrets: settings.secrets.clone(), timeout: settings.timeout }
        };
        if !settings.asks.is_empty() {
            let limits = DeciderLimits {
                max_in_flight: settings.max_in_flight,
                max_waiting: settings.max_queued,
                max_cached: settings.max_cached,
            };
            let caller = caller(settings.max_in_flight);
            let (decider, task) = Decider::new(caller, limits, Arc::clone(&self.metrics));
            self.deciders.push(Box::pin(task.run()));
            let (asks, pattern) = (settings.asks.clone(), settings.pattern.clone());
            self.routes.push(Route { asks, pattern, decider: Arc::new(decider) });
        }
        if !settings.notifies.is_empty() {
            let (sender, events) = mpsc::channel(settings.max_queued.max(1));
            let (dropped, stop) = (Arc::default(), Arc::<Notify>::default());
            let metrics = Arc::clone(&self.metrics);
            self.stops.push(Arc::clone(&stop));
            let (kinds, pattern) = (settings.notifies.clone(), settings.pattern.clone());
            self.queues.push(EventQueue {
                kinds,
                pattern,
                events: sender,
                dropped: Arc::clone(&dropped),
                metrics: Arc::clone(&metrics),
            });
            let delivery = Delivery { caller: caller(1), events, dropped, metrics, stop };
            self.deliveries.push(Box::pin(delivery.run()));
        }
    }

    /// The policy that asks the application about what `rules` allow, which must decide at once.
    /// Call once; if no callout decides, these are the rules themselves.
    pub fn policy(&mut self, rules: Arc<dyn Access>) -> Arc<dyn Access> {
        let routes = std::mem::take(&mut self.routes);
        if routes.is_empty() { rules } else { Arc::new(CalloutPolicy { rules, routes }) }
    }

    /// Takes the events. Call once; `None` if no callout is notified.
    pub fn events(&mut self) -> Option<Arc<dyn EventSink>> {
        let queues = std::mem::take(&mut self.queues);
        (!queues.is_empty()).then(|| Arc::new(EventQueues(queues)) as _)
    }

    /// What they count.
    pub fn metrics(&self) -> Arc<CalloutMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Starts them. Must be called within a runtime.
    pub fn start(self) -> RunningCallouts {
        let (deciders, deliveries) = (self.deciders, self.deliveries);
        RunningCallouts {
            _deciders: deciders.into_iter().collect(),
            deliveries: deliveries.into_iter().collect(),
            stops: self.stops,
        }
    }
}

impl RunningCallouts {
    /// Delivers the events that wait, for at most this time. Call when no further ones come.
    pub async fn finish(mut self, max_time: Duration) {
        self.stops.iter().for_each(|stop| stop.notify_one());
        let all = async { while self.deliveries.join_next().await.is_some() {} };
        if timeout(max_time, all).await.is_err() {
            tracing::warn!("the application has not taken all events in time");
        }
    }
}

#[cfg(test)]
mod tests;

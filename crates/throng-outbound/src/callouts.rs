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
//! | `connect` | asks the application who a client without a credential is |
//! | `decider` | asks one endpoint, within limits |
//! | `breaker` | leaves alone an endpoint that fails |
//! | `cache` | answers, as long as they hold |
//! | `question`, `answer` | both in JSON |
//! | `verdict` | what an answer is, whatever the question |
//! | `events` | what the application is notified of |
//! | `queue` | events that wait for delivery |
//! | `delivery` | delivers them in batches, with retries |
//! | `caller` | sends a signed request |
//! | `secret` | signs |
//! | `metrics`, `error` | what is counted, and what can fail |

mod answer;
mod breaker;
mod cache;
mod caller;
mod connect;
mod decider;
mod delivery;
mod error;
mod events;
mod metrics;
mod policy;
mod question;
mod queue;
mod secret;
mod verdict;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use throng_access::pattern::Pattern;
use throng_access::{Access, Clients, Connect, GrantsPool, Passed, Revocations};
use throng_core::events::EventSink;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Origin, Trust};
use crate::endpoint::Endpoint;
use answer::ContentLimits;
use caller::Caller;
use connect::{ConnectAnswer, ConnectCallout, ConnectReader};
use decider::{CalloutEndpoint, Decider, DeciderTask};
use delivery::EventDelivery;
pub use events::Notifies;
use events::{EventQueue, EventQueues};
pub use metrics::CalloutMetrics;
use policy::{CalloutPolicy, CalloutRoute};
pub use question::Asks;
use queue::Queue;
pub use secret::{SECRETS_MAX, Secret, SecretError};

/// One callout of the configuration.
#[derive(Debug)]
pub struct CalloutSettings {
    /// Where its requests go.
    pub endpoint: Endpoint,
    /// Each signs every request.
    pub secrets: Vec<Secret>,
    /// Questions that the endpoint decides.
    pub asks: Vec<Asks>,
    /// The part of a request that the endpoint gets with a question, besides credentials.
    pub passed: Passed,
    /// True if the endpoint that decides who clients are is also asked about clients with a token.
    pub decides_tokens: bool,
    /// Events that the endpoint is notified of.
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
    /// The most bytes of a message's content that a question about a publication has; 0: none of
    /// it.
    pub max_content_bytes: usize,
    /// The most bytes of the body of a message.
    pub max_message_bytes: usize,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All callouts of a server, not running yet.
pub struct Callouts {
    routes: Vec<CalloutRoute>,
    connect: Option<ConnectPart>,
    queues: Vec<EventQueue>,
    deciders: Vec<Task>,
    deliveries: Vec<Task>,
    stops: Vec<Arc<Notify>>,
    metrics: Arc<CalloutMetrics>,
    clients: Arc<Clients>,
}

/// The callout that says who clients are, until it is known what is revoked.
struct ConnectPart {
    passed: Passed,
    endpoint: Arc<CalloutEndpoint>,
    max_queued: usize,
    max_cached: usize,
    decides_tokens: bool,
}

/// Callouts that ask and deliver, on tasks of the runtime that started them.
#[derive(Debug)]
pub struct RunningCallouts {
    /// They run until the process ends: both planes may ask until then.
    _deciders: JoinSet<()>,
    deliveries: JoinSet<()>,
    stops: Vec<Arc<Notify>>,
}

impl Callouts {
    /// The callouts of the configuration. The first that matches decides; each that matches is
    /// notified. `clients` limits how many questions of an address are open.
    pub fn new(settings: Vec<CalloutSettings>, trust: &Trust, clients: Arc<Clients>) -> Callouts {
        let mut callouts = Callouts {
            routes: Vec::new(),
            connect: None,
            queues: Vec::new(),
            deciders: Vec::new(),
            deliveries: Vec::new(),
            stops: Vec::new(),
            metrics: Arc::default(),
            clients,
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
            let (max_queued, max_cached) = (settings.max_queued, settings.max_cached);
            let max_in_flight = settings.max_in_flight;
            let metrics = Arc::clone(&self.metrics);
            let endpoint = CalloutEndpoint::new(
                caller(max_in_flight),
                max_in_flight,
                metrics,
                Arc::clone(&self.clients),
            );
            let (connects, asks): (Vec<_>, Vec<_>) =
                settings.asks.iter().copied().partition(|&asks| asks == Asks::Connect);
            let passed = settings.passed.clone();
            if !asks.is_empty() {
                let max_content_bytes = settings.max_content_bytes;
                let limits = ContentLimits {
                    max_asked_bytes: max_content_bytes,
                    max_message_bytes: settings.max_message_bytes,
                };
                let (decider, task) = Decider::new(&endpoint, max_queued, max_cached, limits);
                self.start_later(task);
                let (pattern, passed) = (settings.pattern.clone(), passed.clone());
                self.routes.push(CalloutRoute {
                    asks,
                    pattern,
                    passed,
                    max_content_bytes,
                    decider,
                });
            }
            if !connects.is_empty() {
                self.connect = Some(ConnectPart {
                    passed,
                    endpoint,
                    max_queued,
                    max_cached,
                    decides_tokens: settings.decides_tokens,
                });
            }
        }
        if !settings.notifies.is_empty() {
            let queue = Arc::new(Queue::new(settings.max_queued, Arc::clone(&self.metrics)));
            let stop = Arc::<Notify>::default();
            self.stops.push(Arc::clone(&stop));
            let (kinds, pattern) = (settings.notifies.clone(), settings.pattern.clone());
            self.queues.push(EventQueue { kinds, pattern, queue: Arc::clone(&queue) });
            // One connection is enough: batches are sent one after the other, to keep their order.
            let delivery = EventDelivery { caller: caller(1), queue, stop };
            self.deliveries.push(Box::pin(delivery.run()));
        }
    }

    fn start_later<V: verdict::Verdict>(&mut self, task: DeciderTask<V>) {
        self.deciders.push(Box::pin(task.run()));
    }

    /// The parts of a request that any of the endpoints gets. Call it before the others are taken.
    pub fn passed(&self) -> Passed {
        let routes = self.routes.iter().map(|route| &route.passed);
        let all = routes.chain(self.connect.as_ref().map(|connect| &connect.passed));
        let mut headers: Vec<_> = all.clone().flat_map(|passed| passed.headers.clone()).collect();
        headers.sort_unstable();
        headers.dedup();
        let is_limited = self.clients.limiter.limits_questions() && all.clone().next().is_some();
        let address = is_limited || all.clone().any(|passed| passed.address);
        Passed { headers: headers.into(), address, users: !self.routes.is_empty() }
    }

    /// Asks the application who a client without a credential is; `None` if no callout decides
    /// that. An answer holds for `max_age_s` at most, and not for users who are revoked. Call once.
    pub fn connect(
        &mut self,
        revocations: &Arc<Revocations>,
        max_age_s: u32,
    ) -> Option<Arc<dyn Connect>> {
        let part = self.connect.take()?;
        let ConnectPart { passed, endpoint, max_queued, max_cached, decides_tokens } = part;
        let reader = ConnectReader { pool: GrantsPool::default(), max_age_s };
        let (decider, task) =
            Decider::<ConnectAnswer>::new(&endpoint, max_queued, max_cached, reader);
        self.start_later(task);
        let revocations = Arc::clone(revocations);
        Some(Arc::new(ConnectCallout { passed, decider, decides_tokens, revocations }))
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

    /// The metrics of all callouts; they go on after the start.
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
    /// Runs another delivery beside these, which ends once `stop` is notified.
    pub(crate) fn deliver(
        &mut self,
        stop: Arc<Notify>,
        delivery: impl Future<Output = ()> + Send + 'static,
    ) {
        self.stops.push(stop);
        self.deliveries.spawn(delivery);
    }

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

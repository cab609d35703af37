//! Webhooks of applications that speak the Pusher protocol: what has happened on their channels,
//! in the protocol's form, and signed with the application's key.
//!
//! An application has two queues, each of which keeps the order of its events, and so of each
//! channel: one for public channels, where strangers cause as many as they like, and one for all
//! others, which they cannot fill. A request is sent until it is answered with a success, for some
//! minutes, and only then the next one of its queue.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `kind` | what an application can be told of |
//! | `happened` | what has happened, and its JSON |
//! | `waiting` | what is not delivered yet |
//! | `pending` | departures that wait for a return |
//! | `repeats` | what need not be told again |
//! | `standby` | what another node sends, for now |
//! | `delivery` | sends what has happened, in batches |
//!
//! # Invariants
//!
//! * What waits for an application is bounded in number and in bytes. What does not fit is dropped,
//!   counted, and logged once a minute.
//! * Nothing waits in [`EventSink::notify`]: workers and engine call it.
//!
//! With several nodes, what concerns all of them is sent by the one that leads
//! ([`throng_core::Tallies`]), and stands by on the others; clients' events and missed caches are
//! sent where they happen.

mod delivery;
mod happened;
mod kind;
mod pending;
mod repeats;
mod standby;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use throng_access::{AccessControl, Apps, ClientApp};
use throng_core::events::{Dropped, Event, EventSink};
use throng_core::name::{ChannelName, Kind};
use throng_core::{ConnectionName, VolatilePublication, clock};
use throng_pusher::Channel;
use throng_pusher::app::split_prefix;
use throng_pusher::channel::Access;

use crate::callouts::RunningCallouts;
use crate::client::{Origin, Trust};
use crate::delivery::DeliveryMetrics;
use crate::endpoint::Endpoint;
use delivery::WebhookDelivery;
use happened::{Happened, What};
pub use kind::Webhook;
use standby::OnStandby;
use waiting::Waiting;

/// The webhook of one application.
#[derive(Debug)]
pub struct WebhookSettings {
    /// The id of the application.
    pub app: String,
    pub endpoint: Endpoint,
    pub wants: Vec<Webhook>,
    /// The deadline of a request.
    pub timeout: Duration,
    /// The most events that wait, of public channels and of others.
    pub max_queued: usize,
    /// True if other nodes have clients of the application, too.
    pub has_nodes: bool,
}

impl WebhookSettings {
    /// True if it is told of what all nodes have to know of each other.
    pub fn is_of_all(&self) -> bool {
        self.wants.iter().any(|want| !matches!(want, Webhook::ClientEvent | Webhook::CacheMiss))
    }
}

/// The events of one application on its public channels, or on all others: the end that workers and
/// engine use.
#[derive(Debug)]
struct WebhookQueue {
    app: Arc<ClientApp>,
    is_public: bool,
    wants: Vec<Webhook>,
    waiting: Arc<Waiting>,
    /// What concerns all nodes, if there are several.
    standby: Option<Arc<OnStandby>>,
    metrics: Arc<DeliveryMetrics>,
}

impl WebhookQueue {
    /// What an event is for the application; `None` if it is not told of it.
    fn what(&self, event: Event<'_>, apps: &Apps) -> Option<What> {
        let wants = |either, or| self.wants.contains(&either) || self.wants.contains(&or);
        let own = |name: &str| self.app.app().shown(name).map(Box::from);
        let (channels, members) = (
            || wants(Webhook::ChannelOccupied, Webhook::ChannelVacated),
            || wants(Webhook::MemberAdded, Webhook::MemberRemoved),
        );
        // One of each pair takes back the other, whichever of them is wanted.
        match event {
            Event::Occupied(_) if channels() => Some(What::Occupied),
            Event::Vacated(_) if channels() => Some(What::Vacated),
            Event::MemberAdded(_, key) if members() => Some(What::MemberAdded(own(key)?)),
            Event::MemberRemoved(_, key) if members() => Some(What::MemberRemoved(own(key)?)),
            Event::Counted(_, count) if self.wants.contains(&Webhook::SubscriptionCount) => {
                Some(What::Count(Arc::new(count.into())))
            }
            Event::CacheMiss(name) if self.wants.contains(&Webhook::CacheMiss) => {
                let is_cache = Channel::of(&shown(name)).is_some_and(Channel::is_cache);
                is_cache.then_some(What::CacheMiss)
            }
            Event::ClientEvent(connection, event) if self.wants.contains(&Webhook::ClientEvent) => {
                Some(self.client_event(connection, event, apps))
            }
            _ => None,
        }
    }

    fn client_event(
        &self,
        connection: ConnectionName,
        event: &VolatilePublication,
        apps: &Apps,
    ) -> What {
        let user = |from: &str| self.app.app().shown(from).map(Box::from);
        let socket = apps.socket(&self.app, connection);
        happened::client_event(socket, event, user)
    }

    /// Has what happened sent, here or on the node that leads.
    fn take(&self, now_ms: u64, channel: &ChannelName, what: What) {
        let happened = Happened { at_ms: clock::wall_ms(now_ms), channel: shown(channel), what };
        if happened.what.is_of_all()
            && let Some(standby) = &self.standby
        {
            match standby.take(now_ms, happened) {
                Ok(now) => now.into_iter().for_each(|happened| self.waiting.push(happened)),
                Err(Dropped::New(_)) => self.waiting.drop_event(),
                Err(Dropped::Oldest(_)) => self.metrics.not_repeated.add(1),
            }
        } else {
            self.waiting.push(happened);
        }
    }

    /// Which node leads is known, or not any more.
    fn follow(&self, now_ms: u64, event: Event<'_>) {
        if let Some(standby) = &self.standby {
            standby.follow(now_ms, event, |happened| self.waiting.push(happened));
        }
    }

    /// Drops what names a user and happened before a time. Returns how much that is.
    fn forget_user(&self, user: &str, before_ms: u64) -> u64 {
        let Some(own) = self.app.app().shown(user) else { return 0 };
        let names = [own, &*shown(&ChannelName::user(user))];
        let standby = self.standby.as_ref();
        let on_standby = standby.map_or(0, |standby| standby.forget_user(names, before_ms));
        on_standby + self.waiting.forget_user(names, before_ms)
    }
}

/// Whether everybody may follow a channel; `None` if the protocol has no name for it. Native
/// clients may follow others.
fn is_public(name: &ChannelName) -> Option<bool> {
    let is_public = || Some(Channel::of(&shown(name))?.access() == Access::Public);
    (name.kind() != Kind::Internal).then(is_public)?
}

/// The application's name of a channel, or of its user's.
fn shown(name: &ChannelName) -> Box<str> {
    let (_, own) = split_prefix(name.name());
    match name.kind() {
        Kind::User => [throng_pusher::channel::OF_USER, own].concat().into(),
        _ => own.into(),
    }
}

/// Takes the events of all applications with a webhook, and passes all events on.
#[derive(Debug)]
struct WebhookQueues {
    apps: Arc<Apps>,
    queues: Vec<WebhookQueue>,
    takes_counts: bool,
    next: Option<Arc<dyn EventSink>>,
}

impl EventSink for WebhookQueues {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        let channel = match event {
            Event::Occupied(name) | Event::Vacated(name) | Event::CacheMiss(name) => Some(name),
            Event::Counted(name, _) => Some(name),
            Event::MemberAdded(name, _) | Event::MemberRemoved(name, _) => Some(name),
            Event::ClientEvent(_, event) => Some(&event.channel),
            Event::Leads(_) | Event::Follows => {
                self.queues.iter().for_each(|queue| queue.follow(now_ms, event));
                None
            }
            Event::Connected { .. } | Event::Disconnected { .. } => None,
        };
        if let Some((channel, is_public)) = channel.and_then(|name| Some((name, is_public(name)?)))
        {
            let (prefix, _) = split_prefix(channel.name());
            let is_own = |queue: &&WebhookQueue| {
                queue.is_public == is_public && queue.app.app().prefix() == prefix
            };
            let queue = self.queues.iter().find(is_own);
            if let Some((queue, what)) =
                queue.and_then(|queue| Some((queue, queue.what(event, &self.apps)?)))
            {
                queue.take(now_ms, channel, what);
            }
        }
        if let Some(next) = &self.next {
            next.notify(now_ms, event);
        }
    }

    fn takes_counts(&self) -> bool {
        self.takes_counts
    }

    fn forget_user(&self, user: &str, before_ms: u64) -> u64 {
        let own: u64 = self.queues.iter().map(|queue| queue.forget_user(user, before_ms)).sum();
        own + self.next.as_ref().map_or(0, |next| next.forget_user(user, before_ms))
    }
}

/// All webhooks of a server, not running yet.
#[derive(Debug)]
pub struct Webhooks {
    access: Arc<AccessControl>,
    queues: Vec<WebhookQueue>,
    deliveries: Vec<WebhookDelivery>,
    metrics: Arc<DeliveryMetrics>,
}

impl Webhooks {
    /// The webhooks of applications that `access` has.
    pub fn new(
        settings: Vec<WebhookSettings>,
        access: &Arc<AccessControl>,
        trust: &Trust,
    ) -> Webhooks {
        let mut webhooks = Webhooks {
            access: Arc::clone(access),
            queues: Vec::new(),
            deliveries: Vec::new(),
            metrics: Arc::default(),
        };
        let apps = access.apps.load();
        for one in settings {
            if let Some(app) = apps.with_id(&one.app) {
                webhooks.add(&one, app, (trust, true));
                webhooks.add(&one, app, (trust, false));
            }
        }
        webhooks
    }

    /// Adds the queue for an application's public channels, or for all others.
    fn add(
        &mut self,
        settings: &WebhookSettings,
        app: &Arc<ClientApp>,
        (trust, is_public): (&Trust, bool),
    ) {
        let max_queued = settings.max_queued;
        let kind = if is_public { "public" } else { "private" };
        let of = format!("app {}: events of {kind} channels for its webhook", app.app().id());
        let waiting = Arc::new(Waiting::new(of, max_queued, Arc::clone(&self.metrics)));
        let standby = settings.has_nodes.then(|| Arc::new(OnStandby::new(max_queued)));
        self.queues.push(WebhookQueue {
            app: Arc::clone(app),
            is_public,
            wants: settings.wants.clone(),
            waiting: Arc::clone(&waiting),
            standby: standby.clone(),
            metrics: Arc::clone(&self.metrics),
        });
        self.deliveries.push(WebhookDelivery {
            // One connection is enough: requests are sent one after the other.
            origin: Origin::new(settings.endpoint.clone(), trust.clone(), 1),
            timeout: settings.timeout,
            access: Arc::clone(&self.access),
            app: Arc::clone(app),
            wants: settings.wants.clone(),
            waiting,
            standby,
            metrics: Arc::clone(&self.metrics),
            stop: Arc::default(),
        });
    }

    /// Takes the events, and passes them on to `next`. Call once.
    pub fn events(&mut self, next: Option<Arc<dyn EventSink>>) -> Option<Arc<dyn EventSink>> {
        let queues = std::mem::take(&mut self.queues);
        if queues.is_empty() {
            return next;
        }
        let takes_counts =
            queues.iter().any(|queue| queue.wants.contains(&Webhook::SubscriptionCount));
        let apps = self.access.apps.load_full();
        Some(Arc::new(WebhookQueues { apps, queues, takes_counts, next }))
    }

    /// The metrics of all webhooks; `None` if there are none.
    pub fn metrics(&self) -> Option<Arc<DeliveryMetrics>> {
        (!self.deliveries.is_empty()).then(|| Arc::clone(&self.metrics))
    }

    /// Starts them beside callouts, with which they end. Must be called within a runtime.
    pub fn start(self, beside: &mut RunningCallouts) {
        for delivery in self.deliveries {
            let stop = Arc::clone(&delivery.stop);
            beside.deliver(stop, delivery.run());
        }
    }
}

#[cfg(test)]
mod tests;

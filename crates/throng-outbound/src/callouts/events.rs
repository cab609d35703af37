//! The events that wait for delivery to the application, in bounded queues.
//!
//! A queue that is full takes no further event. It counts what it has dropped, and the next batch
//! tells the application how many events are missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use throng_access::pattern::Pattern;
use throng_core::clock;
use throng_core::events::{Event, EventSink};
use throng_core::name::{ChannelName, Kind};
use tokio::sync::mpsc;

use super::metrics::CalloutMetrics;

/// A kind of event that the application is notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Notifies {
    Connected,
    Disconnected,
    /// A channel has its first subscriber.
    Occupied,
    /// A channel has lost its last subscriber.
    Vacated,
}

impl Notifies {
    /// All kinds of events.
    pub const ALL: [Notifies; 4] =
        [Notifies::Connected, Notifies::Disconnected, Notifies::Occupied, Notifies::Vacated];

    /// The word for it in settings and requests.
    pub fn word(self) -> &'static str {
        match self {
            Notifies::Connected => "connected",
            Notifies::Disconnected => "disconnected",
            Notifies::Occupied => "occupied",
            Notifies::Vacated => "vacated",
        }
    }

    /// The kind of an event; `None` for one that is for applications of the Pusher protocol alone.
    fn of(event: Event<'_>) -> Option<Notifies> {
        match event {
            Event::Connected { .. } => Some(Notifies::Connected),
            Event::Disconnected { .. } => Some(Notifies::Disconnected),
            Event::Occupied(_) => Some(Notifies::Occupied),
            Event::Vacated(_) => Some(Notifies::Vacated),
            _ => None,
        }
    }
}

/// An event as it is delivered.
#[derive(Debug, Serialize)]
pub(super) struct QueuedEvent {
    r#type: Notifies,
    time: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_user: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl QueuedEvent {
    fn new(time: u64, r#type: Notifies, event: Event<'_>) -> QueuedEvent {
        let mut queued = QueuedEvent {
            r#type,
            time,
            channel: None,
            inbox: None,
            connection: None,
            user: None,
            claimed_user: None,
            transport: None,
            reason: None,
        };
        match event {
            Event::Connected { connection, user, is_claimed, transport } => {
                queued.connection = Some(connection.to_string());
                // A name without a token must not pass for a verified one.
                let name = if is_claimed { &mut queued.claimed_user } else { &mut queued.user };
                *name = user.map(Box::from);
                queued.transport = Some(transport);
            }
            Event::Disconnected { connection, reason } => {
                queued.connection = Some(connection.to_string());
                queued.reason = Some(reason);
            }
            Event::Occupied(name) | Event::Vacated(name) if name.kind() == Kind::User => {
                queued.inbox = Some(name.name().into());
            }
            Event::Occupied(name) | Event::Vacated(name) => {
                queued.channel = Some(name.name().into());
            }
            _ => {}
        }
        queued
    }
}

/// The queue of one endpoint: the end that workers and engine use.
#[derive(Debug)]
pub(super) struct EventQueue {
    pub(super) kinds: Vec<Notifies>,
    /// The channels or users whose events it takes; `None` for all.
    pub(super) pattern: Option<Pattern>,
    pub(super) events: mpsc::Sender<QueuedEvent>,
    /// Events that were dropped since the last batch.
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) metrics: Arc<CalloutMetrics>,
}

impl EventQueue {
    /// The kind of an event, if it is wanted.
    fn wanted(&self, event: Event<'_>) -> Option<Notifies> {
        let matches = |name: &ChannelName| {
            name.kind() != Kind::Internal
                && self.pattern.as_ref().is_none_or(|pattern| pattern.matches(name, None))
        };
        let kind = Notifies::of(event).filter(|kind| self.kinds.contains(kind))?;
        let is_wanted = match event {
            Event::Occupied(name) | Event::Vacated(name) => matches(name),
            _ => true,
        };
        is_wanted.then_some(kind)
    }

    fn push(&self, now_ms: u64, kind: Notifies, event: Event<'_>) {
        let Ok(place) = self.events.try_reserve() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return self.metrics.delivered.events.count("overflow");
        };
        self.metrics.delivered.waiting.add(1);
        place.send(QueuedEvent::new(clock::wall_ms(now_ms), kind, event));
    }
}

#[derive(Debug)]
pub(super) struct EventQueues(pub(super) Vec<EventQueue>);

impl EventSink for EventQueues {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        for queue in &self.0 {
            if let Some(kind) = queue.wanted(event) {
                queue.push(now_ms, kind, event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_core::ConnectionName;

    fn queue(
        kinds: &[Notifies],
        pattern: Option<&str>,
        length: usize,
    ) -> (EventQueues, mpsc::Receiver<QueuedEvent>) {
        let (events, receiver) = mpsc::channel(length);
        let pattern = pattern.map(|text| Pattern::new(Kind::Channel, text).unwrap());
        let (dropped, metrics) = (Arc::default(), Arc::default());
        let kinds = kinds.to_vec();
        (EventQueues(vec![EventQueue { kinds, pattern, events, dropped, metrics }]), receiver)
    }

    fn json(receiver: &mut mpsc::Receiver<QueuedEvent>) -> Vec<String> {
        let next = || receiver.try_recv().ok();
        std::iter::from_fn(next).map(|event| serde_json::to_string(&event).unwrap()).collect()
    }

    const CONNECTION: ConnectionName = ConnectionName::numbered(0xab);

    #[test]
    fn events_are_queued_in_their_order() {
        let (queues, mut receiver) = queue(&Notifies::ALL, None, 10);
        let (lobby, ann) = (ChannelName::channel("lobby"), ChannelName::user("ann"));
        let connected = Event::Connected {
            connection: CONNECTION,
            user: Some("ann"),
            is_claimed: false,
            transport: "sse",
        };
        let disconnected = Event::Disconnected { connection: CONNECTION, reason: "peer" };
        for event in [connected, Event::Occupied(&lobby), Event::Vacated(&ann), disconnected] {
            queues.notify(7, event);
        }
        queues.notify(7, Event::Occupied(&ChannelName::status()));
        let connection = "\"connection\":\"00000000000000ab\"";
        let rest = [
            format!("{connection},\"user\":\"ann\",\"transport\":\"sse\"}}"),
            "\"channel\":\"lobby\"}".to_owned(),
            "\"inbox\":\"ann\"}".to_owned(),
            format!("{connection},\"reason\":\"peer\"}}"),
        ];
        let expected: Vec<_> = ["connected", "occupied", "vacated", "disconnected"]
            .iter()
            .zip(rest)
            .map(|(word, rest)| format!("{{\"type\":\"{word}\",\"time\":7,{rest}"))
            .collect();
        assert_eq!(json(&mut receiver), expected);
    }

    #[test]
    fn a_queue_takes_its_own_events() {
        let (queues, mut receiver) = queue(&[Notifies::Occupied], Some("rooms/*"), 10);
        for name in ["rooms/a", "news"] {
            queues.notify(7, Event::Occupied(&ChannelName::channel(name)));
            queues.notify(7, Event::Vacated(&ChannelName::channel(name)));
        }
        queues.notify(7, Event::Disconnected { connection: CONNECTION, reason: "peer" });
        let taken = json(&mut receiver);
        assert!(taken.len() == 1 && taken[0].contains("rooms/a"), "{taken:?}");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (queues, mut receiver) = queue(&Notifies::ALL, None, 2);
        for name in ["a", "b", "c"] {
            queues.notify(7, Event::Occupied(&ChannelName::channel(name)));
        }
        let EventQueue { dropped, metrics, .. } = &queues.0[0];
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert_eq!(metrics.events_waiting(), 2);
        assert_eq!(metrics.events().find(|(word, _)| *word == "overflow").unwrap().1, 1);
        assert_eq!(json(&mut receiver).len(), 2);
    }
}

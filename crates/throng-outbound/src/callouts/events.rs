//! The events that the application is notified of, each in the queues that want it.

use std::sync::Arc;

use serde::Serialize;
use throng_access::pattern::Pattern;
use throng_core::clock;
use throng_core::events::{Event, EventSink};
use throng_core::name::{ChannelName, Kind};

use super::queue::Queue;

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

    /// True if it is about a user.
    fn names(&self, user: &str) -> bool {
        [&self.user, &self.claimed_user, &self.inbox].into_iter().flatten().any(|it| **it == *user)
    }
}

/// The queue of one endpoint: the end that workers and engine use.
#[derive(Debug)]
pub(super) struct EventQueue {
    pub(super) kinds: Vec<Notifies>,
    /// The channels or users whose events it takes; `None` for all.
    pub(super) pattern: Option<Pattern>,
    pub(super) queue: Arc<Queue<QueuedEvent>>,
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
}

#[derive(Debug)]
pub(super) struct EventQueues(pub(super) Vec<EventQueue>);

impl EventSink for EventQueues {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        for queue in &self.0 {
            if let Some(kind) = queue.wanted(event) {
                queue.queue.push(|| QueuedEvent::new(clock::wall_ms(now_ms), kind, event));
            }
        }
    }

    fn forget_user(&self, user: &str, before_ms: u64) -> u64 {
        let is_meant = |event: &QueuedEvent| event.time < before_ms && event.names(user);
        self.0.iter().map(|queue| queue.queue.forget(is_meant)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_core::ConnectionName;

    fn queue(kinds: &[Notifies], pattern: Option<&str>, length: usize) -> EventQueues {
        let queue = Arc::new(Queue::new(length, Arc::default()));
        let pattern = pattern.map(|text| Pattern::new(Kind::Channel, text).unwrap());
        EventQueues(vec![EventQueue { kinds: kinds.to_vec(), pattern, queue }])
    }

    /// What the next request has as its data.
    fn data(queues: &EventQueues, max: usize) -> String {
        let queue = &queues.0[0].queue;
        queue.begin_batch(max);
        let body = String::from_utf8(queue.body(7).to_vec()).unwrap();
        let (_, data) = body.split_once("\"data\":").unwrap();
        data.strip_suffix('}').unwrap().to_owned()
    }

    const CONNECTION: ConnectionName = ConnectionName::numbered(0xab);

    #[test]
    fn events_are_queued_in_their_order() {
        let queues = queue(&Notifies::ALL, None, 10);
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
        let expected = format!("{{\"events\":[{}]}}", expected.join(","));
        assert_eq!(data(&queues, 10), expected);
    }

    #[test]
    fn a_queue_takes_its_own_events() {
        let queues = queue(&[Notifies::Occupied], Some("rooms/*"), 10);
        for name in ["rooms/a", "news"] {
            queues.notify(7, Event::Occupied(&ChannelName::channel(name)));
            queues.notify(7, Event::Vacated(&ChannelName::channel(name)));
        }
        queues.notify(7, Event::Disconnected { connection: CONNECTION, reason: "peer" });
        let taken = data(&queues, 10);
        assert!(queues.0[0].queue.len() == 1 && taken.contains("rooms/a"), "{taken}");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queues = queue(&Notifies::ALL, None, 2);
        for name in ["a", "b", "c"] {
            queues.notify(7, Event::Occupied(&ChannelName::channel(name)));
        }
        let metrics = queues.0[0].queue.metrics();
        assert_eq!(metrics.events_waiting(), 2);
        assert_eq!(metrics.events().find(|(word, _)| *word == "overflow").unwrap().1, 1);
        assert!(data(&queues, 9).ends_with("],\"dropped\":1}"));
        // Those that are being sent give room.
        queues.notify(7, Event::Occupied(&ChannelName::channel("d")));
        queues.0[0].queue.end_batch(false);
        assert!(data(&queues, 9).ends_with("\"channel\":\"d\"}],\"dropped\":3}"));
        queues.0[0].queue.end_batch(true);
        assert_eq!((data(&queues, 9), metrics.events_waiting()), ("{\"events\":[]}".to_owned(), 0));
    }

    #[test]
    fn events_that_name_an_erased_user_are_dropped() {
        let queues = queue(&Notifies::ALL, None, 9);
        let [ann, bob] = ["ann", "bob"].map(ChannelName::user);
        let connected = |is_claimed| Event::Connected {
            connection: CONNECTION,
            user: Some("ann"),
            is_claimed,
            transport: "sse",
        };
        let room = ChannelName::channel("ann");
        for (now_ms, event) in [
            (1, Event::Occupied(&ann)),
            (2, Event::Occupied(&bob)),
            (3, connected(false)),
            (3, connected(true)),
            (3, Event::Occupied(&room)),
            // The application is told that the user is gone.
            (4, Event::Vacated(&ann)),
        ] {
            queues.notify(now_ms, event);
        }
        data(&queues, 3);
        assert_eq!(queues.forget_user("ann", 4), 3);
        let queue = &queues.0[0].queue;
        assert_eq!((queue.sending(), queue.len(), queue.metrics().events_waiting()), (1, 3, 3));
        let body = String::from_utf8(queue.body(7).to_vec()).unwrap();
        assert!(body.contains("bob") && !body.contains("ann"), "{body}");
        queue.end_batch(true);
        let rest = data(&queues, 9);
        assert!(
            rest.contains("\"channel\":\"ann\"")
                && rest.ends_with("\"inbox\":\"ann\"}],\"dropped\":3}"),
            "{rest}"
        );
    }
}

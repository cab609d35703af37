//! What has happened on a channel of an application, and its form in a request.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use throng_core::{Attribute, Body, VolatilePublication};
use throng_pusher::SocketId;

use super::kind::Webhook;

/// What one event takes beside its texts.
const EVENT_BYTES: usize = 128;

/// Something that has happened on a channel.
#[derive(Debug)]
pub(super) struct Happened {
    /// In milliseconds since 1970.
    pub(super) at_ms: u64,
    /// The application's name of it.
    pub(super) channel: Box<str>,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Occupied,
    Vacated,
    MemberAdded(Box<str>),
    MemberRemoved(Box<str>),
    ClientEvent(Box<ClientEvent>),
    CacheMiss,
    /// The newest number, while it waits.
    Count(Arc<AtomicU64>),
}

/// An event that a client has published.
#[derive(Debug)]
pub(super) struct ClientEvent {
    event: Box<str>,
    data: Box<str>,
    socket: SocketId,
    /// The member of a presence channel.
    user: Option<Box<str>>,
}

/// The event that the client of a connection has published. `user` shows the application's name of
/// a user.
pub(super) fn client_event(
    socket: SocketId,
    published: &VolatilePublication,
    user: impl Fn(&str) -> Option<Box<str>>,
) -> What {
    let attribute = |attribute| {
        let value = published.attributes.as_ref()?.get(attribute)?;
        str::from_utf8(value).ok()
    };
    let data: Cow<'_, str> = match &published.body {
        Body::Text(text) | Body::Json(text) => Cow::Borrowed(text),
        Body::Binary(bytes) => STANDARD.encode(bytes).into(),
    };
    What::ClientEvent(Box::new(ClientEvent {
        event: attribute(Attribute::Event).unwrap_or_default().into(),
        data: data.into(),
        socket,
        user: attribute(Attribute::From).and_then(user),
    }))
}

impl What {
    /// True if it is about all nodes, where there are several.
    pub(super) fn is_of_all(&self) -> bool {
        !matches!(self, What::ClientEvent(_) | What::CacheMiss)
    }

    /// The name of it.
    pub(super) fn webhook(&self) -> Webhook {
        match self {
            What::Occupied => Webhook::ChannelOccupied,
            What::Vacated => Webhook::ChannelVacated,
            What::MemberAdded(_) => Webhook::MemberAdded,
            What::MemberRemoved(_) => Webhook::MemberRemoved,
            What::ClientEvent(_) => Webhook::ClientEvent,
            What::CacheMiss => Webhook::CacheMiss,
            What::Count(_) => Webhook::SubscriptionCount,
        }
    }
}

impl Happened {
    /// What it takes while it waits, more or less.
    pub(super) fn bytes(&self) -> usize {
        let texts = match &self.what {
            What::MemberAdded(user) | What::MemberRemoved(user) => user.len(),
            What::ClientEvent(event) => {
                let user = event.user.as_ref().map_or(0, |user| user.len());
                event.event.len() + event.data.len() + user
            }
            What::Occupied | What::Vacated | What::CacheMiss | What::Count(_) => 0,
        };
        EVENT_BYTES + self.channel.len() + texts
    }

    /// True if it names a user, by the application's names of the user and of the user's channel.
    pub(super) fn names(&self, user: &str, channel: &str) -> bool {
        let named = match &self.what {
            What::MemberAdded(user) | What::MemberRemoved(user) => Some(&**user),
            What::ClientEvent(event) => event.user.as_deref(),
            What::Occupied | What::Vacated | What::CacheMiss | What::Count(_) => None,
        };
        named == Some(user) || *self.channel == *channel
    }

    /// Its form in a request. The data of a client's event is a text, as it is of others.
    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
        set("name", self.what.webhook().word().into());
        set("channel", (*self.channel).into());
        match &self.what {
            What::MemberAdded(user) | What::MemberRemoved(user) => {
                set("user_id", (**user).into());
            }
            What::ClientEvent(event) => {
                set("event", (*event.event).into());
                set("data", (*event.data).into());
                set("socket_id", event.socket.to_string().into());
                if let Some(user) = &event.user {
                    set("user_id", (**user).into());
                }
            }
            What::Count(count) => {
                set("subscription_count", json!(count.load(Ordering::Relaxed)));
            }
            What::Occupied | What::Vacated | What::CacheMiss => {}
        }
        object.into()
    }
}

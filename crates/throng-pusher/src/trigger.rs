//! The bodies of requests that publish.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::channel::{Channel, is_event_name};
use crate::client_frame::object;
use crate::socket::SocketId;

/// The most channels of an event.
const CHANNELS_MAX: usize = 100;

/// The most events of a batch.
const BATCH_MAX: usize = 10;

/// An event for some channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    pub event: Box<str>,
    pub data: String,
    /// At least one, and none twice; each is a name as [`Channel::of`] takes it.
    pub channels: Vec<Box<str>>,
    /// The connection that does not get it.
    pub socket: Option<SocketId>,
    /// The attributes of the channels that the application wants to know.
    pub info: Info,
}

/// Attributes of a channel that an application asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Info {
    pub user_count: bool,
    pub subscription_count: bool,
    pub cache: bool,
}

impl Info {
    /// Reads names with commas between them.
    ///
    /// # Errors
    ///
    /// One of them is unknown.
    pub fn read(names: &str) -> Result<Info, TriggerError> {
        let mut info = Info::default();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "user_count" => info.user_count = true,
                "subscription_count" => info.subscription_count = true,
                "cache" => info.cache = true,
                _ => return Err(TriggerError::Info),
            }
        }
        Ok(info)
    }

    /// True if it asks for nothing.
    pub fn is_none(self) -> bool {
        self == Info::default()
    }
}

/// Why a body is refused: one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    #[error("the body is not the JSON object that this takes")]
    Form,
    #[error("`name` is 1 to 200 bytes, and does not begin as the events of the protocol")]
    Event,
    #[error("`data` is a text: encode anything else as JSON first")]
    Data,
    #[error("name a `channel`, or 1 to {CHANNELS_MAX} `channels`")]
    Channels,
    #[error("one of the channels has a name that is none")]
    Channel,
    #[error("`socket_id` is not the id of a connection")]
    Socket,
    #[error("`info` has user_count, subscription_count or cache, with commas between them")]
    Info,
    #[error("a batch has 1 to {BATCH_MAX} events")]
    Batch,
    #[error("an event of a batch has one `channel`")]
    BatchChannel,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(borrow, default)]
    channel: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    channels: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow, default)]
    socket_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    info: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    batch: Vec<Event<'a>>,
}

impl Trigger {
    /// The event of a body.
    ///
    /// # Errors
    ///
    /// See [`TriggerError`].
    pub fn read(body: &[u8]) -> Result<Trigger, TriggerError> {
        let event: Option<Event<'_>> = str::from_utf8(body).ok().and_then(object);
        event.ok_or(TriggerError::Form)?.check()
    }

    /// The events of a body with several, each for one channel.
    ///
    /// # Errors
    ///
    /// See [`TriggerError`]. None of the events is to be published.
    pub fn read_batch(body: &[u8]) -> Result<Vec<Trigger>, TriggerError> {
        let batch: Option<Batch<'_>> = str::from_utf8(body).ok().and_then(object);
        let Batch { batch } = batch.ok_or(TriggerError::Form)?;
        if !(1..=BATCH_MAX).contains(&batch.len()) {
            return Err(TriggerError::Batch);
        }
        let check = |event: Event<'_>| match event.channels {
            Some(_) => Err(TriggerError::BatchChannel),
            None => event.check(),
        };
        batch.into_iter().map(check).collect()
    }
}

impl Event<'_> {
    fn check(self) -> Result<Trigger, TriggerError> {
        if !is_event_name(&self.name) {
            return Err(TriggerError::Event);
        }
        let data: String = serde_json::from_str(self.data.get()).map_err(|_| TriggerError::Data)?;
        let channels = match (self.channel, self.channels) {
            (Some(channel), None) => vec![channel],
            (None, Some(channels)) if (1..=CHANNELS_MAX).contains(&channels.len()) => channels,
            _ => return Err(TriggerError::Channels),
        };
        if channels.iter().any(|name| Channel::of(name).is_none()) {
            return Err(TriggerError::Channel);
        }
        // A channel that is named twice gets the event once.
        let mut seen = HashSet::new();
        let named = channels.iter().filter(|name| seen.insert(&***name));
        let channels = named.map(|name| Box::from(&**name)).collect();
        let socket = match self.socket_id.as_deref() {
            None | Some("") => None,
            Some(text) => Some(text.parse().map_err(|_| TriggerError::Socket)?),
        };
        let info = self.info.as_deref().map_or(Ok(Info::default()), Info::read)?;
        Ok(Trigger { event: self.name.into(), data, channels, socket, info })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> Option<TriggerError> {
        Trigger::read(body.as_bytes()).err()
    }

    #[test]
    fn an_event_has_a_name_a_text_and_channels() {
        let body = br#"{"name":"foo","channels":["project-3","private-a"],"data":"{\"a\":1}",
            "socket_id":"1.2","info":"user_count,subscription_count"}"#;
        let trigger = Trigger::read(body).unwrap();
        assert_eq!((&*trigger.event, &*trigger.data), ("foo", r#"{"a":1}"#));
        assert_eq!(trigger.channels, ["project-3".into(), "private-a".into()]);
        assert_eq!(trigger.socket, Some(SocketId { node: 1, number: 2 }));
        assert_eq!(trigger.info, Info { user_count: true, subscription_count: true, cache: false });
        let twice = br#"{"name":"a","channels":["b","a","b","a"],"data":""}"#;
        assert_eq!(Trigger::read(twice).unwrap().channels, ["b".into(), "a".into()]);
        let one = br##"{"name":"a","channel":"#server-to-user-ann","data":"","info":"","x":1}"##;
        let one = Trigger::read(one).unwrap();
        assert_eq!((one.channels.len(), one.info.is_none(), one.socket), (1, true, None));
    }

    #[test]
    fn a_body_that_is_refused_says_why() {
        let of = |name: &str, channels: &str, data: &str| {
            format!(r#"{{"name":"{name}","channels":{channels},"data":{data}}}"#)
        };
        let many: Vec<_> = (0..101).map(|at| format!("\"c{at}\"")).collect();
        let many = format!("[{}]", many.join(","));
        for (body, expected) in [
            (String::new(), TriggerError::Form),
            ("{}".into(), TriggerError::Form),
            (of("", r#"["a"]"#, r#""""#), TriggerError::Event),
            (of("pusher:error", r#"["a"]"#, r#""""#), TriggerError::Event),
            (of(&"e".repeat(201), r#"["a"]"#, r#""""#), TriggerError::Event),
            (of("a", r#"["a"]"#, "{}"), TriggerError::Data),
            (of("a", "[]", r#""""#), TriggerError::Channels),
            (of("a", &many, r#""""#), TriggerError::Channels),
            (of("a", r#"["a","b/c"]"#, r#""""#), TriggerError::Channel),
            (of("a", "\"a\"", r#""""#), TriggerError::Form),
            (
                r#"{"name":"a","channel":"a","data":"","socket_id":"x"}"#.into(),
                TriggerError::Socket,
            ),
            (r#"{"name":"a","channel":"a","data":"","info":"x"}"#.into(), TriggerError::Info),
        ] {
            assert_eq!(error(&body), Some(expected), "{body}");
        }
    }

    #[test]
    fn a_batch_has_ten_events() {
        let one = r#"{"name":"a","channel":"a","data":""}"#;
        let batch = |count| format!(r#"{{"batch":[{}]}}"#, vec![one; count].join(","));
        let read = |text: String| Trigger::read_batch(text.as_bytes()).map(|all| all.len());
        assert_eq!(read(batch(10)), Ok(10));
        assert_eq!(read(batch(0)), Err(TriggerError::Batch));
        assert_eq!(read(batch(11)), Err(TriggerError::Batch));
        let bad = batch(2).replacen("\"channel\":\"a\"", "\"channel\":\"\"", 1);
        assert_eq!(read(bad), Err(TriggerError::Channel));
        let several = batch(2).replacen(r#""channel":"a""#, r#""channels":["a","b"]"#, 1);
        assert_eq!(read(several), Err(TriggerError::BatchChannel));
    }
}

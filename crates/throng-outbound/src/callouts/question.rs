//! What the application is asked, as JSON.

use serde::Serialize;
use throng_core::name::{ChannelName, Kind};

use super::cache::Key;

/// A question that the application decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Whether a client may follow a channel.
    Subscribe,
    /// Whether a client may publish to a channel.
    Publish,
}

impl Asks {
    /// The word for it in settings, and the `type` of the request.
    pub fn word(self) -> &'static str {
        match self {
            Asks::Subscribe => "subscribe",
            Asks::Publish => "publish",
        }
    }
}

/// The request's body.
#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    time: u64,
    data: Data<'a>,
}

/// What the answer may depend on.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox: Option<&'a str>,
    user: Option<&'a str>,
}

impl<'a> Data<'a> {
    /// About a channel or an inbox, and the user who asks.
    pub(super) fn new(name: &'a ChannelName, user: Option<&'a str>) -> Data<'a> {
        let is_inbox = name.kind() == Kind::User;
        let name = Some(name.name());
        let (channel, inbox) = if is_inbox { (None, name) } else { (name, None) };
        Data { channel, inbox, user }
    }

    /// The key under which the answer may be cached.
    pub(super) fn key(self, asks: Asks) -> Key {
        Key::of(&body(asks, 0, self))
    }
}

/// The body of a request, at a time in milliseconds since 1970.
pub(super) fn body(asks: Asks, time_ms: u64, data: Data<'_>) -> Vec<u8> {
    let body = Body { r#type: asks.word(), time: time_ms, data };
    // Writing texts and numbers to memory does not fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_the_channel_and_the_user() {
        let lobby = ChannelName::channel("lobby");
        let data = Data::new(&lobby, Some("ann"));
        let text = String::from_utf8(body(Asks::Subscribe, 7, data)).unwrap();
        let expected = r#"{"type":"subscribe","time":7,"data":{"channel":"lobby","user":"ann"}}"#;
        assert_eq!(text, expected);
        let inbox = ChannelName::user("bob\"");
        let text = String::from_utf8(body(Asks::Publish, 7, Data::new(&inbox, None))).unwrap();
        assert_eq!(text, r#"{"type":"publish","time":7,"data":{"inbox":"bob\"","user":null}}"#);
    }

    #[test]
    fn each_question_has_a_key_of_its_own() {
        let names = [ChannelName::channel("a"), ChannelName::channel("b"), ChannelName::user("a")];
        let mut keys = Vec::new();
        for name in &names {
            for user in [None, Some("a"), Some("")] {
                for asks in [Asks::Subscribe, Asks::Publish] {
                    keys.push(Data::new(name, user).key(asks));
                }
            }
        }
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}

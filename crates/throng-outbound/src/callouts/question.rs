//! What the application is asked, as JSON.

use serde::Serialize;
use throng_access::Credentials;
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
    /// All questions, in the order of a connection's life.
    pub const ALL: [Asks; 2] = [Asks::Subscribe, Asks::Publish];

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
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    /// What the client says without a proof: it must not be taken for a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_user: Option<&'a str>,
}

impl<'a> Data<'a> {
    /// About a channel or an inbox, and the client that asks.
    pub(super) fn new(name: &'a ChannelName, credentials: Credentials<'a>) -> Data<'a> {
        let is_inbox = name.kind() == Kind::User;
        let name = Some(name.name());
        let (channel, inbox) = if is_inbox { (None, name) } else { (name, None) };
        let (user, claimed_user) = match credentials {
            Credentials::Anonymous => (None, None),
            Credentials::Claimed { user } => (None, Some(user)),
            Credentials::Known { user, .. } => (user, None),
        };
        Data { channel, inbox, user, claimed_user }
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
    use throng_access::Grants;

    use super::*;

    #[test]
    fn a_question_names_the_channel_and_the_user() {
        let lobby = ChannelName::channel("lobby");
        let grants = Grants::default();
        let ann = Credentials::Known { user: Some("ann"), grants: &grants };
        let data = Data::new(&lobby, ann);
        let text = String::from_utf8(body(Asks::Subscribe, 7, data)).unwrap();
        let expected = r#"{"type":"subscribe","time":7,"data":{"channel":"lobby","user":"ann"}}"#;
        assert_eq!(text, expected);
        let inbox = ChannelName::user("bob\"");
        let text = |credentials| {
            String::from_utf8(body(Asks::Publish, 7, Data::new(&inbox, credentials))).unwrap()
        };
        let expected = r#"{"type":"publish","time":7,"data":{"inbox":"bob\""}}"#;
        assert_eq!(text(Credentials::Anonymous), expected);
        let claimed = text(Credentials::Claimed { user: "ann" });
        assert!(claimed.ends_with(r#""inbox":"bob\"","claimed_user":"ann"}}"#), "{claimed}");
    }

    #[test]
    fn each_question_has_a_key_of_its_own() {
        let names = [ChannelName::channel("a"), ChannelName::channel("b"), ChannelName::user("a")];
        let grants = Grants::default();
        let mut keys = Vec::new();
        for name in &names {
            let known = |user| Credentials::Known { user: Some(user), grants: &grants };
            let claimed = |user| Credentials::Claimed { user };
            for user in [Credentials::Anonymous, known("a"), known(""), claimed("a")] {
                for asks in [Asks::Subscribe, Asks::Publish] {
                    keys.push(Data::new(name, user).key(asks));
                }
            }
        }
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}

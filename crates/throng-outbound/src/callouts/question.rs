//! Questions to the application, as JSON.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use throng_access::{Credentials, Details, Draft, Identity, Passed};
use throng_core::Body;
use throng_core::name::{ChannelName, Kind};

use super::cache::QuestionKey;

/// A question that the application decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// A client without a credential: who is it? Perhaps also a client with a token: is it let in?
    Connect,
    /// A subscription to a channel: is it allowed?
    Subscribe,
    /// A publication to a channel: is it allowed?
    Publish,
}

impl Asks {
    /// All questions, in the order of a connection's life.
    pub const ALL: [Asks; 3] = [Asks::Connect, Asks::Subscribe, Asks::Publish];

    /// The word for it in settings, and the `type` of the request.
    pub fn word(self) -> &'static str {
        match self {
            Asks::Connect => "connect",
            Asks::Subscribe => "subscribe",
            Asks::Publish => "publish",
        }
    }
}

#[derive(Serialize)]
struct QuestionBody<'a> {
    r#type: &'static str,
    time: u64,
    data: Facts<'a>,
}

/// The facts that an answer may depend on.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Facts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    /// The client's own unproven statement: it must not be taken for a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "members")]
    headers: &'a [(&'a str, &'a str)],
    /// The claims of the client's token, as they are written there.
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<&'a RawValue>,
    /// The content of a publication.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a AskedContent<'a>>,
}

/// The content of a publication, as a question has it: in the fields of a message in JSON.
#[derive(Debug, Serialize)]
pub(super) struct AskedContent<'a> {
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_key: Option<&'a str>,
    /// Only if it is true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tombstone: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    /// `None` if it is larger than the endpoint gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<AskedData<'a>>,
    /// The body, if it is left out.
    #[serde(skip)]
    left_out: &'a [u8],
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AskedData<'a> {
    Text(&'a str),
    Json(&'a RawValue),
    Base64(String),
}

impl<'a> AskedContent<'a> {
    /// The content of `draft`, without the data if these are more than `max_bytes`.
    pub(super) fn new(draft: Draft<'a>, max_bytes: usize) -> AskedContent<'a> {
        let body = draft.body.bytes();
        let is_left_out = body.len() > max_bytes;
        let mut content = AskedContent {
            bytes: body.len(),
            event: draft.labels.event.as_deref(),
            // They are JSON.
            tags: draft.labels.tags.as_deref().and_then(|tags| serde_json::from_str(tags).ok()),
            state_key: draft.labels.key.as_ref().map(|key| &*key.name),
            tombstone: draft.labels.key.as_ref().is_some_and(|key| key.is_removed),
            content_type: draft.content_type,
            encoding: None,
            data: None,
            left_out: if is_left_out { body } else { &[] },
        };
        if is_left_out {
            return content;
        }
        content.data = Some(match draft.body {
            Body::Text(text) => AskedData::Text(text),
            // It has been parsed; where its levels are too many for the parser here, it is a text.
            Body::Json(json) => match serde_json::from_str(json) {
                Ok(json) => AskedData::Json(json),
                Err(_) => AskedData::Text(json),
            },
            Body::Binary(bytes) => {
                content.encoding = Some("base64");
                AskedData::Base64(STANDARD.encode(bytes))
            }
        });
        content
    }
}

/// Those of a request's headers that one endpoint gets.
pub(super) fn listed<'a>(passed: &Passed, details: Details<'a>) -> Vec<(&'a str, &'a str)> {
    let headers = details.headers.into_iter().flat_map(|headers| headers.iter());
    headers.filter(|(name, _)| passed.headers.iter().any(|listed| **listed == **name)).collect()
}

/// Serializes pairs as the members of an object.
fn members<S: Serializer>(pairs: &[(&str, &str)], target: S) -> Result<S::Ok, S::Error> {
    target.collect_map(pairs.iter().copied())
}

impl<'a> Facts<'a> {
    /// About a channel or an inbox, and the client that asks.
    pub(super) fn new(name: &'a ChannelName, credentials: Credentials<'a>) -> Facts<'a> {
        let is_inbox = name.kind() == Kind::User;
        let name = Some(name.name());
        let (channel, inbox) = if is_inbox { (None, name) } else { (name, None) };
        let (user, claimed_user) = match credentials {
            Credentials::Anonymous => (None, None),
            Credentials::Claimed { user } => (None, Some(user)),
            Credentials::Known { user, .. } => (user, None),
        };
        Facts { channel, inbox, user, claimed_user, ..Facts::default() }
    }

    /// About a client that connects over `transport`.
    pub(super) fn of_connect(transport: &'static str) -> Facts<'a> {
        Facts { transport: Some(transport), ..Facts::default() }
    }

    /// The same, of a client with a verified token.
    pub(super) fn of_token(self, identity: &'a Identity, claims: &'a RawValue) -> Facts<'a> {
        Facts { user: identity.user(), claims: Some(claims), ..self }
    }

    /// The same, with the client's address and headers, as far as the endpoint gets them.
    pub(super) fn with(
        self,
        passed: &Passed,
        address: Option<IpAddr>,
        headers: &'a [(&'a str, &'a str)],
    ) -> Facts<'a> {
        Facts { address: address.filter(|_| passed.address), headers, ..self }
    }

    /// The same, with the content of a publication.
    pub(super) fn with_content(self, content: Option<&'a AskedContent<'a>>) -> Facts<'a> {
        Facts { content, ..self }
    }

    /// The key under which the answer may be cached.
    pub(super) fn key(self, asks: Asks) -> QuestionKey {
        let left_out = self.content.map_or(&[][..], |content| content.left_out);
        QuestionKey::of(&body(asks, 0, self), left_out)
    }
}

/// The body of a request, at a time in milliseconds since 1970.
pub(super) fn body(asks: Asks, time_ms: u64, data: Facts<'_>) -> Vec<u8> {
    let body = QuestionBody { r#type: asks.word(), time: time_ms, data };
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
        let data = Facts::new(&lobby, ann);
        let text = String::from_utf8(body(Asks::Subscribe, 7, data)).unwrap();
        let expected = r#"{"type":"subscribe","time":7,"data":{"channel":"lobby","user":"ann"}}"#;
        assert_eq!(text, expected);
        let inbox = ChannelName::user("bob\"");
        let text = |credentials| {
            String::from_utf8(body(Asks::Publish, 7, Facts::new(&inbox, credentials))).unwrap()
        };
        let expected = r#"{"type":"publish","time":7,"data":{"inbox":"bob\""}}"#;
        assert_eq!(text(Credentials::Anonymous), expected);
        let claimed = text(Credentials::Claimed { user: "ann" });
        assert!(claimed.ends_with(r#""inbox":"bob\"","claimed_user":"ann"}}"#), "{claimed}");
    }

    #[test]
    fn a_question_has_the_headers_that_the_endpoint_lists() {
        let passed = Passed {
            headers: ["cookie", "x-key"].map(Into::into).into(),
            address: true,
            ..Passed::default()
        };
        let headers = passed.pick(|_| [&b"v"[..]].into_iter()).unwrap();
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        let details = Details { address, headers: Some(&headers), content: None };
        let text = |passed: &Passed| {
            let headers = listed(passed, details);
            let data = Facts::of_connect("sse").with(passed, details.address, &headers);
            String::from_utf8(body(Asks::Connect, 7, data)).unwrap()
        };
        let begin = r#"{"type":"connect","time":7,"data":{"transport":"sse""#;
        assert_eq!(text(&Passed::default()), format!("{begin}}}}}"));
        let all = r#","address":"192.0.2.1","headers":{"cookie":"v","x-key":"v"}}}"#;
        assert_eq!(text(&passed), format!("{begin}{all}"));
        let one = Passed { headers: ["x-key".into()].into(), ..Passed::default() };
        assert_eq!(text(&one), format!("{begin},\"headers\":{{\"x-key\":\"v\"}}}}}}"));
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
                    keys.push(Facts::new(name, user).key(asks));
                }
            }
        }
        let details = |transport, headers| {
            let passed = Passed { address: true, ..Passed::default() };
            let address = Some(IpAddr::from([192, 0, 2, 1]));
            Facts::of_connect(transport).with(&passed, address, headers).key(Asks::Connect)
        };
        keys.push(Facts::of_connect("sse").key(Asks::Connect));
        for transport in ["sse", "http"] {
            keys.extend([
                details(transport, &[]),
                details(transport, &[("cookie", "a"), ("x", "b")]),
                details(transport, &[("cookie", "a"), ("x", "c")]),
                details(transport, &[("cookie", "a\",\"x\":\"b")]),
            ]);
        }
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}

//! The frames of clients.

use std::borrow::Cow;
use std::fmt::Display;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::channel::is_user_id;

/// What a client says.
#[derive(Debug)]
pub enum ClientFrame<'a> {
    /// It wants a `pusher:pong`.
    Ping,
    /// It has had a `pusher:ping`, and all before it.
    Pong,
    /// Nothing to act upon.
    Nothing,
    Subscribe(Subscribe<'a>),
    Unsubscribe {
        channel: Cow<'a, str>,
    },
    SignIn(SignIn<'a>),
    /// It publishes an event of its own.
    Event(ClientEvent<'a>),
}

/// A subscription.
#[derive(Debug)]
pub struct Subscribe<'a> {
    pub channel: Cow<'a, str>,
    /// `KEY:SIGNATURE`; empty if the channel needs none.
    pub auth: Cow<'a, str>,
    /// What the application has signed of the member: a JSON object, as it came.
    pub channel_data: Option<Cow<'a, str>>,
    /// The id of the last event that the client has had.
    pub since: Option<Cow<'a, str>>,
    /// The number of earlier events that it wants.
    pub history: Option<u32>,
}

impl Subscribe<'_> {
    /// The text that the application signs, for the connection with this name.
    pub fn signed_text(&self, socket: impl Display) -> String {
        match &self.channel_data {
            None => format!("{socket}:{}", self.channel),
            Some(data) => format!("{socket}:{}:{data}", self.channel),
        }
    }
}

/// The client says which user it is.
#[derive(Debug)]
pub struct SignIn<'a> {
    /// `KEY:SIGNATURE`.
    pub auth: Cow<'a, str>,
    /// What the application has signed of the user: a JSON object, as it came.
    pub user_data: Cow<'a, str>,
}

impl SignIn<'_> {
    /// The text that the application signs, for the connection with this name.
    pub fn signed_text(&self, socket: impl Display) -> String {
        format!("{socket}::user::{}", self.user_data)
    }
}

/// An event that a client publishes.
#[derive(Debug)]
pub struct ClientEvent<'a> {
    pub event: Cow<'a, str>,
    pub channel: Cow<'a, str>,
    /// A JSON text; `None` if the client has left it out.
    pub data: Option<&'a RawValue>,
}

/// Why a frame means nothing: one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame is a JSON object")]
    Form,
    #[error("a frame has an `event`, a text")]
    NoEvent,
    #[error("the frame has no `data` with a `channel`")]
    NoChannel,
    #[error("the frame has no `data` with `auth` and `user_data`")]
    NoUserData,
    #[error("clients publish events whose names begin with `client-`")]
    NotOfClients,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, default)]
    event: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    channel: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow, default)]
    channel: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    auth: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    channel_data: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    user_data: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    since: Option<Cow<'a, str>>,
    #[serde(default)]
    history: Option<u32>,
}

/// An object in JSON. serde would take an array for one, too.
pub(crate) fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    let is_object = json.trim_ascii_start().starts_with('{');
    is_object.then(|| serde_json::from_str(json).ok()).flatten()
}

impl ClientFrame<'_> {
    /// Reads the text of a frame.
    ///
    /// # Errors
    ///
    /// It means nothing.
    pub fn read(text: &str) -> Result<ClientFrame<'_>, FrameError> {
        let frame: Frame<'_> = object(text).ok_or(FrameError::Form)?;
        let event = frame.event.ok_or(FrameError::NoEvent)?;
        let data = || -> Option<Data<'_>> { object(frame.data?.get()) };
        match &*event {
            "pusher:ping" => Ok(ClientFrame::Ping),
            "pusher:pong" => Ok(ClientFrame::Pong),
            "pusher:subscribe" => {
                let Data { channel, auth, channel_data, since, history, .. } =
                    data().ok_or(FrameError::NoChannel)?;
                let channel = channel.ok_or(FrameError::NoChannel)?;
                let auth = auth.unwrap_or_default();
                let subscribe = Subscribe { channel, auth, channel_data, since, history };
                Ok(ClientFrame::Subscribe(subscribe))
            }
            "pusher:unsubscribe" => {
                let channel = data().and_then(|data| data.channel);
                let channel = channel.ok_or(FrameError::NoChannel)?;
                Ok(ClientFrame::Unsubscribe { channel })
            }
            "pusher:signin" => {
                let Data { auth, user_data, .. } = data().ok_or(FrameError::NoUserData)?;
                let (Some(auth), Some(user_data)) = (auth, user_data) else {
                    return Err(FrameError::NoUserData);
                };
                Ok(ClientFrame::SignIn(SignIn { auth, user_data }))
            }
            // A word of a later version.
            own if own.starts_with("pusher:") => Ok(ClientFrame::Nothing),
            own if crate::channel::is_client_event(own) => {
                let channel = frame.channel.ok_or(FrameError::NoChannel)?;
                Ok(ClientFrame::Event(ClientEvent { event, channel, data: frame.data }))
            }
            _ => Err(FrameError::NotOfClients),
        }
    }
}

/// A member of a presence channel, as its application has signed it.
#[derive(Debug)]
pub struct Member<'a> {
    pub user_id: Cow<'a, str>,
    /// What others see of it: a JSON text.
    pub user_info: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ChannelData<'a> {
    #[serde(borrow)]
    user_id: &'a RawValue,
    #[serde(borrow, default)]
    user_info: Option<&'a RawValue>,
}

impl Member<'_> {
    /// The member in a `channel_data`. The id may be a number, which stands for its digits.
    pub fn read(channel_data: &str) -> Option<Member<'_>> {
        let ChannelData { user_id, user_info } = object(channel_data)?;
        let user_info = user_info.filter(|info| info.get() != "null");
        Some(Member { user_id: id(user_id)?, user_info })
    }
}

#[derive(Deserialize)]
struct UserData<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow, default)]
    watchlist: Option<&'a RawValue>,
}

/// The user who signs in.
#[derive(Debug)]
pub struct SignedUser<'a> {
    pub id: Cow<'a, str>,
    /// The ids of users of whom the client is told whether they are online.
    pub watchlist: Vec<Cow<'a, str>>,
}

impl SignedUser<'_> {
    /// The user in a `user_data`. Of the watchlist, what is no id is left out.
    pub fn read(user_data: &str) -> Option<SignedUser<'_>> {
        let UserData { id: user, watchlist } = object(user_data)?;
        let watchlist = watchlist.map(RawValue::get).and_then(|text| {
            let ids: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Some(ids.into_iter().filter_map(id).collect())
        });
        Some(SignedUser { id: id(user)?, watchlist: watchlist.unwrap_or_default() })
    }
}

/// An id: a text, or the digits of a number.
fn id(json: &RawValue) -> Option<Cow<'_, str>> {
    let text = json.get();
    let id = match text.as_bytes().first()? {
        b'"' => serde_json::from_str::<Text<'_>>(text).ok()?.0,
        b'-' | b'0'..=b'9' => Cow::Borrowed(text),
        _ => return None,
    };
    is_user_id(&id).then_some(id)
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> ClientFrame<'_> {
        ClientFrame::read(text).expect(text)
    }

    #[test]
    fn pings_come_in_every_form() {
        for text in [
            r#"{"event":"pusher:ping","data":{}}"#,
            r#"{"event":"pusher:ping","data":""}"#,
            r#"{"event":"pusher:ping","data":"{}"}"#,
            r#"{"event":"pusher:ping"}"#,
            r#"{"data":null,"event":"pusher:ping","channel":null}"#,
        ] {
            assert!(matches!(read(text), ClientFrame::Ping), "{text}");
        }
        assert!(matches!(read(r#"{"event":"pusher:pong","data":{}}"#), ClientFrame::Pong));
        assert!(matches!(read(r#"{"event":"pusher:later"}"#), ClientFrame::Nothing));
    }

    #[test]
    fn what_is_signed_is_kept_as_it_came() {
        let text = r#"{"event":"pusher:subscribe","data":{"auth":"k:0","channel_data":
            "{ \"user_id\": \"ann\" }","channel":"presence-r","other":1}}"#;
        let ClientFrame::Subscribe(subscribe) = read(text) else { panic!("{text}") };
        assert_eq!(subscribe.signed_text("1.2"), r#"1.2:presence-r:{ "user_id": "ann" }"#);
        let text = r#"{"event":"pusher:subscribe","data":{"channel":"news"}}"#;
        let ClientFrame::Subscribe(subscribe) = read(text) else { panic!("{text}") };
        assert_eq!((&*subscribe.auth, &*subscribe.channel), ("", "news"));
        assert_eq!((subscribe.since.as_deref(), subscribe.history), (None, None));
        let text =
            r#"{"event":"pusher:subscribe","data":{"channel":"a","since":"x-1","history":9}}"#;
        let ClientFrame::Subscribe(subscribe) = read(text) else { panic!("{text}") };
        assert_eq!((subscribe.since.as_deref(), subscribe.history), (Some("x-1"), Some(9)));
        let text =
            r#"{"event":"pusher:signin","data":{"auth":"k:0","user_data":"{\"id\":\"a\"}"}}"#;
        let ClientFrame::SignIn(sign_in) = read(text) else { panic!("{text}") };
        assert_eq!(sign_in.signed_text("1.2"), r#"1.2::user::{"id":"a"}"#);
        assert_eq!(SignedUser::read(&sign_in.user_data).map(|user| user.id), Some("a".into()));
    }

    #[test]
    fn ids_are_texts_or_numbers() {
        let member = |text| Member::read(text).map(|member| member.user_id.into_owned());
        for (data, id) in [
            (r#"{"user_id":10,"user_info":{"name":"Mr. Channels"}}"#, "10"),
            (r#"{"user_id":"10"}"#, "10"),
            (r#"{"user_id":-1.5,"user_info":null}"#, "-1.5"),
            (r#"{"user_info":{},"user_id":"\u0061"}"#, "a"),
        ] {
            assert_eq!(member(data).as_deref(), Some(id), "{data}");
        }
        let long = format!(r#"{{"user_id":"{}"}}"#, "x".repeat(201));
        for data in [
            "",
            "{}",
            "[]",
            "[1]",
            r#"{"user_id":""}"#,
            r#"{"user_id":null}"#,
            r#"{"user_id":true}"#,
            r#"{"user_id":["a"]}"#,
            r#"{"user_id":"a\n"}"#,
            r#"{"user_id":"a","user_id":"b"}"#,
            &long,
        ] {
            assert_eq!(member(data), None, "{data}");
        }
        assert!(Member::read(r#"{"user_id":"a","user_info":{}}"#).unwrap().user_info.is_some());
        let user = |text: &str| {
            let SignedUser { id, watchlist } = SignedUser::read(text)?;
            Some((id.into_owned(), watchlist.into_iter().map(Cow::into_owned).collect()))
        };
        let none = Vec::<String>::new;
        assert_eq!(user(r#"{"id":7}"#), Some(("7".into(), none())));
        assert_eq!(user(r#"{"id":""}"#), None);
        for (watchlist, ids) in [
            (r#"["bob",7,"c\u0061t"]"#, vec!["bob".into(), "7".into(), "cat".into()]),
            (r#"["",null,["bob"],{"id":"bob"},true]"#, none()),
            ("null", none()),
            (r#""bob""#, none()),
            (r#"{"bob":1}"#, none()),
        ] {
            let text = format!(r#"{{"id":"ann","watchlist":{watchlist}}}"#);
            assert_eq!(user(&text), Some(("ann".into(), ids)), "{text}");
        }
    }

    #[test]
    fn a_frame_that_means_nothing_says_why() {
        for (text, error) in [
            ("", FrameError::Form),
            ("[]", FrameError::Form),
            ("{", FrameError::Form),
            (r#"{"event":1}"#, FrameError::Form),
            (r#"{"event":"a","event":"b"}"#, FrameError::Form),
            ("{}", FrameError::NoEvent),
            (r#"{"event":null}"#, FrameError::NoEvent),
            (r#"{"event":"pusher:subscribe"}"#, FrameError::NoChannel),
            (r#"{"event":"pusher:subscribe","data":"news"}"#, FrameError::NoChannel),
            (r#"{"event":"pusher:subscribe","data":{"channel":7}}"#, FrameError::NoChannel),
            (r#"{"event":"pusher:unsubscribe","data":{}}"#, FrameError::NoChannel),
            (r#"{"event":"pusher:signin","data":{"auth":""}}"#, FrameError::NoUserData),
            (r#"{"event":"client-a"}"#, FrameError::NoChannel),
            (r#"{"event":"a","channel":"private-b"}"#, FrameError::NotOfClients),
            (r#"{"event":"pusher_internal:member_added"}"#, FrameError::NotOfClients),
        ] {
            assert_eq!(ClientFrame::read(text).err(), Some(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[{}\\[\\]\":,a-z_\\\\-]{0,60}") {
            let _ = ClientFrame::read(&text);
            let _ = Member::read(&text);
            let _ = SignedUser::read(&text);
        }

        #[test]
        fn any_event_of_a_client_comes_through(name in "client-\\PC{0,20}", data in "\\PC{0,20}") {
            let data = serde_json::to_string(&data).unwrap();
            let text = serde_json::to_string(&name).unwrap();
            let text = format!(r#"{{"event":{text},"channel":"private-a","data":{data}}}"#);
            let ClientFrame::Event(event) = ClientFrame::read(&text).unwrap() else {
                panic!("{text}");
            };
            prop_assert_eq!(&*event.event, name.as_str());
            prop_assert_eq!(event.data.unwrap().get(), data);
        }
    }
}

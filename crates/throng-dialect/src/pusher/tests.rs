use std::cell::Cell;

use serde_json::{Value, json};
use throng_core::{Attributes, ChannelId, ChannelName, Content, Epoch, Extras, MessageId};
use throng_pusher::SocketId;
use throng_wire::v1::PartialEvent;
use throng_wire::websocket::parse_server_frame;

use super::*;
use crate::framing::Framing;

const KEY: &str = "278d425bdf160c739803";
const SECRET: &[u8] = b"7ad3773142a6692b25b8";

struct Client {
    app: Option<App>,
    user: &'static str,
    asked: Cell<usize>,
}

impl Client {
    fn new(user: &'static str) -> Client {
        let app = App::new("3", KEY, SECRET, "shop/").ok();
        Client { app, user, asked: Cell::new(0) }
    }
}

impl Speaker for Client {
    fn app(&self) -> Option<&App> {
        self.app.as_ref()
    }

    fn socket(&self) -> Option<SocketId> {
        self.asked.set(self.asked.get() + 1);
        Some(SocketId { node: 1234, number: 1234 })
    }

    fn is_user(&self, name: &str) -> bool {
        name == self.user
    }
}

/// The command of a frame, and what is said if it is refused.
fn hear(client: &Client, text: &str) -> Result<Command, Vec<String>> {
    let (heard, length) = Pusher.hear(text.as_bytes(), true, client);
    assert_eq!(length, text.len());
    let Heard::Command(Received { reference, command }) = heard else { panic!("{heard:?}") };
    command.map_err(|error| said(&Saying::Error(&error), reference.as_deref()))
}

fn texts(bytes: &[u8]) -> Vec<String> {
    let (mut at, mut texts) = (0, Vec::new());
    while let Some(frame) = parse_server_frame(&bytes[at..]).expect("a frame") {
        let payload = &bytes[at..][frame.payload];
        texts.push(String::from_utf8_lossy(payload).into_owned());
        at += frame.length;
    }
    texts
}

fn said(saying: &Saying<'_>, reference: Option<&RawValue>) -> Vec<String> {
    let mut bytes = Vec::new();
    Pusher.say(saying, reference, &mut Out::new(Framing::WebSocket, false, &mut bytes));
    texts(&bytes)
}

fn subscribe(channel: &str, rest: &str) -> String {
    format!(r#"{{"event":"pusher:subscribe","data":{{"channel":"{channel}"{rest}}}}}"#)
}

fn auth(signature: &str) -> String {
    format!(r#","auth":"{KEY}:{signature}""#)
}

const PRIVATE: &str = "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4";
const PRESENCE: &str = "31935e7d86dba64c2a90aed31fdc61869f9b22ba9d8863bba239c03ca481bc80";
const USER: &str = "4708d583dada6a56435fb8bc611c77c359a31eebde13337c16ab43aa6de336ba";

#[test]
fn a_channel_is_one_of_the_application() {
    let client = Client::new("");
    let names = |text: &str| match hear(&client, text) {
        Ok(Command::Subscribe { target, replay, presence, .. }) => (target.name, replay, presence),
        other => panic!("{other:?}"),
    };
    assert_eq!(names(&subscribe("news", "")), ("shop/news".into(), None, false));
    let cache = names(&subscribe("cache-a", r#","auth":"""#));
    assert_eq!(cache, ("shop/cache-a".into(), Some(Replay::Newest), false));
    assert_eq!(client.asked.get(), 0, "nothing is signed for a public channel");
    let private = names(&subscribe("private-foobar", &auth(PRIVATE)));
    assert_eq!(private, ("shop/private-foobar".into(), None, false));
}

#[test]
fn a_subscription_is_of_the_member_that_is_signed() {
    let client = Client::new("");
    let data = r#","channel_data":"{\"user_id\":10,\"user_info\":{\"name\":\"Mr. Channels\"}}""#;
    let text = subscribe("presence-foobar", &[&auth(PRESENCE), data].concat());
    let Ok(Command::Subscribe { target, presence: true, member: Some(member), .. }) =
        hear(&client, &text)
    else {
        panic!("{text}")
    };
    assert_eq!(target.name, "shop/presence-foobar");
    assert_eq!(member.user.as_deref(), Some("shop/10"));
    assert_eq!(member.info.as_deref(), Some(r#"{"name":"Mr. Channels"}"#));
    let other = text.replace("10", "11");
    let refused = hear(&client, &other).unwrap_err();
    assert!(refused[0].contains(r#""channel":"presence-foobar""#), "{refused:?}");
    assert!(refused[0].contains(r#"\"type\":\"AuthError\""#), "{refused:?}");
    assert!(refused[1].starts_with(r#"{"event":"pusher:error","data":{"code":4009,"#));
    let spaced = text.replace(r#"\"user_id\":10"#, r#"\"user_id\": 10"#);
    assert!(hear(&client, &spaced).is_err(), "it is signed byte for byte");
}

#[test]
fn what_the_protocol_has_no_word_for_says_nothing() {
    let channel = "shop/presence-foobar";
    let event = PartialEvent { channel, id: "a-1", time_ms: 1, is_partial: true };
    assert_eq!(said(&Saying::Partial(event), None), [NOTHING]);
}

#[test]
fn what_is_not_signed_is_refused_in_band() {
    let client = Client::new("");
    for rest in [
        String::new(),
        r#","auth":"""#.into(),
        r#","auth":"x""#.into(),
        auth(PRESENCE),
        auth(PRIVATE).replace(KEY, "other"),
        format!("{},\"channel_data\":\"{{}}\"", auth(PRIVATE)),
    ] {
        let refused = hear(&client, &subscribe("private-foobar", &rest)).unwrap_err();
        assert!(refused[0].contains("pusher:subscription_error"), "{rest}: {refused:?}");
        assert!(refused[1].contains(r#""code":4009,"#), "{rest}: {refused:?}");
    }
    for channel in ["a/b", "", "#a", &"x".repeat(201), "é"] {
        let refused = hear(&client, &subscribe(channel, "")).unwrap_err();
        assert!(refused[1].contains(r#""code":4300,"#), "{channel}: {refused:?}");
    }
}

#[test]
fn a_user_has_its_own_channel_and_no_other() {
    let text = subscribe("#server-to-user-ann", r#","auth":"""#);
    let of = |user| hear(&Client::new(user), &text);
    match of("shop/ann") {
        Ok(Command::Subscribe { target, .. }) => {
            assert_eq!((target.kind, target.name.as_str()), (Kind::User, "shop/ann"));
        }
        other => panic!("{other:?}"),
    }
    for user in ["", "ann", "shop/bob"] {
        let refused = of(user).unwrap_err();
        assert!(refused[1].contains(r#""code":4009,"#), "{user}: {refused:?}");
    }
}

#[test]
fn a_signed_user_signs_in_and_hears_its_own_words() {
    let client = Client::new("");
    let user_data = r#"{"id":"12345"}"#;
    let data = json!({ "auth": format!("{KEY}:{USER}"), "user_data": user_data });
    let text = json!({ "event": "pusher:signin", "data": data }).to_string();
    let (heard, _) = Pusher.hear(text.as_bytes(), true, &client);
    let Heard::Command(Received { reference, command: Ok(Command::SignIn { user, watchlist }) }) =
        heard
    else {
        panic!("{text}")
    };
    assert_eq!((&*user, watchlist.len()), ("12345", 0));
    let said = said(&Saying::Authenticated(Some("shop/12345"), 0), reference.as_deref());
    let data = json!({ "user_data": user_data }).to_string();
    let success = json!({ "event": "pusher:signin_success", "data": data });
    assert_eq!(serde_json::from_str::<Value>(&said.concat()).ok(), Some(success));
    let refused = hear(&client, &text.replace("12345", "12346")).unwrap_err();
    assert!(refused[0].contains(r#""code":4009,"#), "{refused:?}");
}

#[test]
fn watched_users_have_the_names_of_the_application() {
    let online = Saying::Watched { users: &["shop/bob", "shop/cat"], is_online: true };
    let word = |name: &str, users: &[&str]| {
        let data = json!({ "events": [{ "name": name, "user_ids": users }] }).to_string();
        let data = serde_json::to_string(&data).unwrap();
        [r#"{"event":"pusher_internal:watchlist_events","data":"#, &data, "}"].concat()
    };
    assert_eq!(said(&online, None), [word("online", &["bob", "cat"])]);
    let error = ErrorResponse::new(ErrorCode::TooManyChannels, "too many");
    let code = said(&Saying::Unwatched(&error), None);
    assert!(code[0].contains(r#""code":4302,"#), "{code:?}");
    for (body, name) in [("online", "online"), ("offline", "offline")] {
        let id = MessageId { epoch: Epoch::numbered(1), offset: 1 };
        let log = ChannelName::online("shop/bob");
        let content = Content::new(id, 0, 1234, log, Body::Text(body.into()));
        let message = Message::from(std::sync::Arc::new(content));
        let mut bytes = Vec::new();
        let out = &mut Out::new(Framing::WebSocket, false, &mut bytes);
        crate::dialect::say_notice(&message, &Pusher, out);
        assert_eq!(texts(&bytes), [word(name, &["bob"])]);
    }
}

#[test]
fn events_of_clients_are_for_private_and_presence_channels() {
    let client = Client::new("");
    let event = |channel: &str, data: &str| {
        format!(r#"{{"event":"client-a","channel":"{channel}"{data}}}"#)
    };
    for (data, body, is_json) in [
        (r#","data":{"t":1}"#, r#"{"t":1}"#, true),
        (r#","data":"{\"t\":1}""#, r#"{"t":1}"#, false),
        (r#","data":"""#, "", false),
        ("", "null", true),
    ] {
        let Ok(Command::Publish { target, publication, echo: false }) =
            hear(&client, &event("private-a", data))
        else {
            panic!("{data}")
        };
        assert_eq!(target.name, "shop/private-a");
        assert_eq!(publication.body, body.as_bytes());
        assert_eq!(publication.content_type.is_some(), is_json, "{data}");
        assert!(publication.is_volatile);
        assert_eq!(publication.labels.event.as_deref(), Some("client-a"));
    }
    for channel in ["news", "private-encrypted-a", "cache-a", "#server-to-user-ann", "a b"] {
        let refused = hear(&client, &event(channel, "")).unwrap_err();
        assert!(refused[0].contains(r#""code":4301,"#), "{channel}: {refused:?}");
    }
}

#[test]
fn a_frame_that_means_nothing_leaves_the_connection() {
    let client = Client::new("");
    for text in ["", "{", "{}", r#"{"event":7}"#, r#"{"event":"a"}"#] {
        let refused = hear(&client, text).unwrap_err();
        assert_eq!(refused.len(), 1, "{text}");
        assert!(refused[0].contains(r#""code":4200,"#), "{text}: {refused:?}");
    }
    let (heard, _) = Pusher.hear(b"{}", false, &client);
    assert!(matches!(heard, Heard::Command(Received { command: Err(_), .. })), "{heard:?}");
    let gone = Client { app: None, ..Client::new("") };
    let (heard, _) = Pusher.hear(b"{}", true, &gone);
    assert!(matches!(heard, Heard::Refused(CloseReason::Revoked)), "{heard:?}");
    let unsubscribed = hear(&client, r#"{"event":"pusher:unsubscribe","data":{"channel":"a/b"}}"#);
    assert_eq!(unsubscribed.unwrap_err(), Vec::<String>::new(), "that has no answer");
}

fn message(channel: ChannelName, event: &str, from: &str, body: Body) -> String {
    let values: Vec<(u16, &[u8])> = [(Attribute::Event, event), (Attribute::From, from)]
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(attribute, text)| (attribute as u16, text.as_bytes()))
        .collect();
    let id = MessageId { epoch: Epoch::numbered(1), offset: 7 };
    let content = Content::new(id, 6, 1234, channel, body);
    let attributes = (!values.is_empty()).then(|| Attributes::of(&values).expect("in order"));
    let extras = Extras::new(None, attributes);
    let message = Message::from(std::sync::Arc::new(Content { extras, ..content }));
    let mut bytes = Vec::new();
    let out = &mut Out::new(Framing::WebSocket, false, &mut bytes);
    Pusher.message(&message, Shown::of(ChannelId(1)), out);
    let text = texts(&bytes).concat();
    let event = text.strip_suffix(&format!(r#","id":"{id}"}}"#));
    format!("{}}}", event.expect("each that is kept has its id"))
}

#[test]
fn the_number_of_subscribers_is_told_by_the_server() {
    let body = Body::Json(r#"{"subscription_count":3}"#.into());
    let count = "pusher_internal:subscription_count";
    let frame = message(ChannelName::channel("shop/news"), count, "", body);
    let data = r#"{\"subscription_count\":3}"#;
    assert_eq!(frame, format!(r#"{{"event":"{count}","channel":"news","data":"{data}"}}"#));
}

#[test]
fn messages_are_events_of_the_application() {
    let (news, json) = (ChannelName::channel("shop/news"), Body::Json(r#"{"a":1}"#.into()));
    let room = ChannelName::channel("shop/presence-r");
    for (channel, event, from, body, expected) in [
        (
            news.clone(),
            "ev",
            "",
            json.clone(),
            r#"{"event":"ev","channel":"news","data":"{\"a\":1}"}"#,
        ),
        (
            news.clone(),
            "",
            "",
            Body::Text("hi".into()),
            r#"{"event":"message","channel":"news","data":"hi"}"#,
        ),
        (
            news.clone(),
            "",
            "",
            Body::Binary([0xff].into()),
            r#"{"event":"message","channel":"news","data":"/w=="}"#,
        ),
        // A publisher cannot pass for the server.
        (
            news.clone(),
            "pusher:error",
            "",
            json.clone(),
            r#"{"event":"message","channel":"news","data":"{\"a\":1}"}"#,
        ),
        // No envelope of ours would have this name.
        (
            news.clone(),
            "gap",
            "",
            json.clone(),
            r#"{"event":"gap","channel":"news","data":"{\"a\":1}"}"#,
        ),
        (
            ChannelName::user("shop/ann"),
            "hey",
            "",
            json.clone(),
            r##"{"event":"hey","channel":"#server-to-user-ann","data":"{\"a\":1}"}"##,
        ),
        (
            room.clone(),
            "client-t",
            "shop/ann",
            json.clone(),
            r#"{"event":"client-t","channel":"presence-r","data":{"a":1},"user_id":"ann"}"#,
        ),
        (
            room.clone(),
            "client-t",
            "shop/ann",
            Body::Text(r#"{"a":1}"#.into()),
            r#"{"event":"client-t","channel":"presence-r","data":"{\"a\":1}","user_id":"ann"}"#,
        ),
        // A user of the server is none of the application's.
        (
            room,
            "client-t",
            "ann",
            json,
            r#"{"event":"client-t","channel":"presence-r","data":{"a":1}}"#,
        ),
    ] {
        assert_eq!(message(channel, event, from, body), expected);
    }
}

#[test]
fn close_codes_never_stop_a_client_that_may_come_back() {
    let codes = |reason, may_stay| {
        let end = End { reason, message: "why", retry_after: None, may_stay };
        let mut bytes = Vec::new();
        let out = &mut Out::new(Framing::WebSocket, false, &mut bytes);
        let ended = Pusher.end(&end, out);
        (ended, texts(&bytes))
    };
    let close = |code: u16| String::from_utf8_lossy(&code.to_be_bytes()).into_owned() + "why";
    for (reason, code) in [
        (CloseReason::Lagging, 4200),
        (CloseReason::Draining, 4200),
        (CloseReason::PingTimeout, 4201),
        (CloseReason::Overload, 4100),
        (CloseReason::Limited, 4100),
        (CloseReason::Disconnected(4100), 4100),
        (CloseReason::Disconnected(4499), 4100),
        (CloseReason::Disconnected(4500), 4009),
        (CloseReason::Revoked, 4009),
        (CloseReason::Refused(ErrorCode::BadRequest), 4200),
    ] {
        let (ended, said) = codes(reason, false);
        assert_eq!(ended, Ended::Closes);
        let error =
            format!(r#"{{"event":"pusher:error","data":{{"code":{code},"message":"why"}}}}"#);
        assert_eq!(said, [error, close(code)], "{reason:?}");
    }
    let (ended, said) = codes(CloseReason::Refused(ErrorCode::BadRequest), true);
    assert_eq!((ended, said.len()), (Ended::Stays, 1));
    assert_eq!(codes(CloseReason::Revoked, true).0, Ended::Closes);
    let violation = CloseReason::Violation(throng_wire::websocket::Violation::TooLarge);
    assert_eq!(codes(violation, false).1, [close(1009)]);
    let long = "é".repeat(100);
    assert_eq!(reason(&long).len(), 122);
}

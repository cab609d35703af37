//! Commands and frames of the AsyncAPI document.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use throng_wire::v1::{
    self, HistoryPage, MemberEvent, PartialEvent, PresenceEvent, Present, RawValue, Verb,
};
use throng_wire::{ErrorCode, Kind, Target};

use super::{asyncapi, object, texts};
use crate::server::Server;

/// The transports of each path that subscribes, as the names of channels end.
const TRANSPORTS: [&str; 4] = ["V1", "Plain", "Events", "Lines"];

/// The paths that subscribe, as the names of channels begin.
const PATHS: [(&str, &str); 3] =
    [("channel", "/channels/{channel}"), ("user", "/users/{user}"), ("several", "/subscribe")];

fn names(references: &Value) -> Vec<&str> {
    let references = references.as_array().expect("a list").iter();
    let texts = references.map(|reference| reference["$ref"].as_str().expect("a reference"));
    texts.filter_map(|text| text.rsplit('/').next()).collect()
}

#[test]
fn commands_have_the_fields_that_the_server_takes() {
    let server = Server::new();
    let document = asyncapi(&server);
    for (command, fields) in v1::COMMANDS {
        let payload = &document["components"]["messages"][command]["payload"];
        let documented: BTreeSet<_> = object(&payload["properties"]).keys().collect();
        let fields: Vec<_> = fields.iter().map(|field| (*field).to_owned()).collect();
        assert_eq!(documented, fields.iter().collect(), "{command}");
        assert_eq!(payload["properties"]["type"]["const"], command);
        assert_eq!(payload["additionalProperties"], false, "{command}");
        let takes_both = fields.contains(&"channel".to_owned());
        let mut one = vec![json!({ "required": ["channel"] }), json!({ "required": ["user"] })];
        if fields.contains(&"channels".to_owned()) {
            one.push(json!({ "required": ["channels"] }));
        }
        let one = Value::Array(one);
        let expected = if takes_both { Some(&one) } else { None };
        assert_eq!(payload.get("oneOf"), expected, "{command}");
    }
}

#[test]
fn each_command_has_an_answer_on_each_path() {
    let server = Server::new();
    let document = asyncapi(&server);
    let operations = object(&document["operations"]);
    for (word, _) in PATHS {
        let prefix = format!("{word}V1_");
        let commands = operations.keys().filter_map(|name| name.strip_prefix(&prefix));
        let known = v1::COMMANDS.map(|(name, _)| name);
        assert_eq!(commands.collect::<BTreeSet<_>>(), known.into(), "{word}");
        for command in known {
            let operation = &operations[&format!("{prefix}{command}")];
            assert_eq!(names(&operation["messages"]), [command]);
            let answers = names(&operation["reply"]["messages"]);
            let own = usize::from(command != "ack");
            assert_eq!((answers.len(), answers[own]), (own + 1, "error"), "{command}");
        }
    }
}

#[test]
fn each_path_has_the_same_messages_of_a_transport() {
    let server = Server::new();
    let document = asyncapi(&server);
    let (channels, operations) = (&document["channels"], &document["operations"]);
    assert_eq!(object(channels).len(), PATHS.len() * TRANSPORTS.len());
    for transport in TRANSPORTS {
        for (word, address) in PATHS {
            let channel = format!("{word}{transport}");
            assert_eq!(channels[&channel]["address"], address);
            let first = &channels[format!("channel{transport}")];
            for part in ["title", "description", "servers", "messages", "bindings"] {
                assert_eq!(channels[&channel].get(part), first.get(part), "{channel}: {part}");
            }
            let sends = names(&operations[format!("{channel}Send")]["messages"]);
            let first = names(&operations[format!("channel{transport}Send")]["messages"]);
            assert_eq!(sends, first, "{channel}");
            let of_channel = object(&channels[&channel]["messages"]);
            let own = object(operations).iter().filter(|(_, operation)| {
                operation["channel"]["$ref"] == format!("#/channels/{channel}")
            });
            let used: BTreeSet<_> = own
                .flat_map(|(_, it)| [Some(&it["messages"]), it.pointer("/reply/messages")])
                .flatten()
                .flat_map(names)
                .collect();
            assert_eq!(used, of_channel.keys().map(String::as_str).collect(), "{channel}");
        }
    }
}

struct Messages(Value);

impl Messages {
    fn read() -> Messages {
        Messages(asyncapi(&Server::new())["components"]["messages"].take())
    }

    /// Expects that the message has all fields of a frame, and that the frame has all fields that
    /// the message requires.
    fn check(&self, name: &str, write: impl FnOnce(&mut Vec<u8>, Option<&RawValue>)) {
        let reference = RawValue::from_string("7".into()).unwrap();
        let mut out = Vec::new();
        write(&mut out, Some(&reference));
        let frame: Value = serde_json::from_slice(&out).unwrap();
        let payload = &self.0[name]["payload"];
        let properties = object(&payload["properties"]);
        for field in object(&frame).keys() {
            assert!(properties.contains_key(field), "{name} has no `{field}`");
        }
        for field in texts(&payload["required"]) {
            assert!(frame.get(field).is_some(), "{name} lacks {field}");
        }
        assert_eq!(frame["type"], properties["type"]["const"], "{name}");
    }
}

#[test]
fn answers_have_the_fields_that_are_written() {
    let messages = Messages::read();
    let target = Target { kind: Kind::Channel, name: "a".into() };
    let user = Target { kind: Kind::User, name: "u".into() };
    let error = ErrorCode::Forbidden.into();
    messages.check("subscribed", |out, of| {
        let (head, recovered, number) = (Some("a-2"), Some(true), Some(1));
        v1::subscribed(out, &target, v1::Begin { id: "a-1", head, recovered, number }, of);
    });
    messages.check("numbers", |out, _| {
        let of = |target: &Target| v1::Numbered { target: target.clone(), number: 1, epoch: "a" };
        v1::numbers(out, &[of(&target), of(&user)]);
    });
    messages.check("unsubscribed", |out, of| v1::unsubscribed(out, &target, of));
    for verb in [Verb::Subscribe, Verb::Unsubscribe] {
        let name = if verb == Verb::Subscribe { "subscribed" } else { "unsubscribed" };
        messages.check(name, |out, of| v1::ListReply::new(verb).write(out, of));
    }
    messages.check("unsubscribed", |out, _| v1::revoked(out, &target, &error));
    messages.check("published", |out, of| v1::published(out, &target, Some("a-1"), 3, true, of));
    messages.check("published", |out, of| v1::published(out, &target, None, 3, false, of));
    messages.check("historyPage", |out, of| {
        let page = HistoryPage {
            is_ended: true,
            target: &target,
            id: "a-1",
            has_more: true,
            is_recovered: Some(true),
            is_local: true,
        };
        v1::history(out, page, [] as [fn(&mut Vec<u8>); 0], of);
    });
    let (members, next) = (Some(&[r#"{"user":"u"}"#][..]), Some("u"));
    let (users, more) = (&["u"][..], true);
    let (is_partial, is_local) = (true, true);
    let present = Present { connections: 1, users, members, next, more, is_partial, is_local };
    messages.check("presenceState", |out, of| v1::presence(out, &target, present, of));
    messages.check("updated", |out, of| v1::updated(out, &target, of));
    messages.check("readMarker", |out, of| v1::read(out, &user, (Some("a-1"), 3), of));
    messages.check("authenticated", |out, of| v1::authenticated(out, Some("u"), 3, of));
    messages.check("pong", v1::pong);
    messages.check("error", |out, of| v1::error(out, &error, of));
}

#[test]
fn notices_have_the_fields_that_are_written() {
    let messages = Messages::read();
    let terms = v1::Terms { heartbeat_s: 25, max_channels: 128, max_message_bytes: 1 << 16 };
    let target = Target { kind: Kind::Channel, name: "a".into() };
    messages.check("welcome", |out, _| v1::welcome(out, "c1", &terms, Some(3)));
    messages.check("greeting", |out, _| {
        v1::greeting(out, Some("c1"), "a-1", Some(true), Some(3));
    });
    messages.check("gap", |out, _| v1::gap(out, &target, Some(3), "a-1"));
    messages.check("ended", |out, _| v1::ended(out, &target, "a-1"));
    messages.check("expiring", |out, _| v1::expiring(out, 3));
    let ann = Target { kind: Kind::User, name: "ann".into() };
    messages.check("unread", |out, _| v1::unread(out, &ann, (Some("a-1"), 3)));
    messages.check("late", |out, _| v1::late(out, true));
    messages.check("closed", |out, _| v1::closed(out, "token_expired", 4002, "why"));
    messages.check("member", |out, _| {
        let object = r#"{"connection":"c","user":"u","info":{}}"#;
        let (event, id) = ("join", "a-1");
        v1::member(out, MemberEvent { channel: "a", event, id, time_ms: 1, object });
    });
    messages.check("memberList", |out, _| v1::members(out, "a", "a-1", 1, true));
    messages.check("memberListPartial", |out, _| {
        let event = PartialEvent { channel: "a", id: "a-1", time_ms: 1, is_partial: true };
        v1::partial(out, event);
    });
    let (user, time) = ("u".into(), 1);
    let (users, is_partial) = (Some(&["u"][..]), true);
    let event = PresenceEvent { channel: "a", time_ms: 1, connections: 1, users, is_partial };
    messages.check("presenceEvent", |out, _| v1::presence_state(out, event));
    messages.check("presenceEvent", |out, _| {
        v1::presence_event(out, event, [&user], [(&user, time)]);
    });
}

//! Who is in a channel: lists, presence events, members.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Object;
use crate::json::write_json_string;
use crate::name::Target;

/// Lists the connected users.
pub fn presence(
    out: &mut Vec<u8>,
    target: &Target,
    present: Present<'_, impl AsRef<str>>,
    reference: Option<&RawValue>,
) {
    presence_fields(Object::typed(out, "presence"), target, present).end_with(reference);
}

/// [`presence`] as the body of an HTTP response.
pub fn presence_body(out: &mut Vec<u8>, target: &Target, present: Present<'_, impl AsRef<str>>) {
    presence_fields(Object::new(out), target, present).end();
}

/// The members of a channel.
#[derive(Debug, Clone, Copy)]
pub struct Present<'a, U> {
    pub connections: usize,
    /// The users that they belong to.
    pub users: &'a [U],
    /// The members as JSON objects, if the server keeps a list of them.
    pub members: Option<&'a [U]>,
    /// The member after which the next page goes on, if there is one.
    pub next: Option<&'a str>,
    pub more: bool,
    /// True if other nodes have not said who is there on them.
    pub is_partial: bool,
    /// True if there are other nodes, and the channel is this one's alone.
    pub is_local: bool,
}

fn presence_fields<'o>(
    object: Object<'o>,
    target: &Target,
    Present { connections, users, members, next, more, is_partial, is_local }: Present<
        '_,
        impl AsRef<str>,
    >,
) -> Object<'o> {
    let object = object.target(target).number("connections", connections as u64).array(
        "users",
        users,
        |out, user| write_json_string(out, user.as_ref()),
    );
    let object = match members {
        Some(members) => array(object, members, next),
        None => object,
    };
    object.boolean("more", more).flag("partial", is_partial).flag("local", is_local)
}

/// The members of a channel, for subscribers of its presence events.
#[derive(Debug, Clone, Copy)]
pub struct PresenceEvent<'a> {
    pub channel: &'a str,
    /// The time of the event, in milliseconds since 1970.
    pub time_ms: u64,
    pub connections: usize,
    /// The users; `None` if there are too many connections to name them.
    pub users: Option<&'a [&'a str]>,
    /// True if other nodes may have more.
    pub is_partial: bool,
}

/// A presence event for a client that has just begun to follow them: who is there now.
pub fn presence_state(out: &mut Vec<u8>, event: PresenceEvent<'_>) {
    presence_event_fields(out, event).end();
}

/// A presence event: who is there now, who has `joined` since the last event, and who has `left`,
/// each with the time when the last connection ended.
pub fn presence_event<'u>(
    out: &mut Vec<u8>,
    event: PresenceEvent<'_>,
    joined: impl IntoIterator<Item = &'u Arc<str>>,
    left: impl IntoIterator<Item = (&'u Arc<str>, u64)>,
) {
    let object = presence_event_fields(out, event);
    if event.users.is_none() {
        return object.end();
    }
    object
        .array("joined", joined, |out, user| write_json_string(out, user))
        .array("left", left, |out, (user, last_seen_ms)| {
            Object::new(out).string("user", user).number("last_seen", last_seen_ms).end();
        })
        .end();
}

fn presence_event_fields<'o>(out: &'o mut Vec<u8>, event: PresenceEvent<'_>) -> Object<'o> {
    let PresenceEvent { channel, time_ms, connections, users, is_partial } = event;
    Object::typed(out, "presence")
        .string("channel", channel)
        .number("time", time_ms)
        .number("connections", connections as u64)
        .array("users", users.unwrap_or_default(), |out, user| write_json_string(out, user))
        .boolean("more", users.is_none())
        .flag("partial", is_partial)
}

/// A member of a channel, as everybody sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownMember<'a> {
    /// The name of the connection, where each one is a member.
    pub connection: Option<&'a str>,
    /// The user that it belongs to.
    pub user: Option<&'a str>,
    /// A JSON object on one line.
    pub info: Option<&'a str>,
}

/// The field before the information of a member. No string in JSON contains it.
const INFO: &str = r#","info":"#;

impl ShownMember<'_> {
    /// The member as a JSON object on one line, with at least one field.
    pub fn object(&self) -> String {
        let mut json = Vec::new();
        let mut object = Object::new(&mut json);
        if let Some(connection) = self.connection {
            object = object.string("connection", connection);
        }
        if let Some(user) = self.user {
            object = object.string("user", user);
        }
        object.end();
        let mut json = String::from_utf8(json).expect("names and JSON are UTF-8");
        if let Some(info) = self.info {
            json.pop();
            json.push_str(INFO);
            json.push_str(info);
            json.push('}');
        }
        json
    }
}

/// The object of a member without its information.
pub fn member_without_info(object: &str) -> String {
    match object.find(INFO) {
        Some(at) => format!("{}}}", &object[..at]),
        None => object.to_owned(),
    }
}

/// True if the object is of a connection that is a member, and not of a user.
pub fn is_connection(object: &str) -> bool {
    object.starts_with(r#"{"connection":"#)
}

/// A member has joined, has changed, or has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberEvent<'a> {
    pub channel: &'a str,
    /// `join`, `update` or `leave`.
    pub event: &'a str,
    /// The id in the log of the channel's members.
    pub id: &'a str,
    /// In milliseconds since 1970.
    pub time_ms: u64,
    /// The member as a JSON object.
    pub object: &'a str,
}

/// Tells of a member.
pub fn member(out: &mut Vec<u8>, of: MemberEvent<'_>) {
    let MemberEvent { channel, event, id, time_ms, object } = of;
    let mut notice = Object::typed(out, "presence")
        .string("channel", channel)
        .string("event", event)
        .string("id", id)
        .number("time", time_ms);
    notice.field("member").extend_from_slice(object.as_bytes());
    notice.end();
}

/// Tells that all members of a channel have been told, as of `id`. If other nodes may have some
/// that are not known, it is partial.
pub fn members(out: &mut Vec<u8>, channel: &str, id: &str, members: u64, is_partial: bool) {
    Object::typed(out, "presence")
        .string("channel", channel)
        .string("event", "state")
        .string("id", id)
        .number("members", members)
        .flag("partial", is_partial)
        .end();
}

/// Members of a channel may be missing from a list that was told, or are not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialEvent<'a> {
    pub channel: &'a str,
    /// The id in the log of the channel's members.
    pub id: &'a str,
    /// In milliseconds since 1970.
    pub time_ms: u64,
    pub is_partial: bool,
}

/// Tells that.
pub fn partial(out: &mut Vec<u8>, of: PartialEvent<'_>) {
    let PartialEvent { channel, id, time_ms, is_partial } = of;
    Object::typed(out, "presence")
        .string("channel", channel)
        .string("event", if is_partial { "partial" } else { "whole" })
        .string("id", id)
        .number("time", time_ms)
        .flag("partial", is_partial)
        .end();
}

/// Replies that what a client shows of itself is taken.
pub fn updated(out: &mut Vec<u8>, target: &Target, reference: Option<&RawValue>) {
    Object::typed(out, "updated").target(target).end_with(reference);
}

/// Writes a list of members.
fn array<'o>(object: Object<'o>, members: &[impl AsRef<str>], next: Option<&str>) -> Object<'o> {
    let object = object.array("members", members, |out, member| {
        out.extend_from_slice(member.as_ref().as_bytes());
    });
    match next {
        Some(next) => object.string("next", next),
        None => object,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_an_object_with_and_without_information() {
        let name = r#"a","info":{"#;
        let info = Some(r#"{"name":"Ann"}"#);
        let member = ShownMember { connection: Some("c"), user: Some(name), info };
        let object = member.object();
        assert_eq!(object, r#"{"connection":"c","user":"a\",\"info\":{","info":{"name":"Ann"}}"#);
        let bare = ShownMember { info: None, ..member }.object();
        assert_eq!(
            (member_without_info(&object), member_without_info(&bare)),
            (bare.clone(), bare)
        );
        assert!(is_connection(&object));
        assert!(!is_connection(&ShownMember { connection: None, ..member }.object()));
    }

    #[test]
    fn a_list_has_the_same_fields_as_a_frame_and_as_a_body() {
        let target = Target { kind: crate::Kind::Channel, name: "a".into() };
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).unwrap()
        };
        let users = ["ann", "b\"o"];
        let (members, next, more) = (None, None, false);
        let (is_partial, is_local) = (false, true);
        let present =
            Present { connections: 3, users: &users, members, next, more, is_partial, is_local };
        let expected = concat!(
            r#"{"type":"presence","channel":"a","connections":3,"users":["ann","b\"o"],"#,
            r#""more":false,"local":true}"#
        );
        assert_eq!(text(&|out| presence(out, &target, present, None)), expected);
        let (is_partial, is_local, more) = (true, false, true);
        let nobody = Present { connections: 0, users: &[], is_partial, is_local, more, ..present };
        let expected = r#"{"channel":"a","connections":0,"users":[],"more":true,"partial":true}"#;
        assert_eq!(text(&|out| presence_body(out, &target, nobody)), expected);
        let (members, next) = (Some(&[r#"{"user":"ann"}"#][..]), Some("ann"));
        let page = Present { users: &users[..1], members, next, ..present };
        let expected = concat!(
            r#"{"channel":"a","connections":3,"users":["ann"],"members":[{"user":"ann"}],"#,
            r#""next":"ann","more":false,"local":true}"#
        );
        assert_eq!(text(&|out| presence_body(out, &target, page)), expected);
    }

    #[test]
    fn a_notice_has_its_member() {
        let mut out = Vec::new();
        let (event, object) = ("join", r#"{"user":"ann","info":{}}"#);
        member(&mut out, MemberEvent { channel: "a", event, id: "e-7", time_ms: 9, object });
        let expected = concat!(
            r#"{"type":"presence","channel":"a","event":"join","id":"e-7","time":9,"#,
            r#""member":{"user":"ann","info":{}}}"#
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        members(&mut out, "a", "e-7", 2, false);
        let expected =
            r#"{"type":"presence","channel":"a","event":"state","id":"e-7","members":2}"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        for (is_partial, expected) in [
            (true, r#""event":"partial","id":"e-8","time":9,"partial":true}"#),
            (false, r#""event":"whole","id":"e-8","time":9}"#),
        ] {
            let mut out = Vec::new();
            partial(&mut out, PartialEvent { channel: "a", id: "e-8", time_ms: 9, is_partial });
            let expected = format!(r#"{{"type":"presence","channel":"a",{expected}"#);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}

//! The frames of servers: each is one JSON object with an `event`, and mostly with `data`, a text
//! that is JSON itself.

use std::borrow::Cow;
use std::io::Write as _;

use serde_json::value::RawValue;

use crate::socket::SocketId;

/// Keeps an idle client from asking whether the server is there, and answers one that does.
pub const PONG: &str = r#"{"event":"pusher:pong","data":"{}"}"#;

/// Codes of `pusher:error` and of close frames.
pub mod code {
    /// There is no application with this key.
    pub const NO_APP: u16 = 4001;
    /// The key of the application is not enabled.
    pub const DISABLED: u16 = 4003;
    /// The protocol has no such version.
    pub const VERSION: u16 = 4007;
    /// The client may not do this, or not any more.
    pub const UNAUTHORIZED: u16 = 4009;
    /// The client may come back in a second.
    pub const LATER: u16 = 4100;
    /// The client may come back at once.
    pub const AGAIN: u16 = 4200;
    /// The client has not answered in time.
    pub const NO_PONG: u16 = 4201;
    /// An error in band, of a kind that has no other number.
    pub const OTHER: u16 = 4300;
    /// An event of a client is refused.
    pub const CLIENT_EVENT: u16 = 4301;
    /// A watchlist has too many users, and some are left out.
    pub const WATCHLIST: u16 = 4302;
}

/// Appends a JSON text.
fn push_text(out: &mut Vec<u8>, text: &str) {
    // Writing a str into a Vec does not fail.
    let _ = serde_json::to_writer(out, text);
}

/// Appends a frame about a channel, whose data is a text. `event` is a word of the protocol.
fn push_about(out: &mut Vec<u8>, event: &str, channel: &str, data: &[u8]) {
    out.extend_from_slice(b"{\"event\":\"");
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(b"\",\"channel\":");
    push_text(out, channel);
    out.extend_from_slice(b",\"data\":");
    push_text(out, &String::from_utf8_lossy(data));
    out.push(b'}');
}

/// The first frame.
pub fn established(out: &mut Vec<u8>, socket: SocketId, activity_timeout_s: u64) {
    // Of the data, quotes alone are escaped. Writing into a Vec does not fail.
    let _ = write!(
        out,
        concat!(
            r#"{{"event":"pusher:connection_established","data":"{{\"socket_id\":\"{}\","#,
            r#"\"activity_timeout\":{}}}"}}"#,
        ),
        socket, activity_timeout_s,
    );
}

/// An error in band. Its data is no text, as of no other frame.
pub fn error(out: &mut Vec<u8>, code: u16, message: &str) {
    let head = format!("{{\"event\":\"pusher:error\",\"data\":{{\"code\":{code},\"message\":");
    out.extend_from_slice(head.as_bytes());
    push_text(out, message);
    out.extend_from_slice(b"}}");
}

/// A subscription has not begun, or has ended.
pub fn subscription_error(
    out: &mut Vec<u8>,
    channel: &str,
    (kind, message, status): (&str, &str, u16),
) {
    let mut data = format!(r#"{{"type":"{kind}","error":"#).into_bytes();
    push_text(&mut data, message);
    data.extend_from_slice(format!(r#","status":{status}}}"#).as_bytes());
    push_about(out, "pusher:subscription_error", channel, &data);
}

/// Where a subscription begins that is to go on from an earlier event.
#[derive(Debug, Clone, Copy)]
pub struct Resumed<'a> {
    /// The id from which the client can go on.
    pub id: &'a str,
    /// True if it gets all events since then.
    pub is_recovered: bool,
}

impl Resumed<'_> {
    /// Appends its members to those of an object.
    fn push(self, data: &mut Vec<u8>) {
        data.extend_from_slice(b"\"id\":");
        push_text(data, self.id);
        data.extend_from_slice(format!(r#","recovered":{}"#, self.is_recovered).as_bytes());
    }
}

/// A subscription has begun.
pub fn succeeded(out: &mut Vec<u8>, channel: &str, resumed: Option<Resumed<'_>>) {
    let mut data = b"{".to_vec();
    if let Some(resumed) = resumed {
        resumed.push(&mut data);
    }
    data.push(b'}');
    push_about(out, "pusher_internal:subscription_succeeded", channel, &data);
}

/// A subscription to a presence channel has begun, which has these members: their ids, and what
/// others see of each, a JSON text.
pub fn succeeded_with<'m>(
    out: &mut Vec<u8>,
    channel: &str,
    resumed: Option<Resumed<'_>>,
    members: impl Iterator<Item = (Cow<'m, str>, Option<&'m RawValue>)>,
) {
    let (mut ids, mut hash, mut count) = (Vec::new(), Vec::new(), 0);
    for (id, info) in members {
        if count > 0 {
            ids.push(b',');
            hash.push(b',');
        }
        push_text(&mut ids, &id);
        push_text(&mut hash, &id);
        hash.push(b':');
        hash.extend_from_slice(info.map_or("{}", RawValue::get).as_bytes());
        count += 1;
    }
    let mut data = format!(r#"{{"presence":{{"count":{count},"ids":["#).into_bytes();
    data.extend_from_slice(&ids);
    data.extend_from_slice(b"],\"hash\":{");
    data.extend_from_slice(&hash);
    data.extend_from_slice(b"}}");
    if let Some(resumed) = resumed {
        data.push(b',');
        resumed.push(&mut data);
    }
    data.push(b'}');
    push_about(out, "pusher_internal:subscription_succeeded", channel, &data);
}

/// A member has joined.
pub fn member_added(out: &mut Vec<u8>, channel: &str, id: &str, info: Option<&RawValue>) {
    let mut data = b"{\"user_id\":".to_vec();
    push_text(&mut data, id);
    data.extend_from_slice(b",\"user_info\":");
    data.extend_from_slice(info.map_or("{}", RawValue::get).as_bytes());
    data.push(b'}');
    push_about(out, "pusher_internal:member_added", channel, &data);
}

/// A member has left.
pub fn member_removed(out: &mut Vec<u8>, channel: &str, id: &str) {
    let mut data = b"{\"user_id\":".to_vec();
    push_text(&mut data, id);
    data.push(b'}');
    push_about(out, "pusher_internal:member_removed", channel, &data);
}

/// These users are online now, or not any more.
pub fn watchlist_events(out: &mut Vec<u8>, is_online: bool, users: &[&str]) {
    let name = if is_online { "online" } else { "offline" };
    let data = serde_json::json!({ "events": [{ "name": name, "user_ids": users }] });
    out.extend_from_slice(b"{\"event\":\"pusher_internal:watchlist_events\",\"data\":");
    push_text(out, &data.to_string());
    out.push(b'}');
}

/// The channel, which was to begin with its newest event, has none.
pub fn cache_miss(out: &mut Vec<u8>, channel: &str) {
    out.extend_from_slice(b"{\"event\":\"pusher:cache_miss\",\"channel\":");
    push_text(out, channel);
    out.push(b'}');
}

/// The client is the user that it says: its own words about the user, a JSON text.
pub fn signed_in(out: &mut Vec<u8>, user_data: &str) {
    let data = serde_json::json!({ "user_data": user_data });
    out.extend_from_slice(b"{\"event\":\"pusher:signin_success\",\"data\":");
    push_text(out, &data.to_string());
    out.push(b'}');
}

/// The data of an event.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    Text(&'a str),
    /// A JSON text that stands as it is, as in an event of a client.
    Json(&'a str),
}

/// An event that was published. `user_id` is the member that has published it, and `id` the event's
/// place in its channel, if it is kept.
pub fn event(
    out: &mut Vec<u8>,
    (event, channel): (&str, &str),
    data: Data<'_>,
    user_id: Option<&str>,
    id: Option<&str>,
) {
    out.extend_from_slice(b"{\"event\":");
    push_text(out, event);
    out.extend_from_slice(b",\"channel\":");
    push_text(out, channel);
    out.extend_from_slice(b",\"data\":");
    match data {
        Data::Text(text) => push_text(out, text),
        Data::Json(json) => out.extend_from_slice(json.as_bytes()),
    }
    if let Some(user_id) = user_id {
        out.extend_from_slice(b",\"user_id\":");
        push_text(out, user_id);
    }
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        push_text(out, id);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        let text = String::from_utf8(out).unwrap();
        // What pusher-js would throw at.
        let frame: Value = serde_json::from_str(&text).unwrap();
        assert!(frame["event"].is_string(), "{text}");
        text
    }

    #[test]
    fn frames_are_those_of_the_protocol() {
        let socket = SocketId { node: 276_962_446, number: 5_307_675_169 };
        assert_eq!(
            text(|out| established(out, socket, 120)),
            concat!(
                r#"{"event":"pusher:connection_established","data":"{\"socket_id\":\"276962"#,
                r#"446.5307675169\",\"activity_timeout\":120}"}"#,
            )
        );
        assert_eq!(
            text(|out| error(out, 4009, "a \"b\"")),
            r#"{"event":"pusher:error","data":{"code":4009,"message":"a \"b\""}}"#
        );
        assert_eq!(
            text(|out| subscription_error(out, "private-x", ("AuthError", "no", 401))),
            concat!(
                r#"{"event":"pusher:subscription_error","channel":"private-x","data":"{\"ty"#,
                r#"pe\":\"AuthError\",\"error\":\"no\",\"status\":401}"}"#,
            )
        );
        assert_eq!(
            text(|out| succeeded(out, "news", None)),
            r#"{"event":"pusher_internal:subscription_succeeded","channel":"news","data":"{}"}"#
        );
        assert_eq!(
            text(|out| {
                succeeded(out, "news", Some(Resumed { id: "x-1", is_recovered: true }));
            }),
            concat!(
                r#"{"event":"pusher_internal:subscription_succeeded","channel":"news","data":"#,
                r#""{\"id\":\"x-1\",\"recovered\":true}"}"#,
            )
        );
        assert_eq!(
            text(|out| signed_in(out, r#"{"id":"ann"}"#)),
            concat!(
                r#"{"event":"pusher:signin_success","data":"{\"user_data\":\"{\\\"id\\\":\\"#,
                r#"\"ann\\\"}\"}"}"#,
            )
        );
        assert_eq!(
            text(|out| cache_miss(out, "cache-c")),
            r#"{"event":"pusher:cache_miss","channel":"cache-c"}"#
        );
        assert_eq!(
            text(|out| watchlist_events(out, true, &["bob", "c\"y"])),
            concat!(
                r#"{"event":"pusher_internal:watchlist_events","data":"{\"events\":[{\"name\":"#,
                r#"\"online\",\"user_ids\":[\"bob\",\"c\\\"y\"]}]}"}"#,
            )
        );
        text(|out| out.extend_from_slice(PONG.as_bytes()));
    }

    #[test]
    fn members_come_with_what_they_show() {
        let info: &RawValue = serde_json::from_str(r#"{"n":1}"#).unwrap();
        let members = [(Cow::Borrowed("ann"), Some(info)), (Cow::Borrowed("b\"ob"), None)];
        assert_eq!(
            text(|out| succeeded_with(out, "presence-r", None, members.into_iter())),
            concat!(
                r#"{"event":"pusher_internal:subscription_succeeded","channel":"presence-r""#,
                r#","data":"{\"presence\":{\"count\":2,\"ids\":[\"ann\",\"b\\\"ob\"],\"hash"#,
                r#"\":{\"ann\":{\"n\":1},\"b\\\"ob\":{}}}}"}"#,
            )
        );
        assert_eq!(
            text(|out| member_added(out, "presence-r", "bob", Some(info))),
            concat!(
                r#"{"event":"pusher_internal:member_added","channel":"presence-r","data":"{"#,
                r#"\"user_id\":\"bob\",\"user_info\":{\"n\":1}}"}"#,
            )
        );
        assert_eq!(
            text(|out| member_removed(out, "presence-r", "bob")),
            concat!(
                r#"{"event":"pusher_internal:member_removed","channel":"presence-r","data":"#,
                r#""{\"user_id\":\"bob\"}"}"#,
            )
        );
    }

    #[test]
    fn events_have_texts_or_json_as_it_is() {
        assert_eq!(
            text(|out| event(out, ("ev", "news"), Data::Text(r#"{"hello":1}"#), None, Some("x-7"))),
            r#"{"event":"ev","channel":"news","data":"{\"hello\":1}","id":"x-7"}"#
        );
        let of_client = ("client-typing", "presence-r");
        assert_eq!(
            text(|out| event(out, of_client, Data::Json(r#"{"t":1}"#), Some("ann"), None)),
            r#"{"event":"client-typing","channel":"presence-r","data":{"t":1},"user_id":"ann"}"#
        );
    }
}

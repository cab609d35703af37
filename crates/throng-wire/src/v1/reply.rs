//! The frames of the server, each a JSON object on one line, and the HTTP bodies with the same
//! fields.

mod erased;
mod presence;
mod receipt;
mod state;

use serde_json::value::RawValue;
use std::fmt::Display;
use std::io::Write as _;

use super::list::Verb;
use crate::error::ErrorResponse;
use crate::json::write_json_string;
use crate::name::{Kind, Target};

pub use erased::{ended_body, erased_body, opened_body, replaced_body};
pub use presence::{
    MemberEvent, PartialEvent, PresenceEvent, Present, ShownMember, is_connection, member,
    member_without_info, members, partial, presence, presence_body, presence_event, presence_state,
    updated,
};
pub use receipt::{ReceiptFields, receipt_body};
pub use state::{state, state_body};

/// Writes a JSON object, field by field.
struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Object<'o> {
    fn new(out: &'o mut Vec<u8>) -> Object<'o> {
        out.push(b'{');
        Object { out, is_empty: true }
    }

    /// Begins an object with the field `type`, as every frame of `throng.v1` does.
    fn typed(out: &'o mut Vec<u8>, kind: &str) -> Object<'o> {
        Object::new(out).string("type", kind)
    }

    /// Begins a field. The caller appends its value to the returned buffer. `name` needs no
    /// escapes.
    fn field(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    fn string(mut self, name: &str, value: &str) -> Self {
        write_json_string(self.field(name), value);
        self
    }

    fn number(mut self, name: &str, value: u64) -> Self {
        // Writing to a Vec cannot fail.
        let _ = write!(self.field(name), "{value}");
        self
    }

    fn boolean(mut self, name: &str, value: bool) -> Self {
        let value: &[u8] = if value { b"true" } else { b"false" };
        self.field(name).extend_from_slice(value);
        self
    }

    /// A member that is left out unless it is true.
    fn flag(self, name: &str, value: bool) -> Self {
        if value { self.boolean(name, true) } else { self }
    }

    fn target(self, target: &Target) -> Self {
        self.string(target.kind.noun(), &target.name)
    }

    /// The field `recovered`, left out if the client gave no id to resume after.
    fn recovered(self, recovered: Option<bool>) -> Self {
        match recovered {
            Some(recovered) => self.boolean("recovered", recovered),
            None => self,
        }
    }

    /// The field `unread`, left out without a user.
    fn unread(self, unread: Option<u64>) -> Self {
        match unread {
            Some(unread) => self.number("unread", unread),
            None => self,
        }
    }

    fn array<T>(
        mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Vec<u8>, T),
    ) -> Self {
        let out = self.field(name);
        out.push(b'[');
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write(out, item);
        }
        out.push(b']');
        self
    }

    fn end(self) {
        self.out.push(b'}');
    }

    /// Ends the reply to a command, with the command's `ref` if it had one.
    fn end_with(mut self, reference: Option<&RawValue>) {
        if let Some(reference) = reference {
            self.field("ref").extend_from_slice(reference.get().as_bytes());
        }
        self.end();
    }
}

/// The first frame of a connection.
///
/// `unread` is the number of messages that the user of the connection has not read; `None` without
/// a user.
pub fn welcome(out: &mut Vec<u8>, connection: &str, terms: &Terms, unread: Option<u64>) {
    Object::typed(out, "welcome")
        .string("connection", connection)
        .number("heartbeat", terms.heartbeat_s)
        .number("channels_max", terms.max_channels as u64)
        .number("max_message_bytes", terms.max_message_bytes as u64)
        .unread(unread)
        .end();
}

/// The server's settings that clients have to know.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The server is never silent for longer than this many seconds.
    pub heartbeat_s: u64,
    /// How many channels one connection may follow.
    pub max_channels: usize,
    /// How many bytes the body of a message may have.
    pub max_message_bytes: usize,
}

/// The welcome of the other transports, with the values of their response headers and what the user
/// has not read, as in [`welcome`].
pub fn greeting(
    out: &mut Vec<u8>,
    connection: Option<&str>,
    id: &str,
    recovered: Option<bool>,
    unread: Option<u64>,
) {
    let mut object = Object::typed(out, "welcome");
    if let Some(connection) = connection {
        object = object.string("connection", connection);
    }
    object.string("id", id).recovered(recovered).unread(unread).end();
}

/// Where a subscription starts.
#[derive(Debug, Clone, Copy)]
pub struct Begin<'a> {
    /// Messages after this id follow.
    pub id: &'a str,
    /// With a backlog, the id of its last message; later ones are live.
    pub head: Option<&'a str>,
    pub recovered: Option<bool>,
    /// The number of the channel on this node, on connections with compact envelopes.
    pub number: Option<u32>,
}

/// Confirms a subscription.
pub fn subscribed(
    out: &mut Vec<u8>,
    target: &Target,
    begin: Begin<'_>,
    reference: Option<&RawValue>,
) {
    let object = Object::typed(out, "subscribed").target(target);
    subscribed_fields(object, begin).end_with(reference);
}

fn subscribed_fields<'o>(object: Object<'o>, begin: Begin<'_>) -> Object<'o> {
    let Begin { id, head, recovered, number } = begin;
    let mut object = object.string("id", id);
    if let Some(number) = number {
        object = object.number("number", number.into());
    }
    if let Some(head) = head {
        object = object.string("head", head);
    }
    object.recovered(recovered)
}

/// A channel's number on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered<T> {
    pub target: Target,
    pub number: u32,
    /// The epoch of the channel's log, which begins the ids of its messages.
    pub epoch: T,
}

/// Tells the numbers of channels that no other frame tells.
pub fn numbers<T: Display>(out: &mut Vec<u8>, numbered: &[Numbered<T>]) {
    let mut object = Object::typed(out, "numbers");
    for (kind, field) in [(Kind::Channel, "channels"), (Kind::User, "users")] {
        let mut of_kind = numbered.iter().filter(|one| one.target.kind == kind).peekable();
        if of_kind.peek().is_none() {
            continue;
        }
        object = object.array(field, of_kind, |out, Numbered { target, number, epoch }| {
            out.push(b'[');
            write_json_string(out, &target.name);
            // Writing to a Vec cannot fail. An epoch has letters and digits only.
            let _ = write!(out, ",{number},\"{epoch}\"]");
        });
    }
    object.end();
}

/// Confirms the end of a subscription.
pub fn unsubscribed(out: &mut Vec<u8>, target: &Target, reference: Option<&RawValue>) {
    Object::typed(out, "unsubscribed").target(target).end_with(reference);
}

/// The reply to a command about many channels, made entry by entry in the order of its list.
#[derive(Debug)]
pub struct ListReply {
    out: Vec<u8>,
}

impl ListReply {
    /// The reply to a command, without any entry.
    pub fn new(verb: Verb) -> ListReply {
        let mut out = Vec::new();
        let kind = match verb {
            Verb::Subscribe => "subscribed",
            Verb::Unsubscribe => "unsubscribed",
        };
        Object::typed(&mut out, kind).field("channels").push(b'[');
        ListReply { out }
    }

    /// Begins an entry.
    fn entry(&mut self) -> &mut Vec<u8> {
        if self.out.last() != Some(&b'[') {
            self.out.push(b',');
        }
        &mut self.out
    }

    /// Adds a subscription, as [`subscribed`] confirms it.
    pub fn subscribed(&mut self, target: &Target, begin: Begin<'_>) {
        subscribed_fields(Object::new(self.entry()).target(target), begin).end();
    }

    /// Adds a subscription that has ended.
    pub fn unsubscribed(&mut self, target: &Target) {
        let out = self.entry();
        match target.kind {
            Kind::Channel => write_json_string(out, &target.name),
            _ => Object::new(out).target(target).end(),
        }
    }

    /// Adds an entry that is refused. `None` is one that names nothing.
    pub fn refused(&mut self, target: Option<&Target>, error: &ErrorResponse) {
        let mut object = Object::new(self.entry());
        if let Some(target) = target {
            object = object.target(target);
        }
        error_fields(Object::new(object.field("error")), error).end();
        object.end();
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.out.capacity()
    }

    /// Appends the whole reply.
    pub fn write(&self, out: &mut Vec<u8>, reference: Option<&RawValue>) {
        out.extend_from_slice(&self.out);
        out.push(b']');
        Object { out, is_empty: false }.end_with(reference);
    }
}

/// Reports a subscription that the server has ended: the client's newer token, or a newer
/// decision, does not allow it any more.
pub fn revoked(out: &mut Vec<u8>, target: &Target, error: &ErrorResponse) {
    let object = Object::typed(out, "unsubscribed").target(target);
    error_fields(object, error).end();
}

/// Confirms a newer token: of which user, if it names one, and for how long it holds.
pub fn authenticated(
    out: &mut Vec<u8>,
    user: Option<&str>,
    expires_in_s: u64,
    reference: Option<&RawValue>,
) {
    let mut object = Object::typed(out, "authenticated");
    if let Some(user) = user {
        object = object.string("user", user);
    }
    object.number("expires_in", expires_in_s).end_with(reference);
}

/// Reports that the connection will be closed, unless it shows a newer token by then.
pub fn expiring(out: &mut Vec<u8>, expires_in_s: u64) {
    Object::typed(out, "expiring").number("expires_in", expires_in_s).end();
}

/// Says whether messages come late: the server is cut off from where they come from.
pub fn late(out: &mut Vec<u8>, is_late: bool) {
    Object::typed(out, "late").boolean("late", is_late).end();
}

/// The last event of a stream that the server ends, with the contents of a WebSocket's close frame.
/// The code is an error's, or `disconnected` for the application's close codes.
pub fn closed(out: &mut Vec<u8>, code: &str, close_code: u16, message: &str) {
    Object::typed(out, "closed")
        .string("code", code)
        .number("close_code", u64::from(close_code))
        .string("message", message)
        .end();
}

/// Confirms a publication. A volatile one has no `id`.
pub fn published(
    out: &mut Vec<u8>,
    target: &Target,
    id: Option<&str>,
    subscribers: u64,
    is_duplicate: bool,
    reference: Option<&RawValue>,
) {
    let object = Object::typed(out, "published").target(target);
    published_fields(object, id, subscribers.into(), is_duplicate).end_with(reference);
}

/// [`published`] as the body of an HTTP response, or as the answer line of a batch.
pub fn published_body(
    out: &mut Vec<u8>,
    id: Option<&str>,
    subscribers: Counted,
    is_duplicate: bool,
) {
    published_fields(Object::new(out), id, subscribers, is_duplicate).end();
}

/// A number of subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// How many were counted.
    pub subscribers: u64,
    /// True if members on other nodes are missing.
    pub is_partial: bool,
    /// True if there are other nodes, and the channel is this one's alone.
    pub is_local: bool,
}

impl From<u64> for Counted {
    fn from(subscribers: u64) -> Counted {
        Counted { subscribers, is_partial: false, is_local: false }
    }
}

fn published_fields<'o>(
    object: Object<'o>,
    id: Option<&str>,
    Counted { subscribers, is_partial, is_local }: Counted,
    is_duplicate: bool,
) -> Object<'o> {
    let object = match id {
        Some(id) => object.string("id", id),
        None => object.boolean("volatile", true),
    }
    .number("subscribers", subscribers);
    object.flag("partial", is_partial).flag("local", is_local).flag("duplicate", is_duplicate)
}

/// Reports a gap: the connection lagged, `missed` messages are gone, and delivery goes on after
/// `id`. The member is left out if their number is not known.
pub fn gap(out: &mut Vec<u8>, target: &Target, missed: Option<u64>, id: &str) {
    let object = Object::typed(out, "gap").target(target);
    let object = match missed {
        Some(missed) => object.number("missed", missed),
        None => object,
    };
    object.string("id", id).end();
}

/// Reports that the connection has skipped `count` messages for a newer one, if that is known.
pub fn conflated(out: &mut Vec<u8>, target: &Target, count: Option<u64>) {
    let object = Object::typed(out, "conflated").target(target);
    match count {
        Some(count) => object.number("count", count).end(),
        None => object.end(),
    }
}

/// Reports that a channel has ended, after the message `id`, and with it the subscription.
pub fn ended(out: &mut Vec<u8>, target: &Target, id: &str) {
    Object::typed(out, "ended").target(target).string("id", id).end();
}

/// Refuses a command.
pub fn error(out: &mut Vec<u8>, error: &ErrorResponse, reference: Option<&RawValue>) {
    error_fields(Object::typed(out, "error"), error).end_with(reference);
}

fn error_fields<'o>(object: Object<'o>, error: &ErrorResponse) -> Object<'o> {
    object.string("code", error.code.name()).string("message", &error.message)
}

/// Replies to a ping.
pub fn pong(out: &mut Vec<u8>, reference: Option<&RawValue>) {
    Object::typed(out, "pong").end_with(reference);
}

/// How far a user has read: up to `read`, with `unread` messages after it.
pub fn read(
    out: &mut Vec<u8>,
    target: &Target,
    (read, unread): (Option<&str>, u64),
    reference: Option<&RawValue>,
) {
    read_fields(Object::typed(out, "read"), target, (read, unread)).end_with(reference);
}

/// [`read`] as the body of an HTTP response.
pub fn read_body(out: &mut Vec<u8>, target: &Target, (read, unread): (Option<&str>, u64)) {
    read_fields(Object::new(out), target, (read, unread)).end();
}

/// Says how far a user has read, on another device.
pub fn unread(out: &mut Vec<u8>, target: &Target, (read, unread): (Option<&str>, u64)) {
    read_fields(Object::typed(out, "unread"), target, (read, unread)).end();
}

fn read_fields<'o>(
    object: Object<'o>,
    target: &Target,
    (read, unread): (Option<&str>, u64),
) -> Object<'o> {
    let object = object.target(target);
    let object = match read {
        Some(read) => object.string("read", read),
        None => object,
    };
    object.number("unread", unread)
}

/// A page of messages, without the messages.
#[derive(Debug, Clone, Copy)]
pub struct HistoryPage<'a> {
    pub target: &'a Target,
    /// The id of the newest message of the log.
    pub id: &'a str,
    /// True if there are further messages in the requested direction.
    pub has_more: bool,
    /// Whether all messages after the requested id are present, if one was given.
    pub is_recovered: Option<bool>,
    /// True if the channel has ended.
    pub is_ended: bool,
    /// True if there are other nodes, and the channel is this one's alone.
    pub is_local: bool,
}

/// Lists messages, oldest first. Each item of `envelopes` appends one.
pub fn history(
    out: &mut Vec<u8>,
    page: HistoryPage<'_>,
    envelopes: impl IntoIterator<Item = impl FnOnce(&mut Vec<u8>)>,
    reference: Option<&RawValue>,
) {
    history_fields(Object::typed(out, "history"), page, envelopes).end_with(reference);
}

/// [`history`] as the body of an HTTP response.
pub fn history_body(
    out: &mut Vec<u8>,
    page: HistoryPage<'_>,
    envelopes: impl IntoIterator<Item = impl FnOnce(&mut Vec<u8>)>,
) {
    history_fields(Object::new(out), page, envelopes).end();
}

fn history_fields<'o>(
    object: Object<'o>,
    page: HistoryPage<'_>,
    envelopes: impl IntoIterator<Item = impl FnOnce(&mut Vec<u8>)>,
) -> Object<'o> {
    object
        .target(page.target)
        .string("id", page.id)
        .array("messages", envelopes, |out, write| write(out))
        .boolean("more", page.has_more)
        .recovered(page.is_recovered)
        .flag("ended", page.is_ended)
        .flag("local", page.is_local)
}

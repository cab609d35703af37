//! The sub-protocol `throng.v1`: the commands of clients and the frames of the server.
//!
//! A worker parses each text frame with [`parse`], and writes one reply with a function of this
//! module. The functions that end in `_body` write the same objects as HTTP bodies.

mod command;
mod fields;
mod list;
mod publication;
mod reply;

pub use command::{COMMANDS, Command, Received, parse};
pub use fields::LIMIT_MAX;
pub use list::{Entry, List, Verb, Wanted};
pub use publication::{
    CONTENT_TYPE_BYTES_MAX, EXPIRES_IN_S_MAX, KEY_BYTES_MAX, Publication, check_volatile,
    parse_content,
};
pub use reply::{
    Begin, Counted, HistoryPage, ListReply, MemberEvent, Numbered, PartialEvent, PresenceEvent,
    Present, ReceiptFields, ShownMember, Terms, authenticated, closed, conflated, ended,
    ended_body, erased_body, error, expiring, gap, greeting, history, history_body, is_connection,
    late, member, member_without_info, members, numbers, opened_body, partial, pong, presence,
    presence_body, presence_event, presence_state, published, published_body, read, read_body,
    receipt_body, replaced_body, revoked, state, state_body, subscribed, unread, unsubscribed,
    updated, welcome,
};
/// The type of a `ref`: a JSON text.
pub use serde_json::value::RawValue;

pub(crate) use fields::Fields;

#[cfg(test)]
mod tests;

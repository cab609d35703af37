//! Headers about a message or a condition, and which requests take them.
//!
//! A request that changes something is refused with such a header, or with an unknown one that
//! begins with `Throng-`, unless [`ROWS`] says that it takes the header: its client would believe
//! that the header holds. A new endpoint takes none. Requests that read ignore them, as HTTP says.

use http::request::Parts;
use http::{HeaderMap, HeaderName, Method};
use throng_wire::{prefer, unknown};

use super::answer::ApiError;
use super::names::{LogPart, Resource};

/// The headers that begin so are ours.
const OWN: &str = "throng-";

/// In place of advice: the request takes the header.
const TAKEN: &str = "";

const LEAVE_OUT: &str = "leave it out";

/// What a request with a header changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It publishes one message.
    Message,
    /// One that removes a key.
    Removal,
    Batch,
    Edit,
    End,
    /// It moves a read marker.
    Marker,
    Other,
}

/// A header, with what to do where a request does not take it.
struct Row {
    name: &'static str,
    message: &'static str,
    batch: &'static str,
    edit: &'static str,
    end: &'static str,
}

static ROWS: [Row; 10] = [
    Row {
        name: "Idempotency-Key",
        message: TAKEN,
        batch: "give each message its field `key`",
        edit: "leave it out; a repeated edit finds the message gone",
        end: "leave it out; a channel ends once",
    },
    Row {
        name: "If-Match",
        message: TAKEN,
        // With a parameter, which `api::batch` looks at.
        batch: TAKEN,
        edit: "leave it out; the path names the message to replace",
        end: LEAVE_OUT,
    },
    Row {
        name: "If-None-Match",
        message: TAKEN,
        batch: "`If-Match` with the parameter `atomic=true` is a condition for all of its messages",
        edit: "leave it out; the path names the message to replace",
        end: LEAVE_OUT,
    },
    Row {
        name: "Prefer",
        message: TAKEN,
        batch: "leave out `receipt`, or publish the message by itself",
        edit: "leave out `receipt`",
        end: "leave out `receipt`, or publish the last message before the end",
    },
    Row {
        name: "Throng-Event",
        message: TAKEN,
        batch: "give each message its field `event`",
        edit: TAKEN,
        end: TAKEN,
    },
    Row {
        name: "Throng-Exclude",
        message: TAKEN,
        batch: "give each message its field `exclude`",
        edit: TAKEN,
        end: TAKEN,
    },
    Row {
        name: "Throng-Expires-In",
        message: TAKEN,
        batch: "give each message its field `expires_in`",
        edit: TAKEN,
        end: TAKEN,
    },
    Row {
        name: "Throng-State-Key",
        message: TAKEN,
        batch: "give each message its field `state_key`",
        edit: "leave it out; the new message has the key of the one that it replaces",
        end: "set the key before the end",
    },
    Row {
        name: "Throng-Tags",
        message: TAKEN,
        batch: "give each message its field `tags`",
        edit: TAKEN,
        end: TAKEN,
    },
    Row {
        name: "Throng-Volatile",
        message: "use the parameter `volatile=true`",
        batch: "give each message its field `volatile`",
        edit: "the new message is kept, as the one that it replaces",
        end: "the last message of a channel is kept",
    },
];

impl Row {
    fn advice(&self, change: Change) -> &'static str {
        match change {
            Change::Removal if self.name == "Throng-Expires-In" => LEAVE_OUT,
            Change::Message | Change::Removal => self.message,
            Change::Batch => self.batch,
            Change::Edit => self.edit,
            Change::End => self.end,
            // All followers of the inbox are told but one.
            Change::Marker if self.name == "Throng-Exclude" => TAKEN,
            Change::Marker | Change::Other => LEAVE_OUT,
        }
    }
}

/// What a request changes; `None` if it only reads, or is of a page.
fn change_of(method: &Method, resource: Resource<'_>) -> Option<Change> {
    if ![Method::POST, Method::PUT, Method::DELETE].contains(method) {
        return None;
    }
    let is_delete = method == Method::DELETE;
    Some(match resource {
        Resource::Login | Resource::Logout => return None,
        Resource::Log(_, _, LogPart::Itself) if !is_delete => Change::Message,
        Resource::Log(_, _, LogPart::State) | Resource::Key(..) if is_delete => Change::Removal,
        Resource::Log(_, _, LogPart::State) | Resource::Key(..) => Change::Message,
        Resource::Publish => Change::Batch,
        Resource::Message(..) if !is_delete => Change::Edit,
        Resource::Log(_, _, LogPart::End) if !is_delete => Change::End,
        Resource::Log(_, _, LogPart::Read) => Change::Marker,
        _ => Change::Other,
    })
}

/// Refuses a request with a header that would be ignored.
pub(crate) fn check(head: &Parts, resource: Resource<'_>) -> Result<(), ApiError> {
    let Some(change) = change_of(&head.method, resource) else { return Ok(()) };
    // Where the path does not take the method, that is the error.
    let is_taken = || resource.methods().split(", ").any(|method| *method == head.method);
    check_for(change, head).or_else(|error| if is_taken() { Err(error) } else { Ok(()) })
}

fn check_for(change: Change, head: &Parts) -> Result<(), ApiError> {
    for name in head.headers.keys() {
        let row = ROWS.iter().find(|row| name.as_str().eq_ignore_ascii_case(row.name));
        match row.map(|row| (row, row.advice(change))) {
            None if name.as_str().starts_with(OWN) => return Err(is_unknown(name)),
            None | Some((_, TAKEN)) => {}
            Some((row, _)) if row.name == "Prefer" && !prefers_receipt(&head.headers) => {}
            Some((row, advice)) => return Err(not_taken(change, row.name, advice)),
        }
    }
    Ok(())
}

/// Other preferences are not ours, and nobody relies on them.
fn prefers_receipt(headers: &HeaderMap) -> bool {
    let values = headers.get_all("prefer").iter();
    prefer::has(values.flat_map(|value| value.as_bytes().split(|&byte| byte == b',')), "receipt")
}

fn not_taken(change: Change, name: &str, advice: &str) -> ApiError {
    let what = match change {
        Change::Message => "a message",
        Change::Removal => "the removal of a key",
        Change::Batch => "a batch",
        Change::Edit => "the edit of a message",
        Change::End => "the end of a channel",
        Change::Marker | Change::Other => "this request",
    };
    ApiError::parameter(format!("{what} does not take the header `{name}`: {advice}"))
}

fn is_unknown(name: &HeaderName) -> ApiError {
    let is_taken = |row: &&Row| row.message == TAKEN && row.name.starts_with("Throng-");
    let known: Vec<_> = ROWS.iter().filter(is_taken).map(|row| row.name).collect();
    ApiError::parameter(unknown::header(name.as_str(), &known))
}

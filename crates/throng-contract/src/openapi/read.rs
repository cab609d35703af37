//! History, presence, read markers, and lists of channels and users.

use throng_wire::ErrorCode;

use super::noun::NOUNS;
use crate::operation::{Access, Operation};
use crate::query;
use crate::schema::form::reference;

pub(super) fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    for noun in NOUNS {
        let history = Operation::new(
            "GET",
            format!("{}/history", noun.path),
            format!("get{}History", noun.id),
            ("Read", format!("The messages of {}", noun.words)),
        );
        let history = history
            .described("The newest messages, or a page of older or newer ones; oldest first.")
            .query(query::HISTORY)
            .answers_with(200, "A page.", &json(noun.id, "History"), &["Throng-Id"])
            .refuses(&[ErrorCode::BadName, ErrorCode::BadId, ErrorCode::Unavailable]);
        let presence = Operation::new(
            "GET",
            format!("{}/presence", noun.path),
            format!("get{}Presence", noun.id),
            ("Read", format!("Who follows {}", noun.words)),
        );
        let presence = presence
            .query(query::PRESENCE)
            .answers(200, "The number of connections, and their users.", &json(noun.id, "Presence"))
            .refuses(&[ErrorCode::BadName]);
        let (path, plural) =
            if noun.is_user { ("/users", "users") } else { ("/channels", "channels") };
        let list = Operation::new(
            "GET",
            path,
            format!("list{}s", noun.id),
            ("Lists", format!("The {plural} that have messages or subscribers")),
        );
        let list = list
            .described("A page may have fewer entries than `limit` although `more` is true.")
            .access(Access::Key("listing"))
            .query(query::LISTS)
            .answers(200, "A page.", &json(noun.id, "List"));
        all.extend([history, presence, list]);
    }
    all.extend(markers());
    all
}

fn markers() -> [Operation; 2] {
    let marker = |method, id, summary| {
        Operation::new(method, "/users/{user}/read", id, ("Read", summary))
            .answers(200, "The marker.", &json("Read", "Marker"))
            .refuses(&[ErrorCode::BadName, ErrorCode::BadId, ErrorCode::Unavailable])
    };
    let get = marker("GET", "getReadMarker", "How far a user has read");
    let put = marker("PUT", "moveReadMarker", "Move the marker of a user");
    [get, put.query(query::READ).refuses(&[ErrorCode::NotStored, ErrorCode::OutcomeUnknown])]
}

/// An answer in JSON, by the schema of a noun.
fn json(noun: &str, schema: &str) -> [(&'static str, serde_json::Value); 1] {
    [("application/json", reference(&format!("{noun}{schema}")))]
}

//! What operators do: connections, revocations.

use serde_json::{Value, json};
use throng_wire::ErrorCode;

use super::noun::NOUNS;
use crate::operation::{Access, Operation};
use crate::query;
use crate::schema::form::reference;

const KEY: Access = Access::Key("administration");

pub(super) fn operations() -> Vec<Operation> {
    let mut all = connections();
    all.extend(revocations());
    all
}

fn connections() -> Vec<Operation> {
    let new = |method, path: String, id: String, summary: String| {
        Operation::new(method, path, id, ("Connections", summary)).access(KEY)
    };
    let closes = |operation: Operation| {
        operation
            .query(query::DISCONNECT)
            .answers(200, "How many were closed.", &body("Disconnected"))
            .refuses(&[ErrorCode::BadName, ErrorCode::Busy])
    };
    let mut all = Vec::new();
    for noun in NOUNS {
        let path = format!("{}/connections", noun.path);
        let of = if noun.is_user { "a user" } else { "a channel" };
        let id = format!("get{}Connections", noun.id);
        let schema = format!("{}Connections", noun.id);
        let list = new("GET", path.clone(), id, format!("The connections of {of}"))
            .query(query::CONNECTIONS)
            .answers(200, "The newest connections.", &body(&schema))
            .refuses(&[ErrorCode::BadName]);
        let id = format!("close{}Connections", noun.id);
        all.extend([
            list,
            closes(new("DELETE", path, id, format!("Close the connections of {of}"))),
        ]);
    }
    let behind = new(
        "GET",
        "/connections".into(),
        "getConnectionsBehind".into(),
        "The connections that are behind".into(),
    );
    let of_name = ["ConnectionsBehind", "ChannelConnections", "UserConnections"];
    let listed = json!({ "anyOf": of_name.map(reference) });
    let behind = behind
        .described("With a name in the query, its connections.")
        .query(&[&[query::CHANNEL, query::USER], query::BEHIND].concat())
        .answers(200, "Those that hold most come first.", &[("application/json", listed)])
        .refuses(&[ErrorCode::BadName]);
    all.push(behind);
    let one = new(
        "DELETE",
        "/connections/{connection}".into(),
        "closeConnection".into(),
        "Close a connection".into(),
    );
    all.push(closes(one).refuses(&[ErrorCode::NotFound]));
    all
}

fn revocations() -> Vec<Operation> {
    let mut all = Vec::new();
    let list = Operation::new(
        "GET",
        "/revocations",
        "listRevocations",
        ("Revocations", "The revocations that hold"),
    );
    let list = list.access(KEY).query(query::REVOCATIONS);
    let list = list.answers(200, "A page.", &body("Revocations"));
    all.push(list.refuses(&[ErrorCode::Unavailable]));
    for (path, noun, of) in [
        ("/revocations/tokens/{id}", "Token", "the tokens with this id"),
        ("/revocations/users/{user}", "User", "all that a user was issued"),
    ] {
        let new = |method, verb: &str, summary: String| {
            let id = format!("{verb}{noun}Revocation");
            Operation::new(method, path, id, ("Revocations", summary))
                .access(KEY)
                .refuses(&[ErrorCode::BadName])
        };
        let revocation = body(&format!("{noun}Revocation"));
        let get = new("GET", "get", format!("The revocation of {of}"))
            .answers(200, "It holds.", &revocation)
            .refuses(&[ErrorCode::NotFound, ErrorCode::Unavailable]);
        let post = new("POST", "add", format!("Revoke {of}"))
            .query(if noun == "User" { query::REVOKE_USER } else { query::NONE })
            .answers(201, "It holds and is stored.", &revocation)
            .refuses(&[ErrorCode::NotStored, ErrorCode::Unavailable, ErrorCode::OutcomeUnknown]);
        let delete = new("DELETE", "remove", format!("Take back the revocation of {of}"))
            .answers(204, "It is taken back.", &[])
            .refuses(&[
                ErrorCode::NotFound,
                ErrorCode::NotStored,
                ErrorCode::Unavailable,
                ErrorCode::OutcomeUnknown,
            ]);
        all.extend([get, post, delete]);
    }
    all
}

fn body(schema: &str) -> [(&'static str, Value); 1] {
    [("application/json", reference(schema))]
}

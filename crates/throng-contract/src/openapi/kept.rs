//! Subscriptions that the server keeps.

use serde_json::{Value, json};
use throng_wire::ErrorCode;

use crate::operation::{Access, Operation};
use crate::query;
use crate::schema::form::reference;

const USER: &str = "/users/{user}/subscriptions";
const BULK: &str = "One JSON object per line: `user`, and `channels` or `add` and `remove`. With a \
    `user` in the query, the body is one change of what that user follows.";
const TAG: &str = "Kept subscriptions";

pub(super) fn operations() -> Vec<Operation> {
    let new = |method, path, id, summary: &str| {
        Operation::new(method, path, id, (TAG, summary))
            .access(Access::Key("subscriptions"))
            .refuses(&[ErrorCode::BadName])
    };
    let changes = |operation: Operation| {
        operation.answers(200, "What has changed.", &body("KeptChanged")).refuses(&[
            ErrorCode::BadJson,
            ErrorCode::TooManyChannels,
            ErrorCode::Unavailable,
            ErrorCode::OutcomeUnknown,
            ErrorCode::NotStored,
        ])
    };
    let get = new("GET", USER, "getKeptChannels", "The channels that a user follows")
        .query(query::KEPT)
        .answers(200, "A page.", &body("KeptChannels"))
        .refuses(&[ErrorCode::Unavailable]);
    let put = new("PUT", USER, "replaceKeptChannels", "Replace the channels that a user follows")
        .body(&body("KeptReplacement"));
    let post = new("POST", USER, "changeKeptChannels", "Change the channels that a user follows")
        .described("`channels` may stand in place of `add` and `remove`, as for `PUT`.")
        .body(&[(
            "application/json",
            json!({
                "oneOf": [reference("KeptReplacement"), reference("KeptUpdate")],
            }),
        )]);
    let delete =
        new("DELETE", USER, "dropKeptChannels", "End what a user follows").query(query::UNFOLLOW);
    let followers = new(
        "GET",
        "/channels/{channel}/followers",
        "getFollowers",
        "The users that follow a channel",
    )
    .query(query::KEPT)
    .answers(200, "A page.", &body("Followers"))
    .refuses(&[ErrorCode::Unavailable]);
    let bulk =
        new("POST", "/subscriptions", "changeManyKeptChannels", "Change what many users follow")
            .described(BULK)
            .query(&[&[query::USER], query::BULK].concat())
            .body(&[("application/x-ndjson", json!({ "type": "string" }))]);
    let changed = json!({ "anyOf": [reference("BulkChanged"), reference("KeptChanged")] });
    let bulk = changes(bulk).answers(
        200,
        "What the lines have changed.",
        &[("application/json", changed)],
    );
    vec![get, changes(put), changes(post), changes(delete), followers, bulk]
}

fn body(schema: &str) -> [(&'static str, Value); 1] {
    [("application/json", reference(schema))]
}

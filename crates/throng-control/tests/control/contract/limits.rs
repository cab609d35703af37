//! The limits in the documents are those in the code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use throng_access::token::TOKEN_BYTES_MAX;
use throng_wire::labels::{
    EVENT_BYTES_MAX, STATE_KEY_BYTES_MAX, TAG_NAME_BYTES_MAX, TAG_TEXT_BYTES_MAX, TAGS_MAX,
};
use throng_wire::subscribe::{HISTORY_MAX, PACE_MS_MAX, PACE_MS_MIN, TIME_MS_MAX, WAIT_S_MAX};
use throng_wire::v1::{CONTENT_TYPE_BYTES_MAX, EXPIRES_IN_S_MAX, KEY_BYTES_MAX, LIMIT_MAX};

use super::{asyncapi, object, openapi, operations};
use crate::client::{get, post};
use crate::server::Server;

/// The words of JSON Schema that limit a value.
const WORDS: [&str; 6] =
    ["minimum", "maximum", "minLength", "maxLength", "minProperties", "maxProperties"];

/// The limits of everything in a document that has some, by its name.
fn collect<'a>(name: &'a str, value: &'a Value, found: &mut BTreeMap<&'a str, BTreeSet<String>>) {
    if let Value::Object(fields) = value {
        let limits = fields.iter().filter(|(word, limit)| {
            // Counts begin at zero, and are not limited.
            WORDS.contains(&&***word) && limit.is_number() && **limit != json!(0)
        });
        let limits: Map<_, _> = limits.map(|(word, limit)| (word.clone(), limit.clone())).collect();
        if !limits.is_empty() {
            found.entry(name).or_default().insert(Value::Object(limits).to_string());
        }
        for (key, value) in fields {
            let is_part = ["schema", "items", "payload"].contains(&&**key);
            collect(if is_part { name } else { key }, value, found);
        }
    }
}

#[test]
fn bodies_headers_and_frames_have_the_limits_of_the_code() {
    let server = Server::new();
    let documents = [openapi(&server), asyncapi(&server)];
    let mut found = BTreeMap::new();
    for document in &documents {
        collect("", &document["components"], &mut found);
    }
    let text = |most: usize| json!({ "minLength": 1, "maxLength": most });
    let longest = |path: &str| {
        let status = |bytes| server.ask(get(&path.replace("{}", &"a".repeat(bytes)))).status;
        (1..1000).find(|bytes| status(bytes + 1) == 400).unwrap()
    };
    let seconds = json!({ "minimum": 1, "maximum": EXPIRES_IN_S_MAX });
    let limits = [
        ("Idempotency-Key", text(KEY_BYTES_MAX)),
        ("Name", text(longest("/channels/{}/history"))),
        ("StateKey", text(STATE_KEY_BYTES_MAX)),
        ("Tags", json!({ "maxProperties": TAGS_MAX })),
        ("Throng-Event", text(EVENT_BYTES_MAX)),
        ("Throng-Expires-In", seconds.clone()),
        ("Throng-State-Key", text(STATE_KEY_BYTES_MAX)),
        ("additionalProperties", json!({ "maxLength": TAG_TEXT_BYTES_MAX })),
        ("connection", json!({ "minLength": 1 })),
        ("content_type", text(CONTENT_TYPE_BYTES_MAX)),
        ("count", json!({ "minimum": 1 })),
        ("event", text(EVENT_BYTES_MAX)),
        ("expires_in", seconds.clone()),
        ("ttl", seconds),
        ("frames", json!({ "minimum": 1 })),
        ("history", json!({ "maximum": HISTORY_MAX })),
        ("id", text(longest("/revocations/tokens/{}"))),
        ("key", text(KEY_BYTES_MAX)),
        ("limit", json!({ "minimum": 1, "maximum": LIMIT_MAX })),
        ("TimeMs", json!({ "maximum": TIME_MS_MAX })),
        ("since_time", json!({ "maximum": TIME_MS_MAX })),
        ("pace", json!({ "minimum": PACE_MS_MIN, "maximum": PACE_MS_MAX })),
        ("propertyNames", text(TAG_NAME_BYTES_MAX)),
        ("KeptUpdate", json!({ "minProperties": 1 })),
    ];
    let limits = limits.map(|(name, limits)| (name, [limits.to_string()].into()));
    let mut limits = BTreeMap::from(limits);
    // A page of history may be empty.
    let of_pages = json!({ "maximum": LIMIT_MAX }).to_string();
    limits.entry("limit").or_insert_with(BTreeSet::new).insert(of_pages);
    assert_eq!(found, limits);
}

/// The limits of other queries are tried: `routes` sends values of each parameter.
#[test]
fn subscriptions_have_the_limits_of_the_code() {
    let server = Server::new();
    let document = openapi(&server);
    let all = operations(&document);
    let limits =
        [("history", HISTORY_MAX), ("wait", WAIT_S_MAX), ("token", TOKEN_BYTES_MAX as u32)];
    for operation in all.iter().filter(|it| it.subscribes() && it.path != "/status/stream") {
        for (name, most) in limits {
            let query = operation.query();
            let schema = query.iter().find(|parameter| parameter.name == name).unwrap().schema;
            let documented = schema.get("maximum").or(schema.get("maxLength"));
            assert_eq!(documented, Some(&json!(most)), "{} {name}", operation.path);
        }
    }
}

#[test]
fn pages_have_the_documented_number_of_entries() {
    let server = Server::new();
    let document = openapi(&server);
    let lines = (0..=LIMIT_MAX).map(|n| format!("{{\"channel\":\"c{n}\",\"data\":1}}\n"));
    server.ask(post("/publish", &[], lines.collect::<String>()));
    let entries = server.ask(get("/channels")).json()["channels"].as_array().unwrap().len();
    for operation in operations(&document) {
        for parameter in operation.query().iter().filter(|it| it.name == "limit") {
            assert_eq!(object(parameter.schema)["default"], json!(entries), "{}", operation.path);
        }
    }
}

//! Components: references lead to them, and error codes are the server's.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Value, json};
use throng_wire::ErrorCode;

use super::{asyncapi, object, openapi, operations, texts};
use crate::server::Server;

/// Codes with which every request may be refused.
const ALWAYS: [ErrorCode; 15] = [
    ErrorCode::BadRequest,
    ErrorCode::BadLength,
    ErrorCode::BadParameter,
    ErrorCode::OriginRefused,
    ErrorCode::HostRefused,
    ErrorCode::ForwardedRefused,
    ErrorCode::TooSlow,
    ErrorCode::TooLarge,
    ErrorCode::UriTooLong,
    ErrorCode::HeadTooLarge,
    ErrorCode::NotImplemented,
    ErrorCode::Full,
    ErrorCode::Busy,
    ErrorCode::Draining,
    ErrorCode::BadVersion,
];

/// Codes with which a request may be refused, too, that needs a token or key.
const CREDENTIALS: [ErrorCode; 6] = [
    ErrorCode::Unauthorized,
    ErrorCode::InvalidToken,
    ErrorCode::TokenExpired,
    ErrorCode::TokenRevoked,
    ErrorCode::Forbidden,
    ErrorCode::TooManyRequests,
];

/// Codes that no response lists: WebSockets have three of them, and the description of the document
/// gives the other for all paths.
const UNLISTED: [ErrorCode; 4] = [
    ErrorCode::AlreadySubscribed,
    ErrorCode::NotSubscribed,
    ErrorCode::BadCompression,
    ErrorCode::MethodNotAllowed,
];

/// All values of `$ref` in a document.
fn references(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str);
            own.into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn each_component_is_there_and_used() {
    let server = Server::new();
    for (document, kinds) in [
        (openapi(&server), ["responses", "parameters", "headers", "schemas"].as_slice()),
        (asyncapi(&server), &["messages", "schemas"]),
    ] {
        let used: HashSet<_> = references(&document).into_iter().collect();
        for reference in &used {
            let pointer = reference.strip_prefix('#').unwrap().replace("%7B", "{");
            assert!(document.pointer(&pointer).is_some(), "{reference}");
        }
        for kind in kinds {
            for name in object(&document["components"][kind]).keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(used.contains(&*reference), "{reference} is not used");
            }
        }
    }
}

#[test]
fn both_documents_have_the_same_schemas() {
    let server = Server::new();
    let (openapi, asyncapi) = (openapi(&server), asyncapi(&server));
    for (name, schema) in object(&asyncapi["components"]["schemas"]) {
        assert_eq!(schema, &openapi["components"]["schemas"][name], "{name}");
    }
}

#[test]
fn each_operation_has_its_own_name_and_a_known_tag() {
    let server = Server::new();
    let document = openapi(&server);
    let all = operations(&document);
    let ids: HashSet<_> = all.iter().map(|it| it.value["operationId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), all.len());
    let tags = document["tags"].as_array().unwrap().iter();
    let tags: BTreeSet<_> = tags.map(|tag| tag["name"].as_str().unwrap()).collect();
    let used: BTreeSet<_> = all.iter().flat_map(|it| texts(&it.value["tags"])).collect();
    assert_eq!(used, tags);
}

#[test]
fn both_documents_have_all_error_codes() {
    let server = Server::new();
    let all: Vec<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
    for document in [openapi(&server), asyncapi(&server)] {
        assert_eq!(document["components"]["schemas"]["ErrorCode"]["enum"], json!(all));
    }
}

/// The codes of a response that is one of the components, whose name has them.
fn codes(reference: &str) -> Vec<ErrorCode> {
    let of = |name: &str| ErrorCode::ALL.iter().find(|code| code.name() == name).copied();
    let name = reference.strip_prefix("#/components/responses/").unwrap_or(reference);
    name.split('.').map(|name| of(name).unwrap_or_else(|| panic!("the code {name}"))).collect()
}

/// A response that refuses, as the codes in its name make it.
fn refusal(codes: &[ErrorCode]) -> Value {
    let sentence = |code: &ErrorCode| format!("`{}`: {}.", code.name(), code.message());
    let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
    let header = |name: &str| json!({ "$ref": format!("#/components/headers/{name}") });
    let mut headers = json!({ "X-Request-Id": header("X-Request-Id") });
    if codes.iter().any(|code| code.retry().is_some()) {
        headers["Retry-After"] = header("Retry-After");
    }
    if codes.iter().any(|code| code.challenge().is_some()) {
        headers["WWW-Authenticate"] = header("WWW-Authenticate");
    }
    json!({
        "description": codes.iter().map(sentence).collect::<Vec<_>>().join(" "),
        "headers": headers,
        "content": { "application/json": { "schema": {
            "type": "object",
            "required": ["error", "message"],
            "properties": {
                "error": { "type": "string", "enum": names },
                "message": { "type": "string", "description": "One sentence, for people." },
            },
        } } },
    })
}

#[test]
fn each_refusal_has_its_codes_with_their_sentences() {
    let server = Server::new();
    let document = openapi(&server);
    for (name, response) in object(&document["components"]["responses"]) {
        let codes = codes(name);
        assert!(codes.windows(2).all(|pair| (pair[0] as u8) < pair[1] as u8), "order of {name}");
        assert_eq!(response, &refusal(&codes), "{name}");
    }
}

#[test]
fn each_operation_has_the_refusals_of_all_requests() {
    let server = Server::new();
    let document = openapi(&server);
    let mut listed = BTreeSet::new();
    for operation in operations(&document) {
        let route = format!("{} {}", operation.method, operation.path);
        let mut by_status = BTreeMap::new();
        for (status, response) in object(&operation.value["responses"]) {
            let status: u16 = status.parse().unwrap();
            let codes = response["$ref"].as_str().map(codes);
            for code in codes.iter().flatten() {
                assert_eq!(code.status(), status, "{route}: {code}");
                listed.insert(code.name());
            }
            by_status.insert(status, codes);
        }
        let is_open = operation.value["security"] == json!([]);
        let credentials = CREDENTIALS.iter().filter(|_| !is_open);
        for code in ALWAYS.iter().chain(credentials) {
            match by_status.get(&code.status()) {
                // A page, or a probe.
                Some(None) => {}
                Some(Some(codes)) => assert!(codes.contains(code), "{route} lacks {code}"),
                None => panic!("{route} lacks {code}"),
            }
        }
    }
    let unlisted = ErrorCode::ALL.iter().filter(|code| !listed.contains(code.name()));
    let unlisted: BTreeSet<_> = unlisted.map(|code| code.name()).collect();
    assert_eq!(unlisted, UNLISTED.map(ErrorCode::name).into());
}

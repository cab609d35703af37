//! Paths, methods and query parameters.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use throng_wire::subscribe::PARAMETERS;

use super::{Operation, Parameter, object, openapi, operations, texts};
use crate::client::request;
use crate::server::Server;

/// Where routes of pages are written; `http::names` has the others, and a test of its own.
const PAGES: [&str; 4] = [
    include_str!("../../../src/pages.rs"),
    include_str!("../../../src/pages/files.rs"),
    include_str!("../../../src/pages/health.rs"),
    include_str!("../../../src/status/json.rs"),
];

#[test]
fn each_path_takes_the_documented_methods() {
    let server = Server::new();
    let document = openapi(&server);
    let mut documented = BTreeMap::<_, BTreeSet<_>>::new();
    for operation in operations(&document) {
        let methods = documented.entry(operation.example()).or_default();
        if operation.method == "GET" {
            methods.insert("HEAD".to_owned());
        }
        methods.extend(["OPTIONS".to_owned(), operation.method]);
    }
    for (path, methods) in documented {
        let answer = server.ask(request("OPTIONS", &path, &[]));
        let allowed = answer.field("allow").unwrap_or_default();
        let allowed = allowed.split(", ").map(str::to_owned).collect();
        assert_eq!((answer.status, methods), (204, allowed), "{path}");
    }
}

/// A refusal of an unknown parameter names the known ones.
#[test]
fn each_query_takes_the_documented_parameters() {
    let server = Server::new();
    let document = openapi(&server);
    for operation in operations(&document) {
        let (path, mut documented) = (operation.example(), operation.query_names());
        if operation.is_page() {
            assert_eq!(documented, [""; 0], "{path}");
            continue;
        }
        let names = named(&operation);
        // It is in the path of the equivalent request.
        let id = if path == "/messages" { "id=z-1&" } else { "" };
        let target = format!("{path}?{names}{id}zzzzzzzzzz=1");
        let answer = server.ask(request(&operation.method, &target, &["Content-Length: 0"]));
        answer.expect_refusal(400, "bad_parameter");
        let body = answer.json();
        let message = body["message"].as_str().unwrap();
        let mut known: BTreeSet<_> = message.split('`').skip(3).step_by(2).collect();
        if operation.subscribes() && path != "/status/stream" {
            assert_eq!(known, PARAMETERS.into(), "{path}");
            // The message has the parameters of all paths that subscribe.
            if operation.path.contains('{') {
                known.remove("channel");
            }
            if operation.path == "/users/{user}" {
                known.remove("user");
            }
        }
        let is_own = !operation.is_by_name() && !operation.subscribes();
        if operation.is_by_name() || is_own && !operation.path.contains('{') {
            // The message is the one of the path that has the name in it. Of kept subscriptions,
            // the channel is one of several.
            let is_name =
                |name: &str| name == "user" || name == "channel" && path != "/subscriptions";
            let is_id = |name: &str| name == "id" && path == "/messages";
            documented.retain(|name| !is_name(name) && !is_id(name));
        }
        assert_eq!(known, documented.into_iter().collect(), "{} {path}", operation.method);
    }
}

/// The name that a query needs before its other parameters count.
fn named(operation: &Operation<'_>) -> String {
    let names = operation.query_names();
    // A reader is of a channel.
    let order = if names.contains(&"reader") { ["channel", "user"] } else { ["user", "channel"] };
    let name = order.into_iter().find(|name| names.contains(name));
    let name = name.filter(|_| operation.is_by_name());
    name.map(|name| format!("{name}=a&")).unwrap_or_default()
}

/// Other parameters without which one does not count.
fn needed(operation: &Operation<'_>, parameter: &str) -> String {
    let is_name = |name: &str| ["channel", "user"].contains(&name);
    let query = operation.query();
    let required = query.iter().filter(|other| other.is_required && other.name != parameter);
    let mut needed: String = required
        .map(|other| format!("{}={}&", other.name, if is_name(other.name) { "a" } else { "z-1" }))
        .collect();
    match operation.path {
        "/subscribe" if parameter != "channel" => needed += "channel=a&",
        "/connections" if parameter == "limit" && operation.method == "GET" => {
            needed += "sort=behind&";
        }
        _ if !is_name(parameter) && !query.iter().any(|it| it.is_required && is_name(it.name)) => {
            needed += &named(operation);
        }
        _ => {}
    }
    needed
}

/// Values of a parameter that the server takes, and values that it refuses.
#[derive(Default)]
struct Values {
    taken: Vec<String>,
    refused: Vec<String>,
}

impl Values {
    fn of(parameter: &Parameter<'_>) -> Values {
        let mut values = Values::default();
        let schema = object(parameter.schema);
        let number = |name| schema.get(name).and_then(Value::as_i64);
        if let Some(least) = number("minimum") {
            values.add(&[&least.to_string()], &[&(least - 1).to_string(), "other"]);
        }
        if let Some(most) = number("maximum") {
            values.add(&[&most.to_string()], &[&(most + 1).to_string()]);
        }
        if let Some(most) = number("maxLength") {
            let text = |length: i64| "a".repeat(length as usize);
            values.add(&[&text(most)], &[&text(most + 1)]);
        }
        if let Some(names) = schema.get("enum") {
            values.add(&texts(names), &["other"]);
        }
        if schema.get("type").is_some_and(|name| name == "boolean") {
            values.add(&["true", "false"], &["other"]);
        }
        match schema.get("$ref").and_then(Value::as_str) {
            Some("#/components/schemas/MessageId") => values.add(&["z-1"], &["other"]),
            Some("#/components/schemas/Position") => values.add(&["z-1"], &[]),
            Some("#/components/schemas/Name") => values.add(&["a"], &["", ".."]),
            _ => {}
        }
        values
    }

    fn add(&mut self, taken: &[&str], refused: &[&str]) {
        self.taken.extend(taken.iter().map(|value| (*value).to_owned()));
        self.refused.extend(refused.iter().map(|value| (*value).to_owned()));
    }
}

#[test]
fn each_parameter_takes_the_documented_values() {
    let server = Server::new();
    let document = openapi(&server);
    let mut asked = Vec::new();
    for operation in operations(&document) {
        let method = if operation.subscribes() { "HEAD" } else { &operation.method };
        let parameters = operation.query();
        for parameter in &parameters {
            // A token is as wrong as a text that is too long; its limit is compared elsewhere.
            if parameter.name == "token" {
                continue;
            }
            let Values { taken, refused } = Values::of(parameter);
            let taken = taken.into_iter().map(|value| (value, true));
            let refused = refused.into_iter().map(|value| (value, false));
            for (value, is_taken) in taken.chain(refused) {
                let needed = needed(&operation, parameter.name);
                let query = format!("{needed}{}={value}", parameter.name);
                let target = format!("{}?{query}", operation.example());
                let client = server.connect(request(method, &target, &["Content-Length: 0"]));
                asked.push((format!("{method} {target}"), is_taken, client));
            }
        }
    }
    assert!(asked.len() > 200, "{}", asked.len());
    // All ask before any is read: some wait until the workers do not answer.
    for (target, is_taken, mut client) in asked {
        let answer =
            if target.starts_with("HEAD") { client.answer_to_head() } else { client.answer() };
        // The query is checked first: `bad_json`, for the empty body, and that the channel has no
        // read markers or the marker no user mean that it passed.
        let passed = ["bad_json", "no read markers", "set `reader`"];
        let is_refused =
            answer.status == 400 && !passed.iter().any(|text| answer.text().contains(text));
        assert_eq!(is_refused, !is_taken, "{target}: {} {}", answer.status, answer.text());
    }
}

/// A request with the name in its query is the one with the name in its path.
#[test]
fn a_name_in_the_query_is_documented_as_in_the_path() {
    let server = Server::new();
    let document = openapi(&server);
    let all = operations(&document);
    let by_name: Vec<_> = all.iter().filter(|operation| operation.is_by_name()).collect();
    assert_eq!(by_name.len(), 23);
    for operation in &by_name {
        let rest = match operation.path {
            "/publish" => "",
            "/messages" => "/messages/{id}",
            path => path,
        };
        let targets = [("channel", "/channels/{channel}"), ("user", "/users/{user}")];
        let same = targets.iter().filter_map(|(name, path)| {
            let path = format!("{path}{rest}");
            let mut found =
                all.iter().filter(|it| it.path == path && it.method == operation.method);
            Some((*name, found.next()?))
        });
        let same: Vec<_> = same.collect();
        let mut taken = operation.query();
        for (name, _) in &same {
            let at = taken.iter().position(|it| it.name == *name).expect("its name");
            assert_eq!(taken.remove(at).is_required, same.len() == 1, "{}", operation.path);
        }
        taken.retain(|it| it.name != "id" || operation.path != "/messages");
        for (_, by_path) in same {
            let route = format!("{} {}", operation.method, operation.path);
            let mut by_path_taken = by_path.query();
            if operation.path == "/read" && by_path.path.starts_with("/users/") {
                // It is the user of the inbox.
                by_path_taken.extend(taken.iter().find(|it| it.name == "reader").cloned());
                by_path_taken.rotate_right(1);
            }
            assert_eq!(taken, by_path_taken, "{route}");
            for part in ["requestBody", "security"] {
                assert_eq!(operation.value[part], by_path.value[part], "{route}: {part}");
            }
            compare_responses(operation, by_path);
        }
    }
}

fn compare_responses(operation: &Operation<'_>, by_path: &Operation<'_>) {
    let responses = object(&by_path.value["responses"]);
    let own = object(&operation.value["responses"]);
    assert!(own.keys().eq(responses.keys()), "{}", operation.path);
    for (status, response) in responses {
        for part in ["$ref", "description", "headers"] {
            let place = format!("{} {status} {part}", operation.path);
            assert_eq!(own[status].get(part), response.get(part), "{place}");
        }
        for (kind, media) in response.get("content").into_iter().flat_map(object) {
            let (schema, own) = (&media["schema"], &own[status]["content"][kind]["schema"]);
            let any = own["anyOf"].as_array().is_some_and(|all| all.contains(schema));
            assert!(any || own == schema, "{} {status}: {own}", operation.path);
        }
    }
}

#[test]
fn the_document_has_every_page() {
    let server = Server::new();
    let document = openapi(&server);
    let documented: Vec<_> = operations(&document).iter().map(Operation::example).collect();
    let literals = PAGES.iter().flat_map(|source| source.split('"').skip(1).step_by(2));
    let is_path = |text: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || b"/.-".contains(&byte);
        text.starts_with('/') && text.bytes().all(is_plain)
    };
    let mut pages = 0;
    for path in literals.filter(is_path) {
        let is_served = server.ask(request("OPTIONS", path, &[])).status == 204;
        if is_served && !path.contains('.') {
            assert!(documented.iter().any(|known| known == path), "{path} is not documented");
            pages += 1;
        }
    }
    assert!(pages >= 7, "{pages}");
}

/// Pages of other origins may set the headers of requests, and read the headers of answers.
#[test]
fn pages_may_use_the_documented_headers() {
    let server = Server::new();
    let document = openapi(&server);
    let fields = ["Origin: http://127.0.0.1", "Access-Control-Request-Method: POST"];
    let answer = server.ask(request("OPTIONS", "/channels/a", &fields));
    let listed = |field| -> BTreeSet<_> {
        answer.field(field).unwrap_or_default().split(", ").map(str::to_owned).collect()
    };
    let parameters = object(&document["components"]["parameters"]).values();
    let headers = parameters.filter(|parameter| parameter["in"] == "header");
    let headers = headers.map(|header| header["name"].as_str().unwrap());
    // `Authorization` is a security scheme, and bodies say which content types they may have.
    let headers = headers.chain(["Authorization", "Content-Type"]).map(str::to_owned);
    assert_eq!(listed("access-control-allow-headers"), headers.collect());
    let of_answers = object(&document["components"]["headers"]);
    for exposed in listed("access-control-expose-headers") {
        assert!(of_answers.contains_key(&exposed), "{exposed} is not documented");
    }
    assert_eq!(document["components"]["securitySchemes"]["token"]["name"], json!("token"));
}

//! The OpenAPI document has what the server serves, and nothing else. Besides, in debug builds each
//! answer of every test is looked up in it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::client::{get, request};
use crate::server::Server;

/// Where routes of pages are written; `http::names` has the others, and a test of its own.
const PAGES: [&str; 4] = [
    include_str!("../../src/pages.rs"),
    include_str!("../../src/pages/files.rs"),
    include_str!("../../src/pages/health.rs"),
    include_str!("../../src/status/json.rs"),
];

/// A path with names in place of `{…}`.
fn example(template: &str) -> String {
    let path = template.replace("{connection}", "2d5e1b30000001");
    let path = path.replace("{version}", env!("CARGO_PKG_VERSION"));
    ["{channel}", "{user}", "{id}"].iter().fold(path, |path, name| path.replace(name, "a"))
}

#[test]
fn each_path_takes_the_methods_that_the_document_has() {
    let server = Server::new();
    let mut documented = BTreeMap::<_, BTreeSet<_>>::new();
    for route in throng_contract::routes() {
        let methods = documented.entry(route.path).or_default();
        methods.extend(["OPTIONS", route.method]);
        if route.method == "GET" {
            methods.insert("HEAD");
        }
    }
    for (path, methods) in documented {
        let answer = server.ask(request("OPTIONS", &example(path), &[]));
        let allowed = answer.field("allow").unwrap_or_default().to_owned();
        let allowed: BTreeSet<_> = allowed.split(", ").collect();
        assert_eq!((answer.status, allowed), (204, methods), "{path}");
    }
}

/// A refusal of an unknown parameter names the known ones.
#[test]
fn each_query_has_the_parameters_that_the_document_has() {
    let server = Server::new();
    for route in throng_contract::routes() {
        let path = example(route.path);
        // Pages, files and probes ignore their query.
        let page = ["/health", "/metrics", "/status/log", "/chat", "/docs", "/throng"];
        let is_page = page.iter().any(|prefix| path.starts_with(prefix))
            || path.ends_with(".md")
            || ["/", "/status", "/openapi.json", "/asyncapi.json"].contains(&&*path);
        if is_page {
            assert_eq!(route.parameters, [""; 0], "{path}");
            continue;
        }
        // Some paths have a name in their query, and then take what the path with it takes.
        let is_own = [("POST", "/publish"), ("GET", "/connections"), ("POST", "/subscriptions")]
            .contains(&(route.method, route.path));
        let takes = |name: &&str| route.parameters.contains(name);
        let is_named = !route.path.contains('{') && path != "/subscribe";
        let is_named = is_named && ["user", "channel"].iter().any(takes);
        let name = ["user", "channel"].into_iter().find(takes).filter(|_| is_named && !is_own);
        let name = name.map(|name| format!("{name}=a&")).unwrap_or_default();
        let target = format!("{path}?{name}zzzzzzzzzz=1");
        let answer = server.ask(request(route.method, &target, &["Content-Length: 0"]));
        answer.expect_refusal(400, "bad_parameter");
        let body = answer.json();
        let message = body["message"].as_str().unwrap();
        let known: BTreeSet<_> = message.split('`').skip(3).step_by(2).collect();
        let mut documented: BTreeSet<_> = route.parameters.into_iter().collect();
        if is_named {
            documented.remove("user");
            // Of kept subscriptions it is one of several.
            if path != "/subscriptions" {
                documented.remove("channel");
            }
        }
        if documented.contains("transport") {
            // The message has the parameters of all paths that subscribe.
            assert!(known.is_superset(&documented), "{path}");
            assert_eq!(documented.contains("channel"), path == "/subscribe", "{path}");
        } else {
            assert_eq!(known, documented, "{} {path}", route.method);
        }
    }
}

#[test]
fn the_document_has_every_page() {
    let documented: Vec<_> = throng_contract::routes().map(|route| example(route.path)).collect();
    let literals = PAGES.iter().flat_map(|source| source.split('"').skip(1).step_by(2));
    let is_path = |text: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || b"/.-".contains(&byte);
        text.starts_with('/') && text.bytes().all(is_plain)
    };
    let server = Server::new();
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

#[test]
fn the_documents_are_served() {
    let server = Server::new();
    for (path, field) in [("/openapi.json", "openapi"), ("/asyncapi.json", "asyncapi")] {
        let answer = server.ask(get(path));
        assert_eq!(answer.status, 200);
        let document: Value = answer.json();
        assert!(document[field].as_str().unwrap().starts_with('3'), "{path}");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}

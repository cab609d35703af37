//! The OpenAPI and AsyncAPI documents have what the server serves, and nothing else.
//!
//! Each document is read from the server. Besides, debug builds look each answer of every test up
//! in the OpenAPI document: its status, error code, content type and headers.

mod components;
mod frames;
mod headers;
mod limits;
mod routes;

use serde_json::{Map, Value};

use crate::client::get;
use crate::server::Server;

fn openapi(server: &Server) -> Value {
    server.ask(get("/openapi.json")).json()
}

fn asyncapi(server: &Server) -> Value {
    server.ask(get("/asyncapi.json")).json()
}

/// One method of one path of the OpenAPI document.
struct Operation<'a> {
    /// In upper case.
    method: String,
    /// With names in braces.
    path: &'a str,
    value: &'a Value,
}

#[derive(Debug, Clone, PartialEq)]
struct Parameter<'a> {
    name: &'a str,
    is_required: bool,
    schema: &'a Value,
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("an object")
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text")).collect()
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = object(&document["paths"]).iter();
    let operations = paths.flat_map(|(path, methods)| {
        object(methods).iter().map(move |(method, value)| Operation {
            method: method.to_uppercase(),
            path,
            value,
        })
    });
    operations.collect()
}

impl<'a> Operation<'a> {
    fn query(&self) -> Vec<Parameter<'a>> {
        let parameters = self.value["parameters"].as_array().expect("a list").iter();
        let query = parameters.filter(|parameter| parameter["in"] == "query");
        let parameter = |parameter: &'a Value| Parameter {
            name: parameter["name"].as_str().expect("a name"),
            is_required: parameter["required"] == true,
            schema: &parameter["schema"],
        };
        query.map(parameter).collect()
    }

    fn query_names(&self) -> Vec<&'a str> {
        self.query().iter().map(|parameter| parameter.name).collect()
    }

    /// The path with names in place of `{…}`.
    fn example(&self) -> String {
        let path = self.path.replace("{connection}", "2d5e1b30000001");
        let path = path.replace("{version}", env!("CARGO_PKG_VERSION"));
        ["{channel}", "{user}", "{id}"].iter().fold(path, |path, name| path.replace(name, "a"))
    }

    /// Pages, files and probes ignore their query.
    fn is_page(&self) -> bool {
        let prefixes = ["/health", "/metrics", "/status/log", "/chat", "/docs", "/throng"];
        prefixes.iter().any(|prefix| self.path.starts_with(prefix))
            || self.path.ends_with(".md")
            || ["/", "/status", "/openapi.json", "/asyncapi.json"].contains(&self.path)
    }

    /// True if workers answer the `GET`; the control plane answers its `HEAD`.
    fn subscribes(&self) -> bool {
        let paths = ["/subscribe", "/channels/{channel}", "/users/{user}", "/status/stream"];
        self.method == "GET" && paths.contains(&self.path)
    }

    /// True if the name in the query stands for a name in the path.
    fn is_by_name(&self) -> bool {
        let own = [("POST", "/publish"), ("GET", "/connections"), ("POST", "/subscriptions")];
        let takes_name = self.query_names().iter().any(|name| ["channel", "user"].contains(name));
        takes_name
            && !self.path.contains('{')
            && self.path != "/subscribe"
            && !own.contains(&(&self.method, self.path))
    }
}

#[test]
fn the_documents_are_served_with_the_version() {
    let server = Server::new();
    for (served, file) in [
        (openapi(&server), include_str!("../../../../docs/reference/openapi.json")),
        (asyncapi(&server), include_str!("../../../../docs/reference/asyncapi.json")),
    ] {
        let mut file: Value = serde_json::from_str(file).unwrap();
        file["info"]["version"] = env!("CARGO_PKG_VERSION").into();
        assert_eq!(served, file);
    }
}

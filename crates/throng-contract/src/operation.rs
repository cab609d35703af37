//! One method of one path: its parameters, its body, and everything that may be the answer.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use throng_wire::ErrorCode;

use crate::query::{self, Parameter};

/// What any request may be refused with, whatever it asks for.
const ALWAYS: &[ErrorCode] = &[
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

/// What a request is refused with that not everybody may make.
const CREDENTIALS: &[ErrorCode] = &[
    ErrorCode::Unauthorized,
    ErrorCode::InvalidToken,
    ErrorCode::TokenExpired,
    ErrorCode::TokenRevoked,
    ErrorCode::Forbidden,
    ErrorCode::TooManyRequests,
];

/// The description of each operation with the name in its query.
const BY_QUERY: &str = "As the path with the name in it, for proxies that do not pass `%2F` in \
    paths on. Give one name.";

/// Who may make a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody, on every server.
    Anyone,
    /// On a server with keys, only clients with a token or a server key.
    Client,
    /// On a server with keys, only clients with a server key of this scope.
    Key(&'static str),
}

/// An answer that is no refusal.
#[derive(Debug, Clone)]
struct Answer {
    description: &'static str,
    /// Content types, with the schema of each.
    content: Vec<(&'static str, Value)>,
    headers: &'static [&'static str],
}

/// One method of one path.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// The method, in upper case.
    pub(crate) method: &'static str,
    /// The path, with names in braces.
    pub(crate) path: String,
    id: String,
    tag: &'static str,
    summary: String,
    description: &'static str,
    access: Access,
    query: Vec<Parameter>,
    headers: &'static [&'static str],
    body: Option<Value>,
    answers: BTreeMap<u16, Answer>,
    refusals: Vec<ErrorCode>,
}

impl Operation {
    pub(crate) fn new(
        method: &'static str,
        path: impl Into<String>,
        id: impl Into<String>,
        (tag, summary): (&'static str, impl Into<String>),
    ) -> Operation {
        Operation {
            method,
            path: path.into(),
            id: id.into(),
            tag,
            summary: summary.into(),
            description: "",
            access: Access::Client,
            query: Vec::new(),
            headers: &[],
            body: None,
            answers: BTreeMap::new(),
            refusals: ALWAYS.iter().chain(CREDENTIALS).copied().collect(),
        }
    }

    /// The same with its name in the query: for a channel, for a user, or for both, which then are
    /// answered as `other` says, too.
    pub(crate) fn by_query(&self, path: &str, other: Option<&Operation>) -> Operation {
        let nouns = [("Channel", query::CHANNEL), ("User", query::USER)];
        let is_of = |path: &str, name: &Parameter| path.contains(&format!("{{{}}}", name.name));
        let all: Vec<_> = [Some(self), other].into_iter().flatten().collect();
        let mut named = self.clone();
        named.path = path.to_owned();
        for (noun, mut name) in nouns {
            if all.iter().any(|operation| is_of(&operation.path, &name)) {
                name.is_required = other.is_none();
                named.query.insert(0, name);
            }
            // Kept subscriptions are those of a user, whatever their names say.
            if other.is_some() {
                named.id = named.id.replacen(noun, "", 1);
            }
        }
        named.id.push_str("ByName");
        named.summary.push_str(", with the name in the query");
        named.description = BY_QUERY;
        for answer in other.into_iter().flat_map(|other| &other.answers) {
            let (status, Answer { content, .. }) = answer;
            let Some(own) = named.answers.get_mut(status) else { continue };
            for ((_, own), (_, other)) in own.content.iter_mut().zip(content) {
                if own != other {
                    *own = json!({ "anyOf": [own, other] });
                }
            }
        }
        named
    }

    pub(crate) fn described(self, description: &'static str) -> Operation {
        Operation { description, ..self }
    }

    pub(crate) fn access(mut self, access: Access) -> Operation {
        if access == Access::Anyone {
            self.refusals.retain(|code| !CREDENTIALS.contains(code));
        }
        Operation { access, ..self }
    }

    pub(crate) fn query(self, query: &[Parameter]) -> Operation {
        Operation { query: query.to_vec(), ..self }
    }

    /// The headers of the request that change what it does: names of components.
    pub(crate) fn headers(self, headers: &'static [&'static str]) -> Operation {
        Operation { headers, ..self }
    }

    /// The body of the request: its content types, with the schema of each.
    pub(crate) fn body(self, content: &[(&'static str, Value)]) -> Operation {
        let body = json!({ "required": true, "content": media(content) });
        Operation { body: Some(body), ..self }
    }

    pub(crate) fn answers(
        self,
        status: u16,
        description: &'static str,
        content: &[(&'static str, Value)],
    ) -> Operation {
        self.answers_with(status, description, content, &[])
    }

    pub(crate) fn answers_with(
        mut self,
        status: u16,
        description: &'static str,
        content: &[(&'static str, Value)],
        headers: &'static [&'static str],
    ) -> Operation {
        let answer = Answer { description, content: content.to_vec(), headers };
        self.answers.insert(status, answer);
        self
    }

    pub(crate) fn refuses(mut self, codes: &[ErrorCode]) -> Operation {
        self.refusals.extend(codes);
        self
    }

    /// Whether a request may be answered with this status, and this code if it is a refusal.
    pub(crate) fn may_answer(&self, status: u16, code: Option<ErrorCode>) -> bool {
        match code {
            None => self.answers.contains_key(&status),
            Some(code) => code.status() == status && self.refusals.contains(&code),
        }
    }

    /// The names of the parameters of the query.
    pub(crate) fn parameters(&self) -> Vec<&'static str> {
        self.query.iter().map(|parameter| parameter.name).collect()
    }

    /// The object of the document.
    pub(crate) fn document(&self) -> Value {
        let mut responses = Map::new();
        for (status, answer) in &self.answers {
            responses.insert(status.to_string(), answer.document());
        }
        for status in self.refusals.iter().map(|code| code.status()) {
            if !self.answers.contains_key(&status) {
                let codes = self.refusals.iter().filter(|code| code.status() == status);
                responses.insert(status.to_string(), refusal(codes));
            }
        }
        let mut object = json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "parameters": self.all_parameters(),
            "responses": responses,
            "security": self.security(),
        });
        let scope = match self.access {
            Access::Key(scope) => format!("On a server with keys: server keys with `{scope}`."),
            Access::Anyone | Access::Client => String::new(),
        };
        let description = format!("{} {scope}", self.description);
        if !description.trim().is_empty() {
            object["description"] = description.trim().into();
        }
        if let Some(body) = &self.body {
            object["requestBody"] = body.clone();
        }
        object
    }

    fn all_parameters(&self) -> Vec<Value> {
        let segments = self.path.split('/').filter_map(|segment| {
            let (_, name, _) = named(segment)?;
            Some(json!({ "$ref": format!("#/components/parameters/{name}") }))
        });
        let query = self.query.iter().map(|parameter| {
            json!({
                "name": parameter.name,
                "in": "query",
                "description": parameter.description,
                "required": parameter.is_required,
                "schema": (parameter.schema)(),
            })
        });
        let headers = self.headers.iter().chain([&"X-Request-Id"]);
        let headers =
            headers.map(|name| json!({ "$ref": format!("#/components/parameters/{name}") }));
        segments.chain(query).chain(headers).collect()
    }

    /// An empty object stands for servers without keys.
    fn security(&self) -> Value {
        match self.access {
            Access::Anyone => json!([]),
            Access::Client if self.query.iter().any(|it| it.name == "token") => {
                json!([{}, { "bearer": [] }, { "token": [] }])
            }
            Access::Client | Access::Key(_) => json!([{}, { "bearer": [] }]),
        }
    }
}

impl Answer {
    fn document(&self) -> Value {
        let mut headers = Map::new();
        for name in self.headers.iter().chain([&"X-Request-Id"]) {
            let reference = format!("#/components/headers/{name}");
            headers.insert((*name).to_owned(), json!({ "$ref": reference }));
        }
        let mut answer = json!({ "description": self.description, "headers": headers });
        if !self.content.is_empty() {
            answer["content"] = media(&self.content);
        }
        answer
    }
}

fn media(content: &[(&'static str, Value)]) -> Value {
    let types = content.iter().map(|(name, schema)| {
        let media = json!({ "schema": schema });
        ((*name).to_owned(), media)
    });
    Value::Object(types.collect())
}

/// What a segment of a path has before its name, the name, and what it has after it.
pub(crate) fn named(segment: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = segment.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// The response of a status, with the codes that it can have.
fn refusal<'c>(codes: impl Iterator<Item = &'c ErrorCode>) -> Value {
    let mut codes: Vec<_> = codes.copied().collect();
    codes.sort_by_key(|code| *code as u8);
    codes.dedup();
    let names: Vec<_> = codes.into_iter().map(ErrorCode::name).collect();
    json!({ "$ref": format!("#/components/responses/{}", names.join(".")) })
}

/// The component that [`refusal`] names.
pub(crate) fn refusal_component(name: &str) -> Option<Value> {
    let names: Vec<_> = name.split('.').collect();
    let of = |name: &str| ErrorCode::ALL.iter().find(|code| code.name() == name).copied();
    let codes: Vec<_> = names.iter().filter_map(|name| of(name)).collect();
    let sentences: Vec<_> =
        codes.iter().map(|code| format!("`{}`: {}.", code.name(), code.message())).collect();
    let mut headers = json!({ "X-Request-Id": { "$ref": "#/components/headers/X-Request-Id" } });
    let first = codes.first()?;
    if first.retry().is_some() {
        headers["Retry-After"] = json!({ "$ref": "#/components/headers/Retry-After" });
    }
    if first.challenge().is_some() {
        headers["WWW-Authenticate"] = json!({ "$ref": "#/components/headers/WWW-Authenticate" });
    }
    Some(json!({
        "description": sentences.join(" "),
        "headers": headers,
        "content": { "application/json": { "schema": {
            "type": "object",
            "required": ["error", "message"],
            "properties": {
                "error": { "type": "string", "enum": names },
                "message": { "type": "string", "description": "One sentence, for people." },
            },
        } } },
    }))
}

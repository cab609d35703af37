//! Looks responses up in the OpenAPI document, `docs/reference/openapi.json`.
//!
//! Debug builds do so with each response of the control plane, so that every test of the server
//! tests the document, too. `tests/control/contract.rs` compares everything else: paths, methods,
//! parameters and limits.

use std::sync::LazyLock;

use http::Method;
use http::header::CONTENT_TYPE;
use hyper::body::Body as _;
use serde_json::{Map, Value};
use throng_wire::ErrorCode;

use crate::http::answer::Answer;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../docs/reference/openapi.json");
    serde_json::from_str(text).unwrap_or_default()
});

/// Fails with a sentence if the document lacks this answer: its status, its error code, its content
/// type or one of its headers.
///
/// `HEAD` is answered as `GET` is, and `OPTIONS` with the methods: the document says so once, not
/// for each path. A path that it lacks may only refuse.
pub(crate) fn check(method: &Method, path: &str, answer: &Answer) -> Result<(), String> {
    let status = answer.status();
    let code = answer.extensions().get::<ErrorCode>().copied();
    let lacks = |what: &str| {
        let code = code.map(ErrorCode::name).unwrap_or_default();
        Err(format!("openapi.json lacks {what} of {method} {path}, answered with {status} {code}"))
    };
    let Some(operations) = operations(path) else {
        return if code.is_some() { Ok(()) } else { lacks("the path") };
    };
    let name = if method == Method::HEAD { "GET" } else { method.as_str() };
    let Some((_, operation)) = operations.iter().find(|(known, _)| known.to_uppercase() == name)
    else {
        let is_list = method == Method::OPTIONS && status == 204;
        return if is_list || code.is_some() { Ok(()) } else { lacks("the method") };
    };
    let Some(response) = operation["responses"].get(status.as_str()).map(resolve) else {
        return lacks("the status");
    };
    if !is_code_documented(code, response) {
        return lacks("the error code");
    }
    let content_type = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    if !answer.body().is_end_stream() && response["content"].get(content_type).is_none() {
        return lacks(&format!("the content type '{content_type}'"));
    }
    let headers = DOCUMENT["components"]["headers"].as_object().into_iter().flat_map(Map::keys);
    let mut lacking = headers.filter(|name| response["headers"].get(name).is_none());
    match lacking.find(|name| answer.headers().contains_key(name.as_str())) {
        Some(name) => lacks(&format!("the header {name}")),
        None => Ok(()),
    }
}

/// The operations of a path, by method.
pub(crate) fn operations(path: &str) -> Option<&'static Map<String, Value>> {
    let paths = DOCUMENT["paths"].as_object()?;
    paths.iter().find(|(template, _)| is_at(template, path))?.1.as_object()
}

/// A response, which may be a reference to one of the components.
fn resolve(response: &'static Value) -> &'static Value {
    let reference = response["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
    reference.and_then(|pointer| DOCUMENT.pointer(pointer)).unwrap_or(response)
}

/// True if a response has the code of a refusal, or is none of a refusal. Pages for browsers have
/// a sentence in place of the code.
fn is_code_documented(code: Option<ErrorCode>, response: &Value) -> bool {
    let codes = response.pointer("/content/application~1json/schema/properties/error/enum");
    match (code, codes.and_then(Value::as_array)) {
        (Some(code), Some(codes)) => codes.iter().any(|known| known == code.name()),
        (Some(_), None) => response["content"].get("text/html").is_some(),
        (None, codes) => codes.is_none(),
    }
}

/// True if `path` matches `template`, whose names are in braces.
fn is_at(template: &str, path: &str) -> bool {
    let (mut expected, mut segments) = (template.split('/'), path.split('/'));
    loop {
        match (expected.next(), segments.next()) {
            (None, None) => return true,
            (Some(expected), Some(segment)) if is_segment(expected, segment) => {}
            _ => return false,
        }
    }
}

fn is_segment(expected: &str, segment: &str) -> bool {
    let Some((before, rest)) = expected.split_once('{') else { return expected == segment };
    let after = rest.split_once('}').map_or("", |(_, after)| after);
    segment.strip_prefix(before).is_some_and(|rest| rest.ends_with(after))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http::header::{ETAG, HeaderValue};

    use super::*;
    use crate::http::answer::{THRONG_ID, json};

    fn is_documented(method: &str, path: &str, answer: &Answer) -> bool {
        check(&method.parse().unwrap(), path, answer).is_ok()
    }

    #[test]
    fn answers_are_found_by_method_path_status_and_code() {
        let answer = |method, path, status: u16, code: Option<ErrorCode>| {
            let mut answer = json(StatusCode::from_u16(status).unwrap(), b"{}".to_vec());
            code.map(|code| answer.extensions_mut().insert(code));
            is_documented(method, path, &answer)
        };
        let get = |path, status, code| answer("GET", path, status, code);
        assert!(get("/channels/a%2Fb/history", 200, None));
        assert!(get("/channels/a/history", 400, Some(ErrorCode::BadId)));
        assert!(!get("/channels/a/history", 400, Some(ErrorCode::BadJson)));
        assert!(!get("/channels/a/history", 404, Some(ErrorCode::BadId)));
        assert!(!get("/channels/a/history", 201, None));
        assert!(!get("/channels/a/history", 400, None));
        assert!(get("/channels/a/others", 404, Some(ErrorCode::NotFound)));
        assert!(!get("/channels/a/others", 200, None));
        assert!(answer("HEAD", "/channels/a/history", 200, None));
        assert!(answer("OPTIONS", "/channels/a/history", 204, None));
        assert!(answer("PATCH", "/channels/a", 405, Some(ErrorCode::MethodNotAllowed)));
        assert!(!answer("PATCH", "/channels/a", 200, None));
    }

    #[test]
    fn answers_have_documented_headers_and_content() {
        let with = |name, value| {
            let mut answer = json(StatusCode::OK, b"{}".to_vec());
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
            is_documented("GET", "/channels/a/history", &answer)
        };
        assert!(with(CONTENT_TYPE, "application/json; charset=utf-8"));
        assert!(!with(CONTENT_TYPE, "text/plain"));
        assert!(with(THRONG_ID, "a-1"));
        assert!(!with(ETAG, "\"1\""));
    }
}

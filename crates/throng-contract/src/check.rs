//! Whether what the control plane answers is documented.

use std::fmt;

use throng_wire::ErrorCode;

use crate::openapi::operations;
use crate::operation::{Operation, named};

/// An answer that the document does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undocumented(String);

impl fmt::Display for Undocumented {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the OpenAPI document does not have {}", self.0)
    }
}

/// Fails if the document does not have this answer. `code` is that of a refusal. An answer that a
/// page gives to browsers, which is a refusal in another form, counts as one.
///
/// `HEAD` is answered as `GET` is, and `OPTIONS` with the methods: the document says so once, not
/// for each path.
pub fn check(
    method: &str,
    path: &str,
    status: u16,
    code: Option<ErrorCode>,
) -> Result<(), Undocumented> {
    let found = operations().iter().filter(|operation| is_at(operation, path));
    let mut found = found.peekable();
    if found.peek().is_none() {
        // Anything else may only be refused.
        return match code {
            Some(_) => Ok(()),
            None => Err(Undocumented(format!("the path {path}, answered with {status}"))),
        };
    }
    let method = if method == "HEAD" { "GET" } else { method };
    let is_documented = match found.find(|operation| operation.method == method) {
        Some(operation) => operation.may_answer(status, code),
        // Refused like any other request, too.
        None if method == "OPTIONS" => status == 204 || code.is_some(),
        None => code.is_some(),
    };
    if is_documented {
        return Ok(());
    }
    let code = code.map(ErrorCode::name).unwrap_or_default();
    Err(Undocumented(format!("the answer {status} {code} of {method} {path}")))
}

/// The methods that a path takes, without `HEAD` and `OPTIONS`.
pub fn methods_at(path: &str) -> impl Iterator<Item = &'static str> {
    let found = operations().iter().filter(move |operation| is_at(operation, path));
    found.map(|operation| operation.method)
}

/// Whether `path` is one of the operation's.
fn is_at(operation: &Operation, path: &str) -> bool {
    let (mut template, mut segments) = (operation.path.split('/'), path.split('/'));
    loop {
        match (template.next(), segments.next()) {
            (None, None) => return true,
            (Some(expected), Some(segment)) if is_segment(expected, segment) => {}
            _ => return false,
        }
    }
}

fn is_segment(expected: &str, segment: &str) -> bool {
    match named(expected) {
        None => expected == segment,
        Some((before, _, after)) => {
            let rest = segment.strip_prefix(before);
            rest.is_some_and(|rest| rest.ends_with(after))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_by_method_path_status_and_code() {
        let get = |path, status, code| check("GET", path, status, code).is_ok();
        assert!(get("/channels/a%2Fb/history", 200, None));
        assert!(get("/channels/a/history", 400, Some(ErrorCode::BadId)));
        assert!(!get("/channels/a/history", 400, Some(ErrorCode::BadJson)));
        assert!(!get("/channels/a/history", 404, Some(ErrorCode::BadId)));
        assert!(!get("/channels/a/history", 201, None));
        assert!(get("/channels/a/others", 404, Some(ErrorCode::NotFound)));
        assert!(!get("/channels/a/others", 200, None));
        assert!(check("HEAD", "/channels/a/history", 200, None).is_ok());
        assert!(check("OPTIONS", "/channels/a/history", 204, None).is_ok());
        assert!(check("PATCH", "/channels/a", 405, Some(ErrorCode::MethodNotAllowed)).is_ok());
        assert!(check("PATCH", "/channels/a", 200, None).is_err());
    }
}

//! Query parameters: pairs separated by `&`, percent-encoded, with `+` for a space.

use std::borrow::Cow;

use http::request::Parts;
use throng_wire::percent::decode_query;
use throng_wire::unknown;

use super::answer::ApiError;

/// The pairs in order, decoded. A pair that is not percent-encoded UTF-8 is an error.
pub(crate) fn pairs(
    query: &str,
) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), ApiError>> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(name)?, decode(value)?))
    })
}

/// The query of a request, whose parameters are all `known`.
pub(crate) fn of<'a>(head: &'a Parts, known: &[&str]) -> Result<&'a str, ApiError> {
    let query = head.uri.query().unwrap_or_default();
    check(query, known)?;
    Ok(query)
}

/// Refuses parameters that are not `known`, and repeated ones, because two values contradict each
/// other. The workers apply the same rules.
fn check(query: &str, known: &[&str]) -> Result<(), ApiError> {
    let mut seen = Vec::new();
    for pair in pairs(query) {
        let (name, value) = pair?;
        match known.iter().find(|known| **known == name) {
            Some(name) if seen.contains(&name) => {
                return Err(ApiError::parameter(format!("the parameter `{name}` is given twice")));
            }
            Some(name) => seen.push(name),
            None => {
                if let Some(message) = unknown::parameter(&name, &value, known) {
                    return Err(ApiError::parameter(message));
                }
            }
        }
    }
    Ok(())
}

/// The value of the first parameter called `name`.
pub(crate) fn find<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, ApiError> {
    for pair in pairs(query) {
        let (pair_name, value) = pair?;
        if pair_name == name {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// The value of a parameter that is `true` or `false`.
pub(crate) fn flag(query: &str, name: &str) -> Result<Option<bool>, ApiError> {
    match find(query, name)?.as_deref() {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(_) => Err(ApiError::parameter(format!("`{name}` is true or false"))),
    }
}

fn decode(text: &str) -> Result<Cow<'_, str>, ApiError> {
    let refused = || ApiError::parameter("a query parameter is not percent-encoded UTF-8");
    decode_query(text).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_order() {
        let all: Vec<_> = pairs("a=1&&b&c=x%20y+z&a=%2B").map(Result::unwrap).collect();
        let all: Vec<_> = all.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(all, [("a", "1"), ("b", ""), ("c", "x y z"), ("a", "+")]);
        assert_eq!(find("b=2&a=1&a=3", "a").unwrap().as_deref(), Some("1"));
        assert_eq!(find("b=2", "a").unwrap(), None);
        for text in ["a=%ff", "a=%f", "a=%", "a=%zz"] {
            assert!(find(text, "a").is_err(), "{text}");
        }
    }
}

//! The lifetime that the response with a key set names (RFC 9111 sections 4.2 and 5.2.2).

use http::HeaderMap;
use http::header::{AGE, CACHE_CONTROL};

/// The remaining lifetime in milliseconds; `None` if the response names none.
pub(super) fn of(headers: &HeaderMap) -> Option<u64> {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut max_age_s = None;
    for directive in values.flat_map(|value| value.split(',')) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-cache" | "no-store" => return Some(0),
            "max-age" => max_age_s = Some(seconds(value.trim().trim_matches('"')).unwrap_or(0)),
            _ => {}
        }
    }
    let age = headers.get(AGE).and_then(|age| seconds(age.to_str().ok()?.trim()));
    Some(max_age_s?.saturating_sub(age.unwrap_or(0)).saturating_mul(1000))
}

/// A number of seconds; one that is too large is the largest (RFC 9111 section 1.2.2).
fn seconds(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_age_counts_without_the_age() {
        for (cache_control, age, expected) in [
            (None, None, None),
            (Some("public"), None, None),
            (Some("public, max-age=600, must-revalidate"), None, Some(600_000)),
            (Some("Max-Age=\"60\""), None, Some(60_000)),
            (Some("max-age=600"), Some("100"), Some(500_000)),
            (Some("max-age=600"), Some("601"), Some(0)),
            (Some("max-age=600"), Some("-1"), Some(600_000)),
            (Some("max-age=-1"), None, Some(0)),
            (Some("max-age=99999999999999999999999"), None, Some(u64::MAX)),
            (Some("no-store, max-age=600"), None, Some(0)),
            (Some("no-cache"), None, Some(0)),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(CACHE_CONTROL, cache_control), (AGE, age)] {
                headers.extend(value.map(|value| (name, value.parse().unwrap())));
            }
            assert_eq!(of(&headers), expected, "{cache_control:?} {age:?}");
        }
    }
}

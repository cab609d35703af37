//! Signed requests of the HTTP API.
//!
//! What is signed is the method, the path as it was sent, and all parameters of the query but the
//! signature: their names in lower case and sorted, their values decoded.

use std::borrow::Cow;

use md5::{Digest as _, Md5};

use crate::app::App;

/// How far the clock of an application may differ from the server's, in seconds.
const CLOCK_S_MAX: u64 = 600;

/// The parameters of a query, decoded.
pub type Pairs<'q> = Vec<(Cow<'q, str>, Cow<'q, str>)>;

/// Why a request is not the application's: one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    #[error("the parameter `{0}` is missing")]
    Missing(&'static str),
    #[error("the parameter `{0}` is given twice")]
    Twice(&'static str),
    #[error("the `auth_key` is not a key of this application")]
    Key,
    #[error("this key of the application is not enabled")]
    Disabled,
    #[error("the `auth_timestamp` is more than {CLOCK_S_MAX} seconds from the server's clock")]
    Timestamp,
    #[error("the `auth_signature` is not the application's signature of this request")]
    Signature,
    #[error("the `body_md5` is not the MD5 of the body")]
    Body,
}

/// The value of a parameter, which is given once.
pub fn parameter<'p>(
    pairs: &'p Pairs<'_>,
    name: &'static str,
) -> Result<Option<&'p str>, NotSigned> {
    let mut values = pairs.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    let value = values.next().map(|(_, value)| &**value);
    if values.next().is_some() { Err(NotSigned::Twice(name)) } else { Ok(value) }
}

fn required<'p>(pairs: &'p Pairs<'_>, name: &'static str) -> Result<&'p str, NotSigned> {
    parameter(pairs, name)?.ok_or(NotSigned::Missing(name))
}

/// The key that a request names.
pub fn key_of<'p>(pairs: &'p Pairs<'_>) -> Result<&'p str, NotSigned> {
    required(pairs, "auth_key")
}

/// The text that an application signs.
pub fn signed_text(method: &str, path: &str, pairs: &Pairs<'_>) -> String {
    let lower = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| {
        let name = name.to_ascii_lowercase();
        (name != "auth_signature").then(|| format!("{name}={value}"))
    };
    let mut signed: Vec<_> = pairs.iter().filter_map(lower).collect();
    // By name: `=` is below all letters, but not below digits and signs that names may have.
    signed.sort_by(|one, other| name_of(one).cmp(name_of(other)));
    format!("{method}\n{path}\n{}", signed.join("&"))
}

fn name_of(pair: &str) -> &str {
    pair.split('=').next().unwrap_or_default()
}

/// Fails unless the application has signed this request, whose body is still to come, for about
/// this time, in seconds since 1970.
///
/// # Errors
///
/// See [`NotSigned`].
pub fn check(
    app: &App,
    (method, path): (&str, &str),
    pairs: &Pairs<'_>,
    now_s: u64,
) -> Result<(), NotSigned> {
    let key = app.key(required(pairs, "auth_key")?).ok_or(NotSigned::Key)?;
    required(pairs, "auth_version")?;
    let signature = required(pairs, "auth_signature")?;
    let time = required(pairs, "auth_timestamp")?;
    let at_s: Option<u64> = time.parse().ok();
    if at_s.is_none_or(|at_s| at_s.abs_diff(now_s) > CLOCK_S_MAX) {
        return Err(NotSigned::Timestamp);
    }
    let text = signed_text(method, path, pairs);
    if !key.signer().verifies(&text, signature) {
        return Err(NotSigned::Signature);
    }
    if key.is_enabled() { Ok(()) } else { Err(NotSigned::Disabled) }
}

/// Fails unless the signed query is that of this body. Without a body it may name the MD5 of
/// nothing, as the library for Python does.
///
/// # Errors
///
/// See [`NotSigned`].
pub fn check_body(pairs: &Pairs<'_>, body: &[u8]) -> Result<(), NotSigned> {
    match parameter(pairs, "body_md5")? {
        None if body.is_empty() => Ok(()),
        None => Err(NotSigned::Missing("body_md5")),
        // It is no secret, and the query with it is signed.
        Some(digits) if digits == md5(body) => Ok(()),
        Some(_) => Err(NotSigned::Body),
    }
}

fn md5(body: &[u8]) -> String {
    Md5::digest(body).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::tests::SECRET;

    const KEY: &str = "278d425bdf160c739803";
    const TIME_S: u64 = 1_353_088_179;
    const BODY: &str = r#"{"name":"foo","channels":["project-3"],"data":"{\"some\":\"data\"}"}"#;

    fn app() -> App {
        App::new("3", KEY, SECRET.as_bytes(), "3/").unwrap()
    }

    fn pairs(query: &str) -> Pairs<'_> {
        let pair = |pair: &'static str| -> (Cow<'static, str>, Cow<'static, str>) {
            let (name, value) = pair.split_once('=').unwrap();
            (name.into(), value.into())
        };
        let query: &'static str = String::leak(query.to_owned());
        query.split('&').map(pair).collect()
    }

    fn event(rest: &str) -> String {
        format!(
            "auth_key={KEY}&auth_timestamp={TIME_S}&auth_version=1.0\
             &body_md5=ec365a775a4cd0599faeb73354201b6f{rest}"
        )
    }

    const OF_EVENT: &str = "&auth_signature=\
        da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c";

    #[test]
    fn requests_are_signed_as_the_libraries_sign() {
        let post = ("POST", "/apps/3/events");
        let signed = event(OF_EVENT);
        let signed = pairs(&signed);
        assert_eq!(check(&app(), post, &signed, TIME_S), Ok(()));
        assert_eq!(check_body(&signed, BODY.as_bytes()), Ok(()));
        let get = format!(
            "filter_by_prefix=presence-&info=user_count&auth_key={KEY}&auth_timestamp={TIME_S}\
             &AUTH_VERSION=1.0&auth_signature=\
             16819168891cb5dfd72b5c7a5d3d602605b26c6ba1930033b5e2eeeb65010291"
        );
        assert_eq!(check(&app(), ("GET", "/apps/3/channels"), &pairs(&get), TIME_S), Ok(()));
    }

    #[test]
    fn whatever_else_is_signed_is_refused() {
        let post = ("POST", "/apps/3/events");
        let result = |query: &str, line, now_s| check(&app(), line, &pairs(query), now_s);
        let signed = event(OF_EVENT);
        for now_s in [TIME_S - CLOCK_S_MAX, TIME_S + CLOCK_S_MAX] {
            assert_eq!(result(&signed, post, now_s), Ok(()));
        }
        for now_s in [0, TIME_S - CLOCK_S_MAX - 1, TIME_S + CLOCK_S_MAX + 1] {
            assert_eq!(result(&signed, post, now_s), Err(NotSigned::Timestamp));
        }
        for line in [("PUT", "/apps/3/events"), ("POST", "/apps/3/batch_events")] {
            assert_eq!(result(&signed, line, TIME_S), Err(NotSigned::Signature));
        }
        let more = format!("{signed}&info=user_count");
        assert_eq!(result(&more, post, TIME_S), Err(NotSigned::Signature));
        assert_eq!(result(&event(""), post, TIME_S), Err(NotSigned::Missing("auth_signature")));
        let other = signed.replace(KEY, "other");
        assert_eq!(result(&other, post, TIME_S), Err(NotSigned::Key));
        let twice = format!("{signed}&auth_key={KEY}");
        assert_eq!(result(&twice, post, TIME_S), Err(NotSigned::Twice("auth_key")));
        for time in ["", "x", "-1", "99999999999999999999"] {
            let odd = signed.replace(&TIME_S.to_string(), time);
            assert_eq!(result(&odd, post, TIME_S), Err(NotSigned::Timestamp), "{time}");
        }
    }

    #[test]
    fn a_key_that_is_not_enabled_signs_nothing() {
        let signed = event(OF_EVENT);
        let with = |is_enabled| {
            let app = App::new("3", "newer", b"0123456789abcdef", "3/").unwrap();
            let app = app.with_key(KEY, SECRET.as_bytes(), is_enabled).unwrap();
            check(&app, ("POST", "/apps/3/events"), &pairs(&signed), TIME_S)
        };
        assert_eq!((with(true), with(false)), (Ok(()), Err(NotSigned::Disabled)));
    }

    #[test]
    fn the_body_is_the_one_that_is_signed() {
        let nothing = "body_md5=d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(check_body(&pairs(nothing), b""), Ok(()));
        assert_eq!(check_body(&pairs("a=b"), b""), Ok(()));
        assert_eq!(check_body(&pairs("a=b"), b"{}"), Err(NotSigned::Missing("body_md5")));
        assert_eq!(check_body(&pairs(nothing), b"{}"), Err(NotSigned::Body));
    }

    #[test]
    fn parameters_are_signed_by_name() {
        let text = signed_text("GET", "/a", &pairs("b=2&a1=x&A=1&c[]=&auth_signature=0"));
        assert_eq!(text, "GET\n/a\na=1&a1=x&b=2&c[]=");
    }
}

//! Finds the credential of a request head.

use super::{Credential, Place, SERVER_KEY_PREFIX};
use crate::error::{ErrorCode, ErrorResponse};
use crate::head::Head;
use crate::percent::decode_query;
use crate::subscribe::{Request, Transport};

/// The scheme of `Authorization`, which is case-insensitive.
const SCHEME: &[u8] = b"bearer";

/// How a token begins: the base64url of `{"`.
const TOKEN_START: &str = "eyJ";

/// Prefix of a token in a sub-protocol.
const SUBPROTOCOL_PREFIX: &str = "throng.token.";

/// The credential of a request that subscribes, of which `head` is the head. `cookie` is the name
/// of the token's cookie, if the settings name one.
///
/// # Errors
///
/// `bad_request` for two different credentials that are not cookies of one name; `invalid_token`
/// for one that none can be.
pub fn of_subscription<'a>(
    head: &Head<'a>,
    request: &Request,
    cookie: Option<&str>,
) -> Result<Option<Credential<'a>>, ErrorResponse> {
    let mut found = None;
    authorization(&mut found, head.headers("authorization"))?;
    if matches!(request.transport, Transport::WebSocket { .. }) {
        for item in head.items("sec-websocket-protocol") {
            if let Some(token) = item.strip_prefix(SUBPROTOCOL_PREFIX.as_bytes()) {
                merge(&mut found, credential(token, Place::Subprotocol)?)?;
            }
        }
    }
    query(&mut found, head.target)?;
    cookies(&mut found, head.headers("cookie"), cookie)?;
    Ok(found)
}

/// The credential of any other request. `headers` gives all values of a header. Cookies and errors
/// are as in [`of_subscription`].
pub fn of_request<'a, V: Iterator<Item = &'a [u8]>>(
    headers: impl Fn(&'static str) -> V,
    cookie: Option<&str>,
) -> Result<Option<Credential<'a>>, ErrorResponse> {
    let mut found = None;
    authorization(&mut found, headers("authorization"))?;
    cookies(&mut found, headers("cookie"), cookie)?;
    Ok(found)
}

/// Names the mistake of a request that has a token or server key without a scheme in these values
/// of `Authorization`, and would count as one without a credential.
///
/// # Errors
///
/// `invalid_token`.
pub fn check_scheme<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<(), ErrorResponse> {
    let begins = |value: &[u8], prefix: &str| value.starts_with(prefix.as_bytes());
    for value in values.map(<[u8]>::trim_ascii) {
        let message = if begins(value, SERVER_KEY_PREFIX) {
            "`Authorization` has a server key without a scheme: write `Authorization: Bearer KEY`"
        } else if begins(value, TOKEN_START) {
            "`Authorization` has a token without a scheme: write `Authorization: Bearer TOKEN`"
        } else {
            continue;
        };
        return Err(ErrorResponse::new(ErrorCode::InvalidToken, message));
    }
    Ok(())
}

/// Other schemes are not the server's: a proxy in front may use them.
fn authorization<'a>(
    found: &mut Option<Credential<'a>>,
    values: impl Iterator<Item = &'a [u8]>,
) -> Result<(), ErrorResponse> {
    for value in values {
        let value = value.trim_ascii();
        let end = value.iter().position(|&byte| byte == b' ').unwrap_or(value.len());
        let (scheme, token) = value.split_at(end);
        if scheme.eq_ignore_ascii_case(SCHEME) {
            merge(found, credential(token.trim_ascii(), Place::Header)?)?;
        }
    }
    Ok(())
}

fn query<'a>(found: &mut Option<Credential<'a>>, target: &'a str) -> Result<(), ErrorResponse> {
    let Some((_, query)) = target.split_once('?') else { return Ok(()) };
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if decode_query(key).as_deref() != Some("token") {
            continue;
        }
        let Some(token) = decode_query(value) else {
            let message = "the parameter `token` is not percent-encoded UTF-8";
            return Err(ErrorResponse::new(ErrorCode::InvalidToken, message));
        };
        merge(found, Credential::new(token, Place::Query)?)?;
    }
    Ok(())
}

/// An empty cookie counts as none: that is how many programs delete one. After a change of its
/// domain or path a browser sends the old cookie besides the new one, so that two may differ.
fn cookies<'a>(
    found: &mut Option<Credential<'a>>,
    values: impl Iterator<Item = &'a [u8]>,
    name: Option<&str>,
) -> Result<(), ErrorResponse> {
    let Some(name) = name else { return Ok(()) };
    let (mut first, mut malformed) = (None::<Credential<'a>>, None);
    for pair in values.flat_map(|value| value.split(|&byte| byte == b';')) {
        let pair = pair.trim_ascii();
        let Some(value) =
            pair.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
        else {
            continue;
        };
        let unquoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        let token = unquoted.unwrap_or(value);
        if token.is_empty() {
            continue;
        }
        match (credential(token, Place::Cookie), &mut first) {
            (Err(error), _) => malformed = malformed.or(Some(error)),
            (Ok(cookie), Some(first)) => first.add_cookie(cookie)?,
            (Ok(cookie), None) => first = Some(cookie),
        }
    }
    match (first, malformed) {
        (Some(cookie), _) => merge(found, cookie),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(()),
    }
}

fn credential(token: &[u8], place: Place) -> Result<Credential<'_>, ErrorResponse> {
    // Text that is not UTF-8 is not ASCII either, and refused as such.
    let text = str::from_utf8(token).unwrap_or("\u{fffd}");
    Credential::new(text.into(), place)
}

fn merge<'a>(
    found: &mut Option<Credential<'a>>,
    credential: Credential<'a>,
) -> Result<(), ErrorResponse> {
    match found {
        Some(first) if first.text != credential.text || credential.other_cookie.is_some() => {
            let (one, other) = (first.place.name(), credential.place.name());
            let places = if one == other { one.into() } else { format!("{one} and {other}") };
            let message = format!("the request has two different tokens or keys, in {places}");
            Err(ErrorResponse::bad_request(message))
        }
        Some(_) => Ok(()),
        None => {
            *found = Some(credential);
            Ok(())
        }
    }
}

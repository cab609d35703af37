//! Requests that came through a proxy.
//!
//! A server without keys that listens on loopback is open to the programs of its machine only. A
//! proxy in front of it opens it to all that can reach the proxy, and mostly adds one of these
//! headers: `Forwarded` (RFC 7239), `Via` (RFC 9110 section 7.6.3), `X-Forwarded-For` and its like.
//! Such a server refuses them, so that it is not open to the internet by accident. A proxy that
//! adds no header is not recognised.

use crate::error::{ErrorCode, ErrorResponse};

/// The prefix of `X-Forwarded-For`, `-Host`, `-Proto` and others.
const PREFIX: &[u8] = b"x-forwarded-";

/// Refuses a request with a header of a proxy among those with these `names`.
///
/// # Errors
///
/// [`ErrorCode::ForwardedRefused`], with the name of the header.
pub fn refuse<'a>(mut names: impl Iterator<Item = &'a str>) -> Result<(), ErrorResponse> {
    let Some(name) = names.find(|name| is_of_proxy(name)) else { return Ok(()) };
    let message = format!(
        "this server has no keys and is for this machine only, but the request came through a \
         proxy ({name}); add keys (`throng key`), or --allow-anyone if everyone may do everything"
    );
    Err(ErrorResponse::new(ErrorCode::ForwardedRefused, message))
}

fn is_of_proxy(name: &str) -> bool {
    let name = name.as_bytes();
    match name.first() {
        Some(b'f' | b'F') => name.eq_ignore_ascii_case(b"forwarded"),
        Some(b'v' | b'V') => name.eq_ignore_ascii_case(b"via"),
        Some(b'x' | b'X') => {
            name.len() > PREFIX.len() && name[..PREFIX.len()].eq_ignore_ascii_case(PREFIX)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_proxies_are_recognised() {
        for name in ["Forwarded", "via", "VIA", "X-Forwarded-For", "x-forwarded-proto"] {
            let error = refuse(["Host", name].into_iter()).unwrap_err();
            assert_eq!(error.code, ErrorCode::ForwardedRefused);
            assert!(error.message.contains(&format!("({name})")), "{}", error.message);
        }
        for name in ["", "v", "Viaduct", "X-Forwarded", "X-Forwarded-", "X-Real", "Forwarded-For"] {
            assert_eq!(refuse([name].into_iter()), Ok(()), "{name}");
        }
    }
}

//! Whether a cookie counts: a browser sends it also with requests that a foreign page makes.
//!
//! A page can make any browser open a WebSocket, send a `POST` or load a URL, and can read the
//! messages of a WebSocket. `SameSite` keeps out pages of other sites, but not pages of other hosts
//! of the same site, and is up to the program that sets the cookie. So a request with a cookie must
//! come from a page of an origin that the settings list. `*` does not count: it means that any page
//! may do what anyone may do.

use crate::error::{ErrorCode, ErrorResponse};
use crate::origin::OriginPolicy;

/// The facts that decide whether a request's cookie counts.
#[derive(Debug, Clone, Copy)]
pub struct CookieRequest<'a> {
    pub origin: Option<&'a str>,
    /// The header `Sec-Fetch-Site`, which pages cannot set.
    pub fetch_site: Option<&'a [u8]>,
    /// True if it only reads and is not a WebSocket: a `GET` or a `HEAD`.
    pub is_read: bool,
}

/// Fails unless a cookie counts as the credential of this request.
///
/// # Errors
///
/// `origin_refused`.
pub fn check_cookie(
    policy: &OriginPolicy<'_>,
    request: CookieRequest<'_>,
) -> Result<(), ErrorResponse> {
    if request.origin.is_some_and(|origin| policy.lists_origin(origin)) {
        return Ok(());
    }
    let is_own_read = request.is_read
        && match request.fetch_site {
            Some(b"same-origin") => true,
            // Typed by a person; or by no browser; or by one that sends the header to HTTPS only,
            // and an origin with everything that a page may read.
            Some(b"none") | None => request.origin.is_none(),
            Some(_) => false,
        };
    if is_own_read { Ok(()) } else { Err(refused(request.origin)) }
}

/// Fails unless the certificate of the connection counts as the credential of this request:
/// browsers show it for any page, as they send cookies. Other programs send neither header.
///
/// # Errors
///
/// `origin_refused`.
pub fn check_certificate(
    policy: &OriginPolicy<'_>,
    request: CookieRequest<'_>,
) -> Result<(), ErrorResponse> {
    if request.origin.is_none() && matches!(request.fetch_site, None | Some(b"none")) {
        return Ok(());
    }
    check_cookie(policy, request).map_err(|_| {
        let pages = "a certificate counts only for pages of listed origins";
        let message = match request.origin {
            Some(origin) => {
                format!("{pages}: allow these pages with --allowed-origins {origin}")
            }
            None => format!("{pages}; the request has no `Origin`"),
        };
        ErrorResponse::new(ErrorCode::OriginRefused, message)
    })
}

fn refused(origin: Option<&str>) -> ErrorResponse {
    let message = match origin {
        Some(origin) => format!(
            "a cookie counts only for pages of listed origins, and `*` lists none: allow these \
             pages with --allowed-origins {origin}"
        ),
        None => "a cookie counts only for pages of listed origins; the request has no `Origin`"
            .to_owned(),
    };
    ErrorResponse::new(ErrorCode::OriginRefused, message)
}

//! URLs of servers.

use crate::{Address, Invalid};

/// `text` unchanged if it has a scheme, or `http://` and the [`Address`] that it is. Any other text
/// is an error that suggests the URL that was probably meant.
pub fn url(text: &str) -> Result<String, Invalid> {
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    if let Ok(address) = text.parse::<Address>() {
        return Ok(format!("http://{address}"));
    }
    Err(no_scheme(text))
}

/// The error for a text without `://`, with the URL that was probably meant.
pub fn no_scheme(text: &str) -> Invalid {
    match with_scheme(text) {
        Some(meant) => Invalid(format!("{text:?} has no scheme; did you mean {meant:?}?")),
        None => Invalid::new(text, "a URL, like \"http://127.0.0.1:8080\""),
    }
}

/// Adds or repairs the scheme: both `http:/host` and `host` become `http://host`.
fn with_scheme(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<Address>() {
        return Some(format!("http://{address}"));
    }
    let scheme = ["https", "http", "wss", "ws"].into_iter().find_map(|scheme| {
        let rest = text.strip_prefix(scheme)?.strip_prefix(':')?;
        // `ws:80` is a host and its port.
        rest.starts_with('/').then_some((scheme, rest))
    });
    let (scheme, rest) = scheme.unwrap_or(("http", text));
    let rest = rest.trim_matches('/');
    (!rest.is_empty()).then(|| format!("{scheme}://{rest}"))
}

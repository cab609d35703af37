//! The URLs of the configuration, which are the only ones that the server requests.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;
use http::uri::PathAndQuery;

/// Why the server requests nothing from a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It is no absolute URL of `https` or `http`.
    #[error("this is not a URL like https://app.example.com/path")]
    Form,
    /// It is `http` and not on loopback.
    #[error("`http` is for loopback only, like http://127.0.0.1:3000/path; use `https`")]
    Plain,
    /// It has a user name or a password.
    #[error("a URL with a user name or a password is not supported")]
    UserInfo,
}

/// Where requests go: a URL with `https`, or with `http` on loopback.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) is_tls: bool,
    /// Without the brackets of an IPv6 address.
    pub(crate) host: Box<str>,
    pub(crate) port: u16,
    /// The value of the header `Host`.
    pub(crate) authority: Box<str>,
    pub(crate) target: PathAndQuery,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        // A fragment is not sent, and is a mistake here.
        if text.contains('#') {
            return Err(EndpointError::Form);
        }
        let uri: Uri = text.parse().map_err(|_| EndpointError::Form)?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(EndpointError::Form),
        };
        let authority = uri.authority().ok_or(EndpointError::Form)?;
        if authority.as_str().contains('@') {
            return Err(EndpointError::UserInfo);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        // A port that is not a number of 16 bits counts as none, and would become the default.
        let has_bad_port = authority.port().is_none() && authority.as_str() != authority.host();
        if host.is_empty() || has_bad_port {
            return Err(EndpointError::Form);
        }
        if !is_tls && !is_loopback(host) {
            return Err(EndpointError::Plain);
        }
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let root = || PathAndQuery::from_static("/");
        Ok(Endpoint {
            is_tls,
            host: host.into(),
            port,
            authority: authority.as_str().into(),
            target: uri.path_and_query().cloned().unwrap_or_else(root),
        })
    }
}

/// The host names that are this machine without asking DNS.
pub(crate) const LOCALHOST: &str = "localhost";

fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case(LOCALHOST),
    }
}

/// Without the query, which may contain a secret.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.target.path())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_goes_anywhere_and_http_to_loopback() {
        for (text, host, port, target) in [
            ("https://app.example.com", "app.example.com", 443, "/"),
            ("https://app.example.com:8443/keys?a=b", "app.example.com", 8443, "/keys?a=b"),
            ("https://[2001:db8::1]/x", "2001:db8::1", 443, "/x"),
            ("http://127.0.0.1:3000/x", "127.0.0.1", 3000, "/x"),
            ("http://127.8.9.10/", "127.8.9.10", 80, "/"),
            ("http://[::1]:3000/", "::1", 3000, "/"),
            ("http://localhost:3000/", "localhost", 3000, "/"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((&*endpoint.host, endpoint.port), (host, port), "{text}");
            assert_eq!(endpoint.target.as_str(), target, "{text}");
            assert_eq!(endpoint.is_tls, text.starts_with("https"), "{text}");
        }
    }

    #[test]
    fn other_urls_are_refused() {
        for (text, error) in [
            ("", EndpointError::Form),
            ("/keys", EndpointError::Form),
            ("app.example.com", EndpointError::Form),
            ("ftp://app.example.com/", EndpointError::Form),
            ("file:///etc/passwd", EndpointError::Form),
            ("https://app.example.com/#a", EndpointError::Form),
            ("https:///keys", EndpointError::Form),
            ("https://app.example.com:99999/", EndpointError::Form),
            ("https://app.example.com:/", EndpointError::Form),
            ("https://app.example.com/a b", EndpointError::Form),
            ("https://ann:secret@app.example.com/", EndpointError::UserInfo),
            ("http://127.0.0.1@app.example.com/", EndpointError::UserInfo),
            ("http://app.example.com/", EndpointError::Plain),
            ("http://10.0.0.1/", EndpointError::Plain),
            ("http://localhost.example.com/", EndpointError::Plain),
            ("http://0.0.0.0/", EndpointError::Plain),
            ("http://169.254.169.254/latest", EndpointError::Plain),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(error), "{text}");
        }
    }

    #[test]
    fn the_text_for_logs_has_no_query() {
        let endpoint: Endpoint = "https://a.example/keys?secret=x".parse().unwrap();
        assert_eq!(endpoint.to_string(), "https://a.example/keys");
        assert_eq!(format!("{endpoint:?}"), "Endpoint(https://a.example/keys)");
    }
}

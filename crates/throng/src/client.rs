//! The HTTP client of `publish` and `tail`: the server's URL, requests and error messages.

use std::str::FromStr;
use std::time::Duration;

use anyhow::anyhow;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::http::Response;
use ureq::{Agent, Body};

/// Time for the server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the server to begin its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Characters to escape in a path segment or a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The body of an error response.
#[derive(Debug, Deserialize)]
struct ErrorBody {
    message: String,
}

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Client {
    url: String,
    /// Sends the requests.
    pub(crate) agent: Agent,
}

/// The URL of a server, without a trailing slash.
#[derive(Debug, Clone)]
pub(crate) struct ServerUrl(String);

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<ServerUrl, String> {
        if url.starts_with("https://") {
            return Err("this command does not support TLS; give it the http:// address behind \
                        the TLS proxy, or use curl"
                .into());
        }
        let url = throng_units::url(url).map_err(|error| error.to_string())?;
        let host = url.strip_prefix("http://").map(|host| host.trim_end_matches('/'));
        match host.filter(|host| !host.is_empty()) {
            Some(host) => Ok(ServerUrl(format!("http://{host}"))),
            None => Err("this is not the URL of a server, like http://127.0.0.1:8080".into()),
        }
    }
}

impl Client {
    /// A response ends with an error after `max_silence` without data.
    pub(crate) fn new(url: &ServerUrl, max_silence: Option<Duration>) -> Client {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // The server is often on this machine, where no proxy can reach it.
            .proxy(None)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .timeout_per_read(max_silence)
            .user_agent(concat!("throng/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Client { url: url.0.clone(), agent }
    }

    /// The server's URL, without a trailing slash.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL of `path`, which begins with a slash.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// The error for a request without a response.
    pub(crate) fn unreachable(&self, error: &ureq::Error) -> anyhow::Error {
        let hint = if is_refused(error) { "; is `throng serve` running there?" } else { "" };
        anyhow!("cannot reach {}: {}{hint}", self.url, reason(error))
    }
}

fn is_refused(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

fn reason(error: &ureq::Error) -> String {
    match error {
        // The standard library has no kind for this error.
        ureq::Error::Io(error) if error.to_string().starts_with("failed to lookup address") => {
            "there is no such host".into()
        }
        ureq::Error::Io(error) => {
            // Remove the error number, which follows the text.
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or_default().to_ascii_lowercase()
        }
        ureq::Error::HostNotFound => "there is no such host".into(),
        ureq::Error::ConnectionFailed => "the connection is refused".into(),
        ureq::Error::Timeout(_) => "it does not answer".into(),
        other => other.to_string(),
    }
}

/// Escapes a name for a path segment or a query.
pub(crate) fn escaped(name: &str) -> String {
    utf8_percent_encode(name, ESCAPED).to_string()
}

/// The error for a response with an error status, with the server's message if it has one.
pub(crate) fn rejection(response: &mut Response<Body>) -> String {
    let status = response.status();
    let text = response.body_mut().read_to_string().unwrap_or_default();
    match serde_json::from_str::<ErrorBody>(&text) {
        Ok(error) => format!("the server refused: {} ({})", error.message, status.as_u16()),
        Err(_) => format!("the server answered {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_addresses_are_accepted() {
        let at = |url: &str| url.parse().map(|url| Client::new(&url, None).at("/a"));
        assert_eq!(at("http://h:1/").unwrap(), "http://h:1/a");
        for address in ["localhost:1", ":1", "1"] {
            assert_eq!(at(address).unwrap(), "http://127.0.0.1:1/a", "{address}");
        }
        for (bad, expected) in [
            ("https://h", "this command does not support TLS"),
            ("ftp://h", "this is not the URL of a server"),
            ("http://", "this is not the URL of a server"),
            ("", "\"\" is not a URL"),
            ("push.example:80", "has no scheme; did you mean \"http://push.example:80\"?"),
        ] {
            let error = at(bad).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn names_are_escaped_into_one_segment() {
        assert_eq!(escaped("chat/a b+ü&.~"), "chat%2Fa%20b%2B%C3%BC%26.~");
    }
}

//! The HTTP client of the client commands: the server's URL, requests and error messages.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::CertificateError;
use serde::Deserialize;
use throng_access::server_key::Scope;
use throng_trust::Trust;
use ureq::http::header::{AUTHORIZATION, HeaderValue};
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::{WithBody, WithoutBody};
use ureq::{Agent, Body, RequestBuilder};

/// Time for the server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the server to begin its response.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Characters to escape in a path segment or a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The body of an error response.
#[derive(Debug, Deserialize)]
struct ErrorBody {
    message: String,
}

#[derive(Debug)]
pub(crate) struct Client {
    url: String,
    agent: Agent,
    credential: Option<ClientCredential>,
}

/// The token or key in the environment, as it is sent. There is no flag for it, because every user
/// of a machine can read the arguments of a program.
pub(crate) struct ClientCredential(HeaderValue);

impl ClientCredential {
    /// The one that the environment has, if any.
    pub(crate) fn from_environment() -> anyhow::Result<Option<ClientCredential>> {
        let [token, key] = ["THRONG_TOKEN", "THRONG_KEY"]
            .map(|name| std::env::var_os(name).map(|text| (name, text)));
        if token.is_some() && key.is_some() {
            bail!("THRONG_TOKEN and THRONG_KEY are both set; unset one of them");
        }
        let Some((name, text)) = token.or(key) else { return Ok(None) };
        let credential = ClientCredential::new(&text.to_string_lossy());
        credential.map(Some).ok_or_else(|| {
            anyhow!("{name} is empty, or has characters that no token and no key has")
        })
    }

    fn new(text: &str) -> Option<ClientCredential> {
        let text = text.trim();
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let mut value = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
        value.set_sensitive(true);
        is_plain.then_some(ClientCredential(value))
    }
}

/// Does not show it.
impl fmt::Debug for ClientCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

/// The URL of a server, without a trailing slash.
#[derive(Debug, Clone)]
pub(crate) struct ServerUrl(String);

/// The flags that say which server is trusted, for commands that take a URL.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TrustArguments {
    /// CA certificates (PEM) to verify an https server with [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Accept any certificate from an https server
    #[arg(long, conflicts_with = "ca")]
    insecure: bool,
}

impl TrustArguments {
    /// The settings of TLS for a URL; `None` if it needs none.
    fn settings(&self, url: &ServerUrl) -> anyhow::Result<Option<TlsConfig>> {
        if !url.0.starts_with("https://") {
            if self.ca.is_some() || self.insecure {
                bail!("--ca and --insecure are for https:// URLs, and {} is none", url.0);
            }
            return Ok(None);
        }
        let settings = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(throng_tls::provider()));
        if self.insecure {
            return Ok(Some(settings.disable_verification(true).build()));
        }
        let Trust::Authorities(authorities) = Trust::load(self.ca.as_deref())? else {
            unreachable!("authorities are loaded");
        };
        let certificates: Vec<_> =
            authorities.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
        let roots = RootCerts::Specific(Arc::new(certificates));
        Ok(Some(settings.root_certs(roots).build()))
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<ServerUrl, String> {
        let url = throng_units::url(url).map_err(|error| error.to_string())?;
        let (scheme, host) = url.split_once("://").unwrap_or_default();
        // WebSocket URLs name the same servers.
        let scheme = match scheme {
            "http" | "ws" => "http",
            "https" | "wss" => "https",
            _ => "",
        };
        let host = host.trim_end_matches('/');
        match Some(host).filter(|host| !host.is_empty() && !scheme.is_empty()) {
            Some(host) => Ok(ServerUrl(format!("{scheme}://{host}"))),
            None => Err("this is not the URL of a server, like http://127.0.0.1:8080".into()),
        }
    }
}

impl Client {
    /// Requests show `credential`. A response ends with an error after `max_silence` without data.
    pub(crate) fn new(
        url: &ServerUrl,
        trust: &TrustArguments,
        max_silence: Option<Duration>,
        credential: Option<ClientCredential>,
    ) -> anyhow::Result<Client> {
        let tls = trust.settings(url)?;
        let agent = Agent::config_builder()
            // Without a URL that needs it, it is not used.
            .tls_config(tls.unwrap_or_else(|| TlsConfig::builder().build()))
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
        Ok(Client { url: url.0.clone(), agent, credential })
    }

    pub(crate) fn get(&self, url: String) -> RequestBuilder<WithoutBody> {
        self.with_credential(self.agent.get(url))
    }

    /// A POST to `path`, which begins with a slash.
    pub(crate) fn post(&self, path: &str) -> RequestBuilder<WithBody> {
        self.with_credential(self.agent.post(self.at(path)))
    }

    /// A PUT to `path`, which begins with a slash.
    pub(crate) fn put(&self, path: &str) -> RequestBuilder<WithBody> {
        self.with_credential(self.agent.put(self.at(path)))
    }

    fn with_credential<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.credential {
            Some(ClientCredential(value)) => request.header(AUTHORIZATION, value),
            None => request,
        }
    }

    /// The reason for an error response.
    pub(crate) fn rejection(&self, response: &mut Response<Body>) -> String {
        let reason = rejection(response);
        if response.status() == StatusCode::UNAUTHORIZED && self.credential.is_none() {
            return format!("{reason}; set THRONG_TOKEN to a token, or THRONG_KEY to a server key");
        }
        reason
    }

    /// As [`Client::rejection`], for what only a server key with this scope may do.
    pub(crate) fn rejection_without(&self, response: &mut Response<Body>, scope: Scope) -> String {
        let (reason, word) = (rejection(response), scope.word());
        if response.status() == StatusCode::UNAUTHORIZED && self.credential.is_none() {
            return format!("{reason}; set THRONG_KEY to a server key with the scope `{word}`");
        }
        reason
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
    if let Some(error) = tls_error(error) {
        return match error {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                format!(
                    "TLS: the server's certificate: {}; --insecure accepts any",
                    throng_trust::fault(&CertificateError::UnknownIssuer)
                )
            }
            rustls::Error::InvalidCertificate(error) => {
                format!("TLS: the server's certificate: {}", throng_trust::fault(error))
            }
            rustls::Error::InvalidMessage(_) => "TLS: the server does not speak TLS there".into(),
            other => format!("TLS: {other}"),
        };
    }
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

/// The error of TLS that a failed request comes from, if it is one.
fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Escapes a name for a path segment or a query.
pub(crate) fn escaped(name: &str) -> String {
    utf8_percent_encode(name, ESCAPED).to_string()
}

/// The error for a response with an error status, with the server's message if it has one.
fn rejection(response: &mut Response<Body>) -> String {
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
        let at = |url: &str| url.parse::<ServerUrl>().map(|url| format!("{}/a", url.0));
        assert_eq!(at("http://h:1/").unwrap(), "http://h:1/a");
        assert_eq!(at("https://h").unwrap(), "https://h/a");
        assert_eq!(at("wss://h:1/").unwrap(), "https://h:1/a");
        for address in ["localhost:1", ":1", "1"] {
            assert_eq!(at(address).unwrap(), "http://127.0.0.1:1/a", "{address}");
        }
        for (bad, expected) in [
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
    fn a_credential_is_plain_text_and_is_not_shown() {
        let value = |text| ClientCredential::new(text).map(|credential| credential.0);
        assert_eq!(value("a.b.c\n").unwrap(), "Bearer a.b.c");
        for bad in ["", " ", "a b", "a\nb", "é"] {
            assert!(value(bad).is_none(), "{bad:?}");
        }
        assert_eq!(format!("{:?}", ClientCredential::new("hunter2").unwrap()), "Credential");
        assert!(!format!("{:?}", value("hunter2")).contains("hunter2"));
    }

    #[test]
    fn names_are_escaped_into_one_segment() {
        assert_eq!(escaped("chat/a b+ü&.~"), "chat%2Fa%20b%2B%C3%BC%26.~");
    }
}

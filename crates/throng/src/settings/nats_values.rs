//! The values of the settings of NATS.

use std::fmt;
use std::str::FromStr;

use throng_units::{Form, Invalid, Value};

use super::lists::list;

/// The port of NATS servers unless another one is given.
const PORT: u16 = 4222;

/// Names of streams and subjects begin with it, and have limits of their own.
const PREFIX_BYTES_MAX: usize = 32;

list! {
    /// Servers of NATS.
    NatsServers, "SERVER,…",
    "a NATS server, like nats://10.0.0.1:4222: without TLS, and without a user, which nats-login \
     has",
    read_server
}

impl NatsServers {
    /// `host:port` of each server.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|server| server.trim_start_matches("nats://").to_owned()).collect()
    }
}

/// Accepts a host with or without a port, and with or without the scheme. A URL has no user,
/// because that would be a password in the settings.
fn read_server(text: &str) -> Option<String> {
    let place = match text.split_once("://") {
        None => text,
        Some((scheme, place)) => scheme.eq_ignore_ascii_case("nats").then_some(place)?,
    };
    let place = place.strip_suffix('/').unwrap_or(place).to_ascii_lowercase();
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (place.as_str(), PORT),
    };
    let is_address = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    let inner = if is_address { &host[1..host.len() - 1] } else { host };
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || (is_address && byte == b':')
    };
    let is_server = !inner.is_empty() && inner.bytes().all(is_plain) && port > 0;
    is_server.then(|| format!("nats://{host}:{port}"))
}

/// What names of streams and subjects begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NatsPrefix(pub(crate) String);

impl Value for NatsPrefix {
    const PLACEHOLDER: &'static str = "PREFIX";
    const EXPECTED: &'static str = "a prefix of letters, digits, `-` and `_`, at most 32";
    const FORM: Form = Form::Text;
}

impl FromStr for NatsPrefix {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<NatsPrefix, Invalid> {
        let prefix = text.trim();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if (1..=PREFIX_BYTES_MAX).contains(&prefix.len()) && prefix.bytes().all(is_plain) {
            Ok(NatsPrefix(prefix.to_owned()))
        } else {
            Err(Invalid::new(text, NatsPrefix::EXPECTED))
        }
    }
}

impl fmt::Display for NatsPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_host_and_a_port() {
        let servers: NatsServers =
            "nats://10.0.0.1, Nats.Example:4300,NATS://[::1]/,[fd00::2]:1".parse().unwrap();
        let expected = ["10.0.0.1:4222", "nats.example:4300", "[::1]:4222", "[fd00::2]:1"];
        assert_eq!(servers.addresses(), expected);
        assert_eq!(servers.to_string().parse(), Ok(servers));
        assert_eq!("none".parse::<NatsServers>(), Ok(NatsServers(Vec::new())));
        for bad in [
            "tls://a",
            "nats://ann:secret@a",
            "nats://a:0",
            "a:b",
            "a:70000",
            "nats://",
            "a/b",
            "[::1",
            "[]:1",
            "a b",
        ] {
            assert!(bad.parse::<NatsServers>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_prefix_is_one_token_of_a_subject() {
        assert_eq!(" Push-1_a".parse(), Ok(NatsPrefix("Push-1_a".into())));
        for bad in ["", "a.b", "a*", ">", "a b", "é", &"a".repeat(33)] {
            assert!(bad.parse::<NatsPrefix>().is_err(), "{bad}");
        }
    }
}

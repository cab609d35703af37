//! Addresses to listen on, and ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::Invalid;

/// An address and a port.
///
/// A port alone (`8080`, `:8080`) and `localhost` mean 127.0.0.1, so that an omitted host never
/// opens a server to other machines; `0.0.0.0` and `[::]` have to be spelled out. No host name but
/// `localhost` is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

/// The address of a port that is given alone.
const DEFAULT_IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Address {
    /// The accepted forms, for error messages.
    pub const EXPECTED: &'static str = "an address and a port, like \"127.0.0.1:8080\", \
        \"[::1]:8080\", \"0.0.0.0:8080\", or 8080 for this machine alone";

    /// The most specific error for `text`, which is not an address.
    fn error_for(text: &str) -> Invalid {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        if text.contains("://") {
            let address = with_port(text.split("://").nth(1).unwrap_or_default());
            return Invalid(format!("{text:?} is a URL; an address has no scheme: {address:?}"));
        }
        if let Ok(ip) = bare.parse::<IpAddr>() {
            let example = SocketAddr::new(ip, 8080);
            return Invalid(format!("{text:?} has no port; add it, like \"{example}\""));
        }
        match text.rsplit_once(':').filter(|(_, port)| read_port(port).is_some()) {
            Some((host, port)) if is_name(host) => Invalid(format!(
                "{text:?} names a host; listen on an IP address, like \"127.0.0.1:{port}\", or on \
                 all of them: \"0.0.0.0:{port}\""
            )),
            _ => Invalid::new(text, Address::EXPECTED),
        }
    }
}

impl FromStr for Address {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Address, Invalid> {
        let text = text.trim();
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
            let port = read_port(port).ok_or_else(|| Address::error_for(text))?;
            return Ok(Address(SocketAddr::new(DEFAULT_IP, port)));
        }
        text.parse().map(Address).map_err(|_| Address::error_for(text))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn read_port(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn is_name(host: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    host.bytes().any(|byte| byte.is_ascii_alphabetic()) && host.bytes().all(is_allowed)
}

/// The `host:port` of a URL without its scheme; the port is 8080 if it has none.
fn with_port(rest: &str) -> String {
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    match host.rsplit_once(':') {
        Some((_, port)) if read_port(port).is_some() => host.to_owned(),
        _ => format!("{host}:8080"),
    }
}

/// Ports in ascending order, parsed from single ports and ranges: `8080`, `8080,8090`, `8080-8095`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports(pub Vec<u16>);

impl Ports {
    /// The accepted forms, for error messages.
    pub const EXPECTED: &'static str =
        "a port, several or a range, like 8080, 8080,8090 or 8080-8095";
}

impl FromStr for Ports {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Ports, Invalid> {
        let mut ports = Vec::new();
        for each in text.split(',') {
            let (from, to) = range(each).ok_or_else(|| Invalid::new(each, Ports::EXPECTED))?;
            ports.extend(from..=to);
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(Ports(ports))
    }
}

/// Parses `FROM-TO` or one port; port 0 is rejected.
pub fn range(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| read_port(text.trim()).filter(|&port| port > 0);
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (port(from)?, port(to)?);
    (from <= to).then_some((from, to))
}

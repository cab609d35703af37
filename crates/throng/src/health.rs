//! `throng health`: whether a server is healthy, for the health checks of containers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use throng_units::Time;

use crate::client::{Client, ServerUrl, TrustArguments};
use crate::settings::{self, Options, Settings};
use crate::terminal;
use crate::without_ipv6;

const EXAMPLES: &str = "\
Requests /health from the server that the settings describe; reads the same variables and file as
`throng serve`. Meant for images without a shell or curl. Prints the server's answer. Exits with 0
if the server is healthy, 1 if it is draining or does not answer, and 78 if a setting is wrong. With
--live, requests /health/live, for which a draining server is healthy.

Examples:
  throng health
  throng health --config /etc/throng.toml
  throng health --url http://10.0.0.5:8080 --timeout 2s";

/// Arguments of `throng health`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Check only for a stalled event loop, which a restart would help
    #[arg(long)]
    live: bool,

    /// URL or address of the server [default: THRONG_URL, or else from the settings]
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    url: Option<ServerUrl>,

    /// Which server is trusted.
    #[command(flatten)]
    trust: TrustArguments,

    /// Read settings from this file [default: ./throng.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Time limit for the whole request; a slower server is unhealthy
    #[arg(long, value_name = "TIME", default_value = "5s")]
    timeout: Time,
}

/// Runs the command. An error says why the server is not healthy.
pub(crate) fn health(arguments: Arguments) -> Result<()> {
    // A file that is named says more than a variable.
    let named = || match std::env::var("THRONG_URL") {
        Ok(text) if arguments.config.is_none() => Some(text),
        _ => None,
    };
    let url = match (arguments.url, named()) {
        (Some(url), _) => url,
        (None, Some(text)) => {
            text.parse().map_err(|error| anyhow!("the variable THRONG_URL: {error}"))?
        }
        (None, None) => address(&load(arguments.config)?)?,
    };
    let client = Client::new(&url, &arguments.trust, None, None)?;
    let path = if arguments.live { "/health/live" } else { "/health" };
    let request = client.get(client.at(path));
    let request = request.config().timeout_global(Some(arguments.timeout.0)).build();
    let mut response = request.call().map_err(|error| client.unreachable(&error))?;
    if !response.status().is_success() {
        bail!("{} is not healthy: {}", client.url(), client.rejection(&mut response));
    }
    let text = response.body_mut().read_to_string()?;
    Ok(terminal::print(&format!("{}\n", text.trim_end()))?)
}

fn load(config: Option<PathBuf>) -> Result<Settings> {
    let no_flags = Options::default();
    Ok(settings::load(no_flags, std::env::vars_os(), config.as_deref())?)
}

/// The URL of the server's listener, as this machine reaches it. The public listener is preferred,
/// because its requests pass through a worker.
fn address(settings: &Settings) -> Result<ServerUrl> {
    let address = if settings.proxy_protocol.0 { settings.admin_listen.0 } else { None };
    let address = match address {
        Some(_) if settings.admin_tls.0 => bail!(
            "connections to `listen` must begin with a PROXY header, and `admin-listen` speaks \
             TLS, neither of which this command does"
        ),
        Some(admin) => admin,
        None if settings.proxy_protocol.0 => bail!(
            "connections to `listen` must begin with a PROXY header, which this command does not \
             send; set `admin-listen`, or give --url"
        ),
        None => settings.listen.0,
    };
    if address.port() == 0 {
        bail!("the settings let the kernel choose the port; give --url");
    }
    let url = format!("http://{}", reachable(address));
    url.parse().map_err(anyhow::Error::msg)
}

/// The address under which this machine reaches a listener: for the wildcard address, loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => without_ipv6::loopback(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<String> {
        let url = address(&settings::read_text(text).unwrap())?;
        Ok(Client::new(&url, &Default::default(), None, None)?.url().to_owned())
    }

    #[test]
    fn a_listener_of_all_addresses_is_asked_on_loopback() {
        assert_eq!(url("").unwrap(), "http://127.0.0.1:8080");
        assert_eq!(url("listen = '0.0.0.0:9'").unwrap(), "http://127.0.0.1:9");
        let of_both = SocketAddr::new(without_ipv6::loopback(), 9);
        assert_eq!(url("listen = '[::]:9'").unwrap(), format!("http://{of_both}"));
        assert_eq!(url("listen = '10.1.2.3:9'").unwrap(), "http://10.1.2.3:9");
        assert!(url("listen = ':0'").unwrap_err().to_string().contains("give --url"));
    }

    #[test]
    fn behind_the_proxy_protocol_the_admin_listener_is_asked() {
        let proxied = "proxy-protocol = 'always'\n";
        let error = url(proxied).unwrap_err().to_string();
        assert!(error.contains("set `admin-listen`"), "{error}");
        let admin = format!("{proxied}admin-listen = '127.0.0.1:9090'");
        assert_eq!(url(&admin).unwrap(), "http://127.0.0.1:9090");
        assert_eq!(url("admin-listen = ':9090'").unwrap(), "http://127.0.0.1:8080");
    }
}

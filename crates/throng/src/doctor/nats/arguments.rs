//! The flags of `throng doctor --nats`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use throng_units::Count;

use crate::client::ServerUrl;
use crate::settings::{self, NatsPrefix, NatsReplicas, NatsServers, Options, Settings};

/// Publications that are stored, at most: it is a check and no load.
const STORED_MAX: usize = 1000;

/// The flags about NATS. Those with the name of a setting replace it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Several nodes")]
pub(crate) struct NatsArguments {
    /// Check instead whether nodes can use these servers of NATS; without a value, those of the
    /// settings
    #[arg(long, value_name = "SERVER,…", num_args = 0..=1)]
    #[arg(conflicts_with_all = ["connections", "role", "port", "addresses", "target_ports"])]
    #[arg(conflicts_with_all = ["no_broadcast", "apply", "sysctl_file"])]
    #[expect(clippy::option_option, reason = "a flag, with a value or without")]
    pub(crate) nats: Option<Option<NatsServers>>,

    /// Read settings of a node from this file [default: ./throng.toml, if it exists]
    #[arg(long, value_name = "FILE", requires = "nats")]
    config: Option<PathBuf>,

    /// File with the login: .creds, seed of an nkey, USER:PASSWORD, or token
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_login: Option<PathBuf>,

    /// Authorities (PEM) of the servers
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_ca: Option<PathBuf>,

    /// Certificate (PEM) that is shown to the servers
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_cert: Option<PathBuf>,

    /// Key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_key: Option<PathBuf>,

    /// Begin TLS at once, as servers with handshake_first expect
    #[arg(long, requires = "nats")]
    nats_tls_first: bool,

    /// Begins the names of stream and subjects
    #[arg(long, value_name = "PREFIX", requires = "nats")]
    nats_prefix: Option<NatsPrefix>,

    /// On how many servers the stream is
    #[arg(long, value_name = "N", requires = "nats")]
    nats_replicas: Option<NatsReplicas>,

    /// Monitoring of one of the servers (http_port), for what clients cannot see, like
    /// http://10.0.0.1:8222
    #[arg(long, value_name = "URL", requires = "nats")]
    pub(crate) nats_monitor: Option<ServerUrl>,

    /// Also publish N messages to a channel that nobody follows, and measure how long each takes.
    /// They stay in the stream until they expire
    #[arg(long, value_name = "N", requires = "nats", value_parser = stored)]
    pub(crate) nats_store: Option<usize>,
}

fn stored(text: &str) -> Result<usize, String> {
    let number = text.parse::<Count>().ok().map(|Count(number)| number);
    let number = number.filter(|number| (1..=STORED_MAX).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a whole number from 1 to {STORED_MAX}"))
}

impl NatsArguments {
    /// The settings of a node, with these flags in place of those of the file.
    pub(super) fn settings(&self) -> Result<Settings> {
        let (variables, file) = (std::env::vars_os(), self.config.as_deref());
        Ok(settings::load_and(Options::default(), variables, file, |settings| {
            self.replace(settings);
            Ok(())
        })?)
    }

    fn replace(&self, settings: &mut Settings) {
        settings.engine.0 = true;
        if let Some(Some(servers)) = &self.nats {
            settings.nats = servers.clone();
        }
        for (given, setting) in [
            (&self.nats_login, &mut settings.nats_login),
            (&self.nats_ca, &mut settings.nats_ca),
            (&self.nats_cert, &mut settings.nats_cert),
            (&self.nats_key, &mut settings.nats_key),
        ] {
            if let Some(path) = given {
                setting.0 = Some(path.clone());
            }
        }
        settings.nats_tls_first.0 |= self.nats_tls_first;
        if let Some(prefix) = &self.nats_prefix {
            settings.nats_prefix = prefix.clone();
        }
        if let Some(replicas) = self.nats_replicas {
            settings.nats_replicas = replicas;
        }
    }
}

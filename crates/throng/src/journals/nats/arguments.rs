//! The flags of commands that speak to NATS as a node does.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::settings::{self, NatsPrefix, NatsServers, Options, Settings};

/// Where the settings of a node are, and flags that replace some of them.
#[derive(Debug, Default, Args)]
pub(crate) struct NatsFlags {
    /// Read a node's settings from this file [default: ./throng.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// File with the login: .creds, nkey seed, USER:PASSWORD, or token
    #[arg(long, value_name = "FILE")]
    nats_login: Option<PathBuf>,

    /// CA certificates (PEM) for the servers
    #[arg(long, value_name = "FILE")]
    nats_ca: Option<PathBuf>,

    /// Client certificate (PEM) for the servers
    #[arg(long, value_name = "FILE")]
    nats_cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE")]
    nats_key: Option<PathBuf>,

    /// Start the TLS handshake at once, as servers with handshake_first expect
    #[arg(long)]
    nats_tls_first: bool,

    /// Prefix of stream and subject names
    #[arg(long, value_name = "PREFIX")]
    nats_prefix: Option<NatsPrefix>,
}

impl NatsFlags {
    /// The names of all of them, as clap knows them.
    pub(crate) const NAMES: [&str; 7] = [
        "config",
        "nats_login",
        "nats_ca",
        "nats_cert",
        "nats_key",
        "nats_tls_first",
        "nats_prefix",
    ];

    /// The settings of a node, with these flags and these servers in place of the file's. `replace`
    /// replaces more of them.
    pub(crate) fn settings(
        &self,
        servers: Option<&NatsServers>,
        replace: impl FnOnce(&mut Settings),
    ) -> Result<Settings> {
        let (variables, file) = (std::env::vars_os(), self.config.as_deref());
        Ok(settings::load_and(Options::default(), variables, file, |settings| {
            self.replace(settings, servers);
            replace(settings);
            Ok(())
        })?)
    }

    fn replace(&self, settings: &mut Settings, servers: Option<&NatsServers>) {
        settings.engine.0 = true;
        if let Some(servers) = servers {
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
    }
}

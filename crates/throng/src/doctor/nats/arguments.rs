//! The flags of `throng doctor --nats`.

use anyhow::Result;
use clap::{ArgGroup, Args};
use throng_units::Count;

use super::super::arguments::connections;
use crate::client::ServerUrl;
use crate::journals::nats::NatsFlags;
use crate::settings::{NatsReplicas, NatsServers, Settings};

/// Publications that are stored, at most: it is a check and no load.
const STORED_MAX: usize = 1000;

/// The flags about NATS. Those with the name of a setting replace it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Several nodes")]
#[command(group(ArgGroup::new("of-nodes").args(NatsFlags::NAMES).multiple(true).requires("nats")))]
pub(crate) struct NatsArguments {
    /// Check instead whether nodes can use these NATS servers; without a value, the servers of the
    /// settings
    #[arg(long, value_name = "SERVER,…", num_args = 0..=1)]
    #[arg(conflicts_with_all = ["role", "port", "addresses", "target_ports"])]
    #[arg(conflicts_with_all = ["no_broadcast", "apply", "sysctl_file"])]
    #[expect(clippy::option_option, reason = "a flag, with a value or without")]
    pub(crate) nats: Option<Option<NatsServers>>,

    /// The settings of a node, and flags in their place.
    #[command(flatten)]
    flags: NatsFlags,

    /// Number of channels with followers on a node, beside the inboxes of --connections
    #[arg(long, value_name = "N", requires = "nats", value_parser = connections)]
    pub(crate) channels: Option<u32>,

    /// Number of replicas of the stream
    #[arg(long, value_name = "N", requires = "nats")]
    nats_replicas: Option<NatsReplicas>,

    /// Monitoring URL of one of the servers (http_port), for facts that clients cannot see, like
    /// http://10.0.0.1:8222
    #[arg(long, value_name = "URL", requires = "nats")]
    pub(crate) nats_monitor: Option<ServerUrl>,

    /// Also publish N messages to a channel without followers, and measure how long each takes. The
    /// messages stay in the stream until they expire
    #[arg(long, value_name = "N", requires = "nats", value_parser = stored)]
    pub(crate) nats_store: Option<usize>,
}

fn stored(text: &str) -> Result<usize, String> {
    let number = text.parse::<Count>().ok().map(|Count(number)| number);
    let number = number.filter(|number| (1..=STORED_MAX).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a whole number from 1 to {STORED_MAX}"))
}

impl NatsArguments {
    /// The settings of a node, with these flags in place of the file's.
    pub(super) fn settings(&self) -> Result<Settings> {
        let servers = self.nats.as_ref().and_then(Option::as_ref);
        self.flags.settings(servers, |settings| {
            if let Some(replicas) = self.nats_replicas {
                settings.nats_replicas = replicas;
            }
        })
    }
}

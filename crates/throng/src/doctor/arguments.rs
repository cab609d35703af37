//! The flags, and the requirements that follow from them.

use clap::{Args, ValueEnum};
use throng_host::preflight::Demand;
use throng_units::{Count, Invalid};

use super::nats::NatsArguments;

const EXAMPLES: &str = "\
With --nats, checks instead whether several nodes can share these NATS servers, using a node's
settings from the file, the variables and these flags. It stores and creates nothing.

Exit codes: 0 if that many connections are possible, or nodes can use the servers; 1 if something
must change first; 64 for a wrong command line; 78 for a wrong setting.

Examples:
  throng doctor
  throng doctor --connections 1M
  throng doctor --connections 250k --role both
  throng doctor --connections 60k --role clients --addresses 2
  sudo throng doctor --connections 1M --apply
  throng doctor --connections 1M --sysctl-file > /etc/sysctl.d/90-throng.conf
  throng doctor --nats nats://10.0.0.1:4222,nats://10.0.0.2:4222
  throng doctor --nats --config /etc/throng.toml --nats-store 100
  throng doctor --nats --connections 50k --channels 2k";

/// The default of `--port`, as text for clap.
const PORT: &str = "8080";

/// Which ends of the connections are on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// A Throng server; its clients are elsewhere
    Server,
    /// The load generator (throng flood); its server is elsewhere
    Clients,
    /// Both, over loopback
    Both,
}

impl Role {
    /// The value of `--role`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Clients => "clients",
            Role::Both => "both",
        }
    }
}

/// The flags of `throng doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Number of simultaneous connections, like 50000, 250k or 1M [default: as many as fit]. With
    /// --nats: clients of a node, each with an inbox that takes a subscription
    #[arg(long, short = 'n', value_name = "N", value_parser = connections)]
    pub(crate) connections: Option<u32>,

    /// Which ends of the connections are on this machine
    #[arg(long, value_enum, ignore_case = true, default_value_t = Role::Server)]
    pub(crate) role: Role,

    /// Port the server listens on
    #[arg(long, value_name = "PORT", default_value = PORT)]
    pub(crate) port: u16,

    /// Local addresses the clients connect from [default: 1; over loopback as many as needed]
    #[arg(long, value_name = "N", value_parser = connections)]
    pub(crate) addresses: Option<u32>,

    /// Number of ports the clients connect to [default: 1]
    #[arg(long, value_name = "N", value_parser = connections)]
    pub(crate) target_ports: Option<u32>,

    /// Assume that no message goes to all connections at once, which needs less memory
    #[arg(long)]
    pub(crate) no_broadcast: bool,

    /// Raise kernel settings that are too low, until the next reboot; never lower one
    #[arg(long, requires = "connections")]
    pub(crate) apply: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the kernel settings that must change as a file for /etc/sysctl.d
    #[arg(long, requires = "connections", conflicts_with_all = ["apply", "json"])]
    pub(crate) sysctl_file: bool,

    /// The flags about NATS.
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
}

impl Arguments {
    /// Why the combination of flags makes no sense, if it does not.
    pub(crate) fn fault(&self) -> Option<String> {
        let is_clients = self.addresses.is_some() || self.target_ports.is_some();
        (is_clients && self.role == Role::Server).then(|| {
            "--addresses and --target-ports are about clients: add --role clients or --role both"
                .to_owned()
        })
    }

    /// The requirements of this many connections.
    pub(crate) fn demand(&self, connections: u64) -> Demand {
        let mut demand = match self.role {
            Role::Server => Demand::server(connections),
            Role::Clients => Demand::clients(connections),
            Role::Both => Demand::both(connections),
        };
        demand.is_publishing = !self.no_broadcast;
        if let Some(server) = &mut demand.server {
            server.port = Some(self.port).filter(|&port| port > 0);
        }
        if let Some(clients) = &mut demand.clients {
            clients.addresses = self.addresses.map(u64::from).or(clients.addresses);
            clients.target_ports = u64::from(self.target_ports.unwrap_or(1));
        }
        demand
    }

    /// The same command line for this many connections.
    pub(crate) fn command(&self, connections: u32) -> String {
        let connections = Count(connections as usize).short();
        let mut text = format!("throng doctor --connections {connections}");
        let mut add = |flag: &str, value: String| text.push_str(&format!(" --{flag} {value}"));
        if self.role != Role::Server {
            add("role", self.role.word().to_owned());
        }
        if self.port.to_string() != PORT {
            add("port", self.port.to_string());
        }
        if let Some(addresses) = self.addresses {
            add("addresses", addresses.to_string());
        }
        if let Some(ports) = self.target_ports {
            add("target-ports", ports.to_string());
        }
        if self.no_broadcast {
            text.push_str(" --no-broadcast");
        }
        text
    }
}

/// Parses a number from 1 to `u32::MAX`.
pub(super) fn connections(text: &str) -> Result<u32, Invalid> {
    let expected = "a whole number from 1 to 4,294,967,295, like 50000, 250k or 1M";
    let Count(number) = text.parse().map_err(|_| Invalid::new(text, expected))?;
    let number = u32::try_from(number).ok().filter(|&number| number > 0);
    number.ok_or_else(|| Invalid::new(text, expected))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn read(line: &str) -> Result<Arguments, clap::Error> {
        let words = ["doctor"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn numbers_have_the_grammar_of_all_commands() {
        for (text, number) in
            [("1", 1), ("250k", 250_000), ("1M", 1_000_000), ("4294M", 4_294_000_000)]
        {
            assert_eq!(read(&format!("-n {text}")).expect("valid").connections, Some(number));
        }
        for text in ["0", "1x", "-1", "1.5", "4295M", "99999999999999999999", ""] {
            let error = read(&format!("--connections={text}")).expect_err("invalid").to_string();
            assert!(error.contains("is not a whole number from 1 to"), "{error}");
        }
        assert_eq!(read("").expect("valid").connections, None);
        assert!(read("--apply").is_err() && read("--sysctl-file").is_err());
    }

    #[test]
    fn the_printed_command_line_parses_to_the_same_arguments() {
        for line in [
            "--connections 1M",
            "--connections 1k --role both --port 80",
            "--connections 9 --role clients --addresses 2 --target-ports 3 --no-broadcast",
        ] {
            let arguments = read(line).expect("valid");
            let connections = arguments.connections.expect("given");
            assert_eq!(arguments.command(connections), format!("throng doctor {line}"));
        }
    }

    #[test]
    fn a_role_requires_its_ends() {
        let demand = |line: &str| read(line).expect("valid").demand(10);
        let server = demand("-n 10");
        assert_eq!((server.ends(), server.server.expect("a server").port), (1, Some(8080)));
        let clients = demand("-n 10 --role clients --addresses 4").clients.expect("clients");
        assert_eq!((clients.addresses, clients.target_ports), (Some(4), 1));
        let both = demand("-n 10 --role both --no-broadcast");
        assert!(!both.is_publishing && both.clients.expect("clients").addresses.is_none());
        assert!(read("-n 10 --addresses 4").expect("read").fault().is_some());
        assert!(read("-n 10 --apply --sysctl-file").is_err());
    }
}

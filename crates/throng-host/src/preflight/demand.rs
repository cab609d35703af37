//! The connections that a machine is to hold, and how programs spread them over threads.

use std::thread::available_parallelism;

/// Default number of connections that arrive at once, as when all clients reconnect.
const BURST: u64 = 4_096;

/// Descriptors in a client thread's table that are not connections: those open in the process when
/// the thread started, and the thread's own.
pub const CLIENTS_APART: u64 = 512;

/// A number of connections, and which of their ends are on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    pub connections: u64,
    /// The server, if it is on this machine.
    pub server: Option<ServerDemand>,
    /// The clients, if they are on this machine.
    pub clients: Option<ClientDemand>,
    /// True if a message may go to all connections at once. Each copy is buffered until it
    /// is read.
    pub is_publishing: bool,
}

/// A server on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDemand {
    /// How it spreads its connections; `None` for a running server, whose limits cannot change.
    pub tables: Option<TableDemand>,
    pub port: Option<u16>,
    /// Number of connections that may arrive at once, per listener.
    pub burst: u64,
}

/// Clients on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientDemand {
    /// How they spread their connections.
    pub tables: TableDemand,
    /// Number of source addresses; `None` if the clients take as many of 127.x as they need.
    pub addresses: Option<u64>,
    /// Source port range, inclusive; `None` for the kernel's choice.
    pub ports: Option<(u16, u16)>,
    /// Number of server ports to connect to.
    pub target_ports: u64,
    /// Maximum number of connections per source address, if the clients enforce one.
    pub per_address: Option<u64>,
}

/// How a program spreads connections over threads, each with a descriptor table of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableDemand {
    /// Minimum number of threads.
    pub threads_least: u64,
    /// Maximum number of threads.
    pub max_threads: u64,
    /// Descriptors in each table that are not connections.
    pub apart: u64,
    /// Further descriptors in each table per thread of the program.
    pub apart_per_thread: u64,
}

impl Demand {
    /// A Throng server on this machine with clients elsewhere, and messages to all.
    pub fn server(connections: u64) -> Demand {
        let server = ServerDemand {
            tables: Some(TableDemand::server()),
            port: None,
            burst: connections.min(BURST),
        };
        Demand { connections, server: Some(server), clients: None, is_publishing: true }
    }

    /// The load generator on this machine with one address, the server elsewhere.
    pub fn clients(connections: u64) -> Demand {
        let clients = ClientDemand {
            tables: TableDemand::clients(),
            addresses: Some(1),
            ports: None,
            target_ports: 1,
            per_address: None,
        };
        Demand { connections, server: None, clients: Some(clients), is_publishing: true }
    }

    /// Server and clients on this machine, over loopback.
    pub fn both(connections: u64) -> Demand {
        let clients = Demand::clients(connections).clients;
        let clients = clients.map(|clients| ClientDemand { addresses: None, ..clients });
        Demand { clients, ..Demand::server(connections) }
    }

    /// How many ends of each connection are on this machine: 0 to 2.
    pub fn ends(&self) -> u64 {
        u64::from(self.server.is_some()) + u64::from(self.clients.is_some())
    }
}

impl TableDemand {
    /// The tables of a Throng server with the default workers; must match `throng-edge`.
    pub fn server() -> TableDemand {
        TableDemand { threads_least: cores(), max_threads: 1_024, apart: 192, apart_per_thread: 3 }
    }

    /// The tables of the load generator, with any number of threads.
    pub fn clients() -> TableDemand {
        TableDemand {
            threads_least: cores(),
            max_threads: u64::MAX,
            apart: CLIENTS_APART,
            apart_per_thread: 0,
        }
    }

    /// The tables of the load generator with a fixed number of threads, at least one.
    pub fn clients_on(threads: u64) -> TableDemand {
        let threads = threads.max(1);
        TableDemand { threads_least: threads, max_threads: threads, ..TableDemand::clients() }
    }

    /// Number of connections per table with this descriptor limit and number of threads.
    pub fn each(&self, descriptors: u64, threads: u64) -> u64 {
        let apart = self.apart.saturating_add(self.apart_per_thread.saturating_mul(threads));
        descriptors.saturating_sub(apart)
    }

    /// The smallest number of threads that holds `connections`; `None` if no number does.
    pub fn threads_for(&self, connections: u64, descriptors: u64) -> Option<u64> {
        if self.apart_per_thread == 0 {
            let each = self.each(descriptors, 0);
            let threads = connections.div_ceil(each.max(1)).max(self.threads_least).max(1);
            return (each > 0 && threads <= self.max_threads).then_some(threads);
        }
        self.choices().find(|&threads| self.holds(descriptors, threads) >= connections)
    }

    /// The maximum number of connections with this descriptor limit, and the threads for it.
    pub fn most(&self, descriptors: u64) -> (u64, u64) {
        if self.apart_per_thread == 0 {
            return (self.holds(descriptors, self.max_threads), self.max_threads);
        }
        let holds = self.choices().map(|threads| (self.holds(descriptors, threads), threads));
        holds.max().unwrap_or((0, self.threads_least))
    }

    /// The lowest descriptor limit that allows `connections`.
    pub(crate) fn descriptors_least(&self, connections: u64) -> u64 {
        if self.apart_per_thread == 0 {
            return self.descriptors_with(connections, self.max_threads);
        }
        let limits = self.choices().map(|threads| self.descriptors_with(connections, threads));
        limits.min().unwrap_or(u64::MAX)
    }

    /// The descriptor limit with which `threads` hold `connections`.
    pub fn descriptors_with(&self, connections: u64, threads: u64) -> u64 {
        let apart = self.apart.saturating_add(self.apart_per_thread.saturating_mul(threads));
        connections.div_ceil(threads.max(1)).saturating_add(apart)
    }

    fn holds(&self, descriptors: u64, threads: u64) -> u64 {
        self.each(descriptors, threads).saturating_mul(threads)
    }

    /// Where each thread costs the others descriptors the best number must be looked for; those who
    /// pay nothing are not, for there may be any number.
    fn choices(&self) -> std::ops::RangeInclusive<u64> {
        self.threads_least.max(1)..=self.max_threads.max(self.threads_least).max(1)
    }
}

fn cores() -> u64 {
    available_parallelism().map_or(1, |cores| cores.get() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_as_many_as_descriptors_ask_for() {
        let clients = TableDemand { threads_least: 2, ..TableDemand::clients() };
        assert_eq!(clients.threads_for(1_000_000, 20_000), Some(52));
        assert_eq!(clients.threads_for(10, 20_000), Some(2));
        assert_eq!(clients.threads_for(10, 0), None);
        assert_eq!(TableDemand::clients_on(2).threads_for(1_000_000, 20_000), None);
        let server = TableDemand { threads_least: 2, ..TableDemand::server() };
        assert_eq!(server.threads_for(1_000_000, 20_000), Some(51));
        assert_eq!(server.threads_for(1_000_000, 1_024), None);
    }

    #[test]
    fn the_least_limit_is_just_enough() {
        let server = TableDemand { threads_least: 2, ..TableDemand::server() };
        for connections in [1, 1_000, 1_000_000, 50_000_000] {
            let least = server.descriptors_least(connections);
            assert!(server.most(least).0 >= connections, "{connections} {least}");
            assert!(server.most(least - 1).0 < connections, "{connections} {least}");
            assert!(server.threads_for(connections, least).is_some());
            assert!(server.threads_for(connections, least - 1).is_none());
        }
    }

    #[test]
    fn ends_are_counted() {
        let ends = [Demand::server(1), Demand::clients(1), Demand::both(1)];
        assert_eq!(ends.map(|demand| demand.ends()), [1, 1, 2]);
    }
}

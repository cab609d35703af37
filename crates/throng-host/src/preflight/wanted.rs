//! What somebody is about to ask of a machine.

use std::thread::available_parallelism;

/// Connections that arrive at once where nothing else is known: as when all clients come back.
const BURST: u64 = 4_096;

/// Descriptors of a client thread's table that are no connections: what the process had open when
/// the thread began, and the thread's own.
pub const CLIENTS_APART: u64 = 512;

/// So many connections, and which of their ends are on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The most connections that there will be at once.
    pub connections: u64,
    /// The server's ends, if they are on this machine.
    pub server: Option<Server>,
    /// The clients' ends, if they are on this machine.
    pub clients: Option<Clients>,
    /// Whether messages go to all of them: each waits in a buffer until it is read.
    pub is_publishing: bool,
}

/// The server's ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// How it spreads its connections; `None` for a server that runs already, whose own limits are
    /// no longer to be changed.
    pub tables: Option<Tables>,
    /// Where it listens, if that is known.
    pub port: Option<u16>,
    /// Connections that may arrive at once, at each of its listeners.
    pub burst: u64,
}

/// The clients' ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clients {
    /// How they are spread.
    pub tables: Tables,
    /// Local addresses to connect from; `None` if as many of 127.x are taken as are needed.
    pub addresses: Option<u64>,
    /// Local ports to use from each; `None` for the kernel's choice.
    pub ports: Option<(u16, u16)>,
    /// Ports of the server.
    pub target_ports: u64,
    /// The most connections from one address, if whoever connects sees to that.
    pub per_address: Option<u64>,
}

/// How a program spreads connections over threads, each with a descriptor table of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    /// Threads that there are in any case.
    pub threads_least: u64,
    /// Threads, at most.
    pub threads_max: u64,
    /// Descriptors of a table that are no connections.
    pub apart: u64,
    /// Further such descriptors of each table, for every thread that there is.
    pub apart_per_thread: u64,
}

impl Wanted {
    /// A Throng server on this machine, its clients elsewhere; messages go to all.
    pub fn server(connections: u64) -> Wanted {
        let server =
            Server { tables: Some(Tables::server()), port: None, burst: connections.min(BURST) };
        Wanted { connections, server: Some(server), clients: None, is_publishing: true }
    }

    /// The load generator on this machine with one address, the server elsewhere.
    pub fn clients(connections: u64) -> Wanted {
        let clients = Clients {
            tables: Tables::clients(),
            addresses: Some(1),
            ports: None,
            target_ports: 1,
            per_address: None,
        };
        Wanted { connections, server: None, clients: Some(clients), is_publishing: true }
    }

    /// Both on this machine, over loopback.
    pub fn both(connections: u64) -> Wanted {
        let clients = Wanted::clients(connections).clients;
        let clients = clients.map(|clients| Clients { addresses: None, ..clients });
        Wanted { clients, ..Wanted::server(connections) }
    }

    /// Ends of each connection that are on this machine.
    pub fn ends(&self) -> u64 {
        u64::from(self.server.is_some()) + u64::from(self.clients.is_some())
    }
}

impl Tables {
    /// Those of a Throng server with its usual workers: the same numbers as in `throng-edge`.
    pub fn server() -> Tables {
        Tables { threads_least: cores(), threads_max: 1_024, apart: 192, apart_per_thread: 3 }
    }

    /// Those of the load generator: as many threads as it takes.
    pub fn clients() -> Tables {
        Tables {
            threads_least: cores(),
            threads_max: u64::MAX,
            apart: CLIENTS_APART,
            apart_per_thread: 0,
        }
    }

    /// Exactly so many threads of the load generator.
    pub fn clients_on(threads: u64) -> Tables {
        let threads = threads.max(1);
        Tables { threads_least: threads, threads_max: threads, ..Tables::clients() }
    }

    /// Connections that fit into one table of so many descriptors, if there are `threads`.
    pub fn each(&self, descriptors: u64, threads: u64) -> u64 {
        let apart = self.apart.saturating_add(self.apart_per_thread.saturating_mul(threads));
        descriptors.saturating_sub(apart)
    }

    /// Threads for so many connections; `None` if no number of them is enough.
    pub fn threads_for(&self, connections: u64, descriptors: u64) -> Option<u64> {
        if self.apart_per_thread == 0 {
            let each = self.each(descriptors, 0);
            let threads = connections.div_ceil(each.max(1)).max(self.threads_least).max(1);
            return (each > 0 && threads <= self.threads_max).then_some(threads);
        }
        self.choices().find(|&threads| self.holds(descriptors, threads) >= connections)
    }

    /// The most connections that so many descriptors a table allow, and with how many threads.
    pub fn most(&self, descriptors: u64) -> (u64, u64) {
        if self.apart_per_thread == 0 {
            return (self.holds(descriptors, self.threads_max), self.threads_max);
        }
        let holds = self.choices().map(|threads| (self.holds(descriptors, threads), threads));
        holds.max().unwrap_or((0, self.threads_least))
    }

    /// The lowest descriptor limit that is enough for so many connections.
    pub fn descriptors_least(&self, connections: u64) -> u64 {
        if self.apart_per_thread == 0 {
            return self.descriptors_with(connections, self.threads_max);
        }
        let limits = self.choices().map(|threads| self.descriptors_with(connections, threads));
        limits.min().unwrap_or(u64::MAX)
    }

    /// The descriptor limit that lets so many threads hold so many connections.
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
        self.threads_least.max(1)..=self.threads_max.max(self.threads_least).max(1)
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
        let clients = Tables { threads_least: 2, ..Tables::clients() };
        assert_eq!(clients.threads_for(1_000_000, 20_000), Some(52));
        assert_eq!(clients.threads_for(10, 20_000), Some(2));
        assert_eq!(clients.threads_for(10, 0), None);
        assert_eq!(Tables::clients_on(2).threads_for(1_000_000, 20_000), None);
        let server = Tables { threads_least: 2, ..Tables::server() };
        assert_eq!(server.threads_for(1_000_000, 20_000), Some(51));
        assert_eq!(server.threads_for(1_000_000, 1_024), None);
    }

    #[test]
    fn the_least_limit_is_just_enough() {
        let server = Tables { threads_least: 2, ..Tables::server() };
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
        let ends = [Wanted::server(1), Wanted::clients(1), Wanted::both(1)];
        assert_eq!(ends.map(|wanted| wanted.ends()), [1, 1, 2]);
    }
}

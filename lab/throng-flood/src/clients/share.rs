//! The part of a run's clients that a pool has, and the commands to them.
//!
//! With `n` pools, client `i` belongs to pool `i % n`. At any time the clients are `0..number`, as
//! with a single pool. Streams, columns of a table and followers follow from the plan.

use serde::{Deserialize, Serialize};

use crate::plan::{Phase, Plan};

/// The part of a run's clients that a pool has, if others have the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientShare {
    /// The number of the run, as in its marks and templates.
    pub run: u32,
    /// The number of the first client.
    pub first: usize,
    /// The distance from one client's number to the next: of three pools, each has every third
    /// client.
    pub step: usize,
    /// Clients of all pools of the run together.
    pub total: usize,
    /// How far this machine's clock is ahead of the publisher's.
    pub clock_ahead_ns: i64,
}

impl ClientShare {
    /// All clients of a run, with the publisher on the same machine.
    pub(crate) fn whole(run: u32, total: usize) -> ClientShare {
        ClientShare { run, first: 0, step: 1, total, clock_ahead_ns: 0 }
    }

    /// How many of the clients `0..clients` belong to it.
    pub(crate) fn of(self, clients: usize) -> usize {
        part(clients, self.first, self.step)
    }

    /// The command for this part of the clients.
    pub(crate) fn command(self, command: ClientCommand) -> ClientCommand {
        command.part(self.first, self.step, self.step as f64)
    }

    /// The plan with this part of its clients, to check it against a machine.
    pub(crate) fn plan(self, mut plan: Plan) -> Plan {
        for phase in &mut plan.phases {
            if let Phase::Ramp { to, in_flight, .. } = phase {
                (*to, *in_flight) = (self.of(*to), self.of(*in_flight).max(1));
            }
        }
        plan
    }
}

/// A command to all clients of a run. It returns at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum ClientCommand {
    /// Bring the number of clients to `to`. At most `in_flight` connects are in progress, but at
    /// least one per thread; and for a moment twice as many when, without a rate, one group of
    /// threads takes over from another. Clients below `to` that have failed are tried once more.
    Ramp {
        /// The number of clients.
        to: usize,
        /// Connects per second, over all threads.
        rate: Option<f64>,
        /// Connects in progress.
        in_flight: usize,
    },
    /// Close clients and open them again; 0 ends it.
    Churn {
        /// Clients per second, over all threads.
        rate: f64,
    },
    /// Reset all connections and, once all are closed, open them again as fast as `in_flight`
    /// allows. Clients that fail retry after a pause until they are subscribed.
    Storm {
        /// Connects in progress.
        in_flight: usize,
    },
    /// Make the first clients read slowly or not at all, or read again.
    Slow {
        /// The share of the clients.
        share: f64,
        /// True to begin, false to end it.
        is_slow: bool,
        /// Bytes per second that each of them reads; 0 for none.
        speed: usize,
    },
    /// Set whether clients that fail, or that the server closes, reconnect after a pause. Initially
    /// as in the plan.
    Keep(bool),
    /// Set whether clients wait with the next long-poll after a response, so that all can be
    /// answered before the next round. Initially they poll at once.
    HoldPolls(bool),
}

impl ClientCommand {
    /// The command for every `of`th client from `nth` on, with one of `rates` parts of a rate. All
    /// parts of a ramp finish together, because their numbers of clients differ by at most one.
    pub(super) fn part(self, nth: usize, of: usize, rates: f64) -> ClientCommand {
        let connects = |in_flight| part(in_flight, nth, of).max(1);
        match self {
            ClientCommand::Ramp { to, rate, in_flight } => ClientCommand::Ramp {
                to: part(to, nth, of),
                rate: rate.map(|rate| rate / rates),
                in_flight: connects(in_flight),
            },
            ClientCommand::Churn { rate } => ClientCommand::Churn { rate: rate / rates },
            ClientCommand::Storm { in_flight } => {
                ClientCommand::Storm { in_flight: connects(in_flight) }
            }
            other => other,
        }
    }
}

fn part(number: usize, nth: usize, of: usize) -> usize {
    number.saturating_sub(nth).div_ceil(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(step: usize) -> impl Iterator<Item = ClientShare> {
        (0..step).map(move |first| ClientShare { first, step, ..ClientShare::whole(1, 100) })
    }

    #[test]
    fn every_client_has_one_agent() {
        for agents in 1..9 {
            for clients in 0..100 {
                let mut owners = vec![0; clients];
                for part in parts(agents) {
                    (0..part.of(clients)).for_each(|own| owners[part.first + own * agents] += 1);
                }
                assert!(owners.iter().all(|&owners| owners == 1), "{agents} {clients}");
            }
        }
    }

    #[test]
    fn rates_and_connect_limits_add_up() {
        let all = |agents, in_flight| {
            let ramp = ClientCommand::Ramp { to: 9, rate: Some(700.0), in_flight };
            parts(agents).fold((0, 0.0), |(connects, rates), part| match part.command(ramp) {
                ClientCommand::Ramp { in_flight, rate: Some(rate), .. } => {
                    (connects + in_flight, rates + rate)
                }
                other => panic!("{other:?}"),
            })
        };
        assert_eq!((all(3, 256).0, all(3, 1).0), (256, 3));
        assert!((all(7, 256).1 - 700.0).abs() < 1e-9);
    }
}

//! Who takes which clients.
//!
//! With `n` agents, client `i` belongs to agent `i % n`: whatever the number of clients at a
//! moment, it is clients `0..number` that there are, as if there were one fleet. Streams, columns
//! of a table and followers are those of the plan.

use crate::plan::{Phase, Plan};

/// One agent's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Which agent, from 0.
    pub agent: usize,
    /// Of so many.
    pub agents: usize,
}

impl Part {
    /// How many of so many clients are its own.
    pub fn of(self, clients: usize) -> usize {
        clients.saturating_sub(self.agent).div_ceil(self.agents)
    }

    /// How many connects may be under way, of so many in all; at least one.
    pub fn in_flight(self, in_flight: usize) -> usize {
        self.of(in_flight).max(1)
    }

    /// Its share of a rate. All agents have the same, and all get there together: their parts
    /// differ by one client at most.
    pub fn rate(self, rate: f64) -> f64 {
        rate / self.agents as f64
    }

    /// The plan with this part of its clients, for what a machine must allow.
    pub fn plan(self, mut plan: Plan) -> Plan {
        for phase in &mut plan.phases {
            if let Phase::Ramp { to, in_flight, .. } = phase {
                (*to, *in_flight) = (self.of(*to), self.in_flight(*in_flight));
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(agents: usize) -> impl Iterator<Item = Part> {
        (0..agents).map(move |agent| Part { agent, agents })
    }

    #[test]
    fn every_client_has_one_agent() {
        for agents in 1..9 {
            for clients in 0..100 {
                let mut owners = vec![0; clients];
                for part in parts(agents) {
                    (0..part.of(clients)).for_each(|own| owners[part.agent + own * agents] += 1);
                }
                assert!(owners.iter().all(|&owners| owners == 1), "{agents} {clients}");
            }
        }
    }

    #[test]
    fn rates_and_connects_under_way_add_up() {
        let in_flight: usize = parts(3).map(|part| part.in_flight(256)).sum();
        assert_eq!(in_flight, 256);
        assert_eq!(parts(3).map(|part| part.in_flight(1)).sum::<usize>(), 3);
        let rate: f64 = parts(7).map(|part| part.rate(700.0)).sum();
        assert!((rate - 700.0).abs() < 1e-9);
    }
}

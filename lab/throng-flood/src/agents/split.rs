//! Divides clients among agents.
//!
//! With `n` agents, client `i` belongs to agent `i % n`. At any time the clients are `0..number`,
//! as with a single pool. Streams, columns of a table and followers follow from the plan.

use crate::plan::{Phase, Plan};

/// The part of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AgentShare {
    /// The number of the agent, from 0.
    pub agent: usize,
    /// How many agents there are.
    pub agents: usize,
}

impl AgentShare {
    /// How many of these clients belong to the agent.
    pub(crate) fn of(self, clients: usize) -> usize {
        clients.saturating_sub(self.agent).div_ceil(self.agents)
    }

    /// The agent's part of a connect limit; at least one.
    pub(crate) fn in_flight(self, in_flight: usize) -> usize {
        self.of(in_flight).max(1)
    }

    /// The agent's part of a rate. All agents have the same, and all finish together, because
    /// their numbers of clients differ by at most one.
    pub(crate) fn rate(self, rate: f64) -> f64 {
        rate / self.agents as f64
    }

    /// The plan with this part of its clients, to check it against a machine.
    pub(crate) fn plan(self, mut plan: Plan) -> Plan {
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

    fn parts(agents: usize) -> impl Iterator<Item = AgentShare> {
        (0..agents).map(move |agent| AgentShare { agent, agents })
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
    fn rates_and_connect_limits_add_up() {
        let in_flight: usize = parts(3).map(|part| part.in_flight(256)).sum();
        assert_eq!(in_flight, 256);
        assert_eq!(parts(3).map(|part| part.in_flight(1)).sum::<usize>(), 3);
        let rate: f64 = parts(7).map(|part| part.rate(700.0)).sum();
        assert!((rate - 700.0).abs() < 1e-9);
    }
}

//! Whether this machine allows an experiment, said before it starts.

use throng_machine::preflight::{Applied, Preflight, Wanted, apply, check};

use crate::experiment::{Experiment, Size};
use crate::measures::IN_FLIGHT;

/// What this machine says to an experiment of a size: both sides are on it.
pub fn preflight(experiment: &Experiment, size: &Size) -> Preflight {
    let mut wanted = Wanted::both(size.connections as u64);
    wanted.is_publishing = experiment.broadcasts;
    if let Some(server) = &mut wanted.server {
        server.burst = size.connections.min(IN_FLIGHT) as u64;
    }
    check(&wanted)
}

/// Changes every kernel setting that is too low, and says what came of each, a line each.
pub fn raise(preflight: &Preflight) -> Vec<String> {
    let told = |Applied { setting, outcome }: Applied| match outcome {
        Ok(()) => format!("done: {}; to undo: {}", setting.command(), setting.undo()),
        Err(error) => format!("not done: {}: {error}", setting.command()),
    };
    apply(preflight).into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(connections: usize) -> Option<String> {
        let size = Size { connections, time: Duration::ZERO };
        preflight(crate::experiments::ALL[0], &size).refusal()
    }

    #[test]
    fn what_no_machine_holds_is_refused_with_what_helps() {
        let refusal = refusal(1_000_000_000_000).expect("refused");
        assert!(refusal.starts_with("1,000,000,000,000 connections are wanted"), "{refusal}");
        assert!(refusal.contains("What helps:"), "{refusal}");
    }

    #[test]
    fn a_few_are_always_possible() {
        assert_eq!(refusal(100), None);
    }
}

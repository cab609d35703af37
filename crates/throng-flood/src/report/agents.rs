//! The machines that the clients were on.

use super::paint::{Ink, Paint, harmless};
use super::table::Grid;
use super::{Agent, Clock, Report, figures};

/// A row for each agent; nothing if there were none.
pub fn table(text: &mut String, report: &Report, paint: Paint) {
    if report.agents.is_empty() {
        return;
    }
    let mut grid = Grid::new(["agent", "subscribed", "received", "CPU time", "clock"], paint);
    for agent in &report.agents {
        let name = match &agent.lost {
            Some(_) => paint.ink(Ink::BAD, format!("{} (lost)", harmless(&agent.name))).to_string(),
            None => harmless(&agent.name),
        };
        grid.row([
            name,
            figures::count(agent.subscribed),
            figures::count(agent.received),
            figures::seconds(agent.cpu_s),
            clock(agent),
        ]);
    }
    grid.write(text);
}

/// How the agent's clock stands to that of the publisher.
pub fn clock(agent: &Agent) -> String {
    match &agent.clock {
        None => "the publisher's".to_owned(),
        Some(Clock { ahead_ms, uncertainty_ms, .. }) => {
            format!("{} ahead ± {}", signed(*ahead_ms), figures::milliseconds(*uncertainty_ms))
        }
    }
}

/// Milliseconds that may be negative.
pub fn signed(ms: f64) -> String {
    let sign = if ms < 0.0 { "−" } else { "" };
    format!("{sign}{}", figures::milliseconds(ms.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_told() {
        let clock = Some(Clock { ahead_ms: -12.5, uncertainty_ms: 0.05, drift_ms: None });
        let lost = Some("gone".to_owned());
        let agents = vec![
            Agent { name: "a".to_owned(), clock, ..Agent::default() },
            Agent { name: "b\u{1b}".to_owned(), lost, ..Agent::default() },
        ];
        let mut text = String::new();
        table(&mut text, &Report { agents, ..Report::default() }, Paint::plain());
        assert!(text.contains("−12.5 ms ahead ± 50 µs"), "{text}");
        assert!(text.contains("(lost)") && text.contains("the publisher's"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        text.clear();
        table(&mut text, &Report::default(), Paint::plain());
        assert_eq!(text, "");
    }
}

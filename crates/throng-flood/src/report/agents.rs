//! The machines that the clients were on.

use super::table::Grid;
use super::{Agent, Clock, Report};
use throng_units::format;
use throng_units::paint::{Ink, Paint, sanitized};

/// A row for each agent; nothing if there were none.
pub fn table(text: &mut String, report: &Report, paint: Paint) {
    if report.agents.is_empty() {
        return;
    }
    let mut grid = Grid::new(["agent", "subscribed", "received", "CPU time", "clock"], paint);
    for agent in &report.agents {
        let name = match &agent.lost {
            Some(_) => {
                paint.ink(Ink::BAD, format!("{} (lost)", sanitized(&agent.name))).to_string()
            }
            None => sanitized(&agent.name),
        };
        grid.row([
            name,
            format::count(agent.subscribed),
            format::count(agent.received),
            format::seconds(agent.cpu_s),
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
            format!("{} ahead ± {}", signed(*ahead_ms), format::milliseconds(*uncertainty_ms))
        }
    }
}

/// Milliseconds that may be negative.
pub fn signed(ms: f64) -> String {
    let sign = if ms < 0.0 { "−" } else { "" };
    format!("{sign}{}", format::milliseconds(ms.abs()))
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

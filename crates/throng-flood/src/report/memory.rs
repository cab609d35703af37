//! A server's memory, taken apart: what it takes once, and what each client takes.
//!
//! Growth divided by clients has both in it. Two sizes in one run tell them apart.

use super::Report;
use throng_units::format;

/// Below so many clients, what a server takes once is a large part of its growth.
const FEW: u64 = 10_000;

/// The larger of two sizes is at least so many times the smaller one.
const APART: u64 = 2;

/// What is said of the server's memory a client; `None` where it was not measured, or where there
/// is nothing to be said.
pub fn explained(report: &Report) -> Option<String> {
    let total = &report.total;
    let server = total.server.as_ref()?;
    let end_bytes = server.pss_bytes? as f64;
    let before_bytes = end_bytes - server.bytes_per_client? * total.active as f64;
    let sizes = || {
        report.phases.iter().filter_map(|phase| {
            let bytes = phase.totals.server.as_ref()?.pss_bytes?;
            (phase.totals.active > 0).then_some((phase.totals.active, bytes as f64))
        })
    };
    // Of phases of one size the first: what is published later leaves buffers behind.
    let few = sizes().reduce(|one, other| if other.0 < one.0 { other } else { one })?;
    let many = sizes().reduce(|one, other| if other.0 > one.0 { other } else { one })?;
    if many.0 >= few.0 * APART {
        let each = (many.1 - few.1) / (many.0 - few.0) as f64;
        let once = few.1 - before_bytes - each * few.0 as f64;
        return (each > 0.0).then(|| {
            format!(
                "Of the server's memory each further client took {}, from {} to {} clients; \
                 before the first it had {}, and {} came with them once.",
                format::bytes(each),
                format::count(few.0),
                format::count(many.0),
                format::bytes(before_bytes),
                format::bytes(once.max(0.0)),
            )
        });
    }
    (total.active < FEW).then(|| {
        format!(
            "The server's memory a client is its growth from {} divided by the clients: with so \
             few, much of it is what a server takes once. Steps tell: --steps {},{}.",
            format::bytes(before_bytes),
            total.active.max(1),
            FEW.max(total.active * APART * 5),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cost, PhaseReport, Totals};

    fn report(sizes: &[(u64, u64)]) -> Report {
        let totals = |&(active, pss_bytes): &(u64, u64)| Totals {
            active,
            server: Some(Cost {
                pss_bytes: Some(pss_bytes),
                bytes_per_client: Some((pss_bytes as f64 - 1e6) / active as f64),
                ..Cost::default()
            }),
            ..Totals::default()
        };
        let phase = |size| PhaseReport { totals: totals(size), ..PhaseReport::default() };
        Report {
            total: sizes.last().map(totals).unwrap_or_default(),
            phases: sizes.iter().map(phase).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn steps_tell_what_is_taken_once() {
        let text = explained(&report(&[(1000, 1_560_000), (1000, 1_900_000), (11_000, 2_160_000)]));
        let text = text.expect("two sizes");
        assert!(text.contains("each further client took 60 B, from 1,000 to 11,000"), "{text}");
        assert!(text.contains(&format!("{} came with them once", format::bytes(500_000.0))));
    }

    #[test]
    fn one_small_size_is_said_to_be_one() {
        let text = explained(&report(&[(1000, 1_560_000)])).expect("few");
        assert!(text.contains("growth from") && text.contains("--steps 1000,10000"), "{text}");
        assert_eq!(explained(&report(&[(100_000, 7_000_000)])), None);
        assert_eq!(explained(&Report::default()), None);
    }
}

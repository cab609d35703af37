//! Reports as CSV: one line per sample.
//!
//! Columns keep their names and order; new ones are appended. A missing value is an empty cell.

use throng_report::csv::CsvRow;

use super::{Distribution, Report};

const SAMPLE_COLUMNS: &str = "run,at_s,phase,connecting,active,closed,subscribed,failures,\
     published,received,received_bytes,delivery_p50_ms,delivery_p90_ms,delivery_p99_ms,\
     delivery_p999_ms,delivery_max_ms,server_pss_bytes,server_cores,generator_pss_bytes,\
     generator_cores,slab_bytes,socket_buffer_bytes,machine_cores";

/// Columns of the delivery latency.
const DELIVERY: [fn(&Distribution) -> f64; 5] = [
    |found| found.p50,
    |found| found.p90,
    |found| found.p99,
    |found| found.p999,
    |found| found.max,
];

/// A heading and one line for each sample of a run.
pub(crate) fn samples(report: &Report) -> String {
    let mut text = format!("{SAMPLE_COLUMNS}\n");
    for sample in &report.series {
        let phase = report.phases.iter().find(|phase| sample.at_s <= phase.to_s);
        let mut row = CsvRow::default();
        row.text(&report.name)
            .value(sample.at_s)
            .text(phase.map_or("", |phase| &phase.name))
            .value(sample.connecting)
            .value(sample.active)
            .value(sample.closed)
            .value(sample.subscribed)
            .value(sample.failures)
            .value(sample.published)
            .value(sample.received)
            .value(sample.received_bytes);
        let delivery = sample.delivery.as_ref();
        append(&mut row, delivery, DELIVERY);
        row.optional(sample.server_pss_bytes)
            .optional(sample.server_cores)
            .optional(sample.generator_pss_bytes)
            .value(sample.generator_cores)
            .optional(sample.slab_bytes)
            .optional(sample.socket_buffer_bytes)
            .optional(sample.machine_cores);
        text.push_str(&row.end());
    }
    text
}

/// Appends one value of a distribution for each of `values`; empty cells if it was not measured.
fn append<const N: usize>(
    row: &mut CsvRow,
    distribution: Option<&Distribution>,
    values: [fn(&Distribution) -> f64; N],
) {
    for value in values {
        row.optional(distribution.map(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    /// Splits a line at commas outside quotes.
    fn cells(line: &str) -> Vec<String> {
        let mut cells = vec![String::new()];
        let mut is_quoted = false;
        for letter in line.chars() {
            match letter {
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => cells.push(String::new()),
                other => cells.last_mut().expect("never empty").push(other),
            }
        }
        cells
    }

    #[test]
    fn every_line_has_every_column() {
        let mut report = fixture::sample();
        report.total.server = None;
        report.total.last = None;
        let text = samples(&report);
        let columns = text.lines().next().map_or(0, |line| cells(line).len());
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| cells(line).len() == columns), "{text}");
    }

    #[test]
    fn cells_match_their_headings() {
        let report = fixture::sample();
        let text = samples(&report);
        let lines: Vec<_> = text.lines().map(cells).collect();
        let cell = |name: &str| {
            let at = lines[0].iter().position(|column| column == name).expect("a column");
            lines[1][at].as_str()
        };
        assert_eq!(cell("run"), "throng, 100,000 WebSockets");
        assert_eq!(cell("phase"), "ramp to 100000");
    }
}

//! The values of each second of a run, for charts and as CSV.

use throng_report::chart::Points;
use throng_report::csv::CsvRow;

use super::{Report, Sample};

type Value = fn(&Sample) -> Option<f64>;

/// Columns of the CSV, after the run, the time and the phase. They keep their names and order; new
/// ones are appended.
const COLUMNS: [(&str, Value); 23] = [
    ("connecting", |sample| Some(sample.connecting as f64)),
    ("active", |sample| Some(sample.active as f64)),
    ("closed", |sample| Some(sample.closed as f64)),
    ("subscribed", |sample| Some(sample.subscribed as f64)),
    ("failures", |sample| Some(sample.failures as f64)),
    ("published", |sample| Some(sample.published as f64)),
    ("received", |sample| Some(sample.received as f64)),
    ("received_bytes", |sample| Some(sample.received_bytes as f64)),
    ("delivery_p50_ms", |sample| Some(sample.delivery.as_ref()?.p50)),
    ("delivery_p90_ms", |sample| Some(sample.delivery.as_ref()?.p90)),
    ("delivery_p99_ms", |sample| Some(sample.delivery.as_ref()?.p99)),
    ("delivery_p999_ms", |sample| Some(sample.delivery.as_ref()?.p999)),
    ("delivery_max_ms", |sample| Some(sample.delivery.as_ref()?.max)),
    ("server_pss_bytes", |sample| Some(sample.server_pss_bytes? as f64)),
    ("server_cores", |sample| sample.server_cores),
    ("generator_pss_bytes", |sample| Some(sample.generator_pss_bytes? as f64)),
    ("generator_cores", |sample| Some(sample.generator_cores)),
    ("slab_bytes", |sample| Some(sample.slab_bytes? as f64)),
    ("socket_buffer_bytes", |sample| Some(sample.socket_buffer_bytes? as f64)),
    ("machine_cores", |sample| sample.machine_cores),
    ("behind_p50_ms", |sample| Some(sample.behind.as_ref()?.p50)),
    ("behind_p99_ms", |sample| Some(sample.behind.as_ref()?.p99)),
    ("behind_max_ms", |sample| Some(sample.behind.as_ref()?.max)),
];

/// A column over the time of a run; without points if there is no such column.
pub(super) fn column(report: &Report, name: &str) -> Points {
    let value = COLUMNS.iter().find(|(column, _)| *column == name);
    value.map_or_else(Vec::new, |(_, value)| report.points(value))
}

/// A heading and one line for each sample of a run. A missing value is an empty cell.
pub(crate) fn csv(report: &Report) -> String {
    let names = COLUMNS.map(|(name, _)| name);
    let mut text = format!("run,at_s,phase,{}\n", names.join(","));
    for sample in &report.series {
        let phase = report.phases.iter().find(|phase| sample.at_s <= phase.to_s);
        let mut row = CsvRow::default();
        row.text(&report.name).value(sample.at_s).text(phase.map_or("", |phase| &phase.name));
        for (_, value) in COLUMNS {
            row.optional(value(sample));
        }
        text.push_str(&row.end());
    }
    text
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
        report.series[3].server_cores = None;
        let text = csv(&report);
        let columns = text.lines().next().map_or(0, |line| cells(line).len());
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| cells(line).len() == columns), "{text}");
    }

    #[test]
    fn cells_match_their_headings() {
        let report = fixture::sample();
        let text = csv(&report);
        let lines: Vec<_> = text.lines().map(cells).collect();
        let cell = |name: &str| {
            let at = lines[0].iter().position(|column| column == name).expect("a column");
            lines[1][at].as_str()
        };
        assert_eq!(cell("run"), "throng, 100,000 WebSockets");
        assert_eq!(cell("phase"), "ramp to 100000");
        assert_eq!((cell("active"), cell("delivery_p50_ms")), ("4000", ""));
    }
}

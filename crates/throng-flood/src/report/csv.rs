//! Reports as CSV: one line per sample, or one line per run.
//!
//! Columns keep their names and order; new ones are appended. A missing value is an empty cell.

use throng_report::csv::Row;

use super::{Distribution, Report};

const SAMPLE_COLUMNS: &str = "run,at_s,phase,connecting,active,closed,subscribed,failures,\
     published,received,received_bytes,delivery_p50_ms,delivery_p90_ms,delivery_p99_ms,\
     delivery_p999_ms,delivery_max_ms,server_pss_bytes,server_cores,generator_pss_bytes,\
     generator_cores,slab_bytes,socket_buffer_bytes,machine_cores";

const RUN_COLUMNS: &str = "run,started_unix_s,seconds,cut_short,active,attempts,subscribed,\
     failures,published,publish_failures,publish_rate_intended,publish_rate,expected,received,lost,\
     duplicated,reordered,delivery_rate,connect_rate,connect_p50_ms,connect_p99_ms,connect_max_ms,\
     delivery_p50_ms,delivery_p90_ms,delivery_p99_ms,delivery_p999_ms,delivery_max_ms,\
     first_p50_ms,median_p50_ms,p99_p50_ms,p999_p50_ms,last_p50_ms,last_max_ms,server_cpu_s,\
     server_cpu_us_per_delivery,server_pss_bytes,server_bytes_per_client,generator_cpu_s,\
     generator_cpu_us_per_delivery,generator_pss_bytes,generator_bytes_per_client,kernel_bytes,\
     assertions_failed,warnings,missed,machine_cpu_s,machine_cpu_us_per_delivery,machine_busy_s,\
     other_programs_cpu_s";

/// Columns of the delivery latency.
const DELIVERY: [fn(&Distribution) -> f64; 5] =
    [|d| d.p50, |d| d.p90, |d| d.p99, |d| d.p999, |d| d.max];

/// A heading and one line for each sample of a run.
pub fn samples(report: &Report) -> String {
    let mut text = format!("{SAMPLE_COLUMNS}\n");
    for sample in &report.series {
        let phase = report.phases.iter().find(|phase| sample.at_s <= phase.to_s);
        let mut row = Row::default();
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

/// A heading and one line for each run.
pub fn runs<'a>(reports: impl IntoIterator<Item = &'a Report>) -> String {
    let mut text = format!("{RUN_COLUMNS}\n");
    for report in reports {
        text.push_str(&run(report));
    }
    text
}

fn run(report: &Report) -> String {
    let total = &report.total;
    let mut row = Row::default();
    row.text(&report.name)
        .value(report.started_unix_s)
        .value(report.seconds)
        .text(report.cut_short.as_deref().unwrap_or_default())
        .value(total.active)
        .value(total.attempts)
        .value(total.subscribed)
        .value(total.failures.values().sum::<u64>())
        .value(total.published)
        .value(total.publish_failures.values().sum::<u64>())
        .optional(total.publish_rate_intended)
        .optional(total.publish_rate)
        .value(total.expected)
        .value(total.received)
        .value(total.lost)
        .value(total.duplicated)
        .value(total.reordered)
        .optional(total.delivery_rate)
        .optional(total.connect_rate);
    append(&mut row, total.connect.as_ref(), [|d| d.p50, |d| d.p99, |d| d.max]);
    append(&mut row, total.delivery.as_ref(), DELIVERY);
    for of_publish in [&total.first, &total.median, &total.p99, &total.p999] {
        append(&mut row, of_publish.as_ref(), [|d| d.p50]);
    }
    append(&mut row, total.last.as_ref(), [|d| d.p50, |d| d.max]);
    for cost in [total.server.as_ref(), Some(&total.generator)] {
        row.optional(cost.map(|cost| cost.cpu_s))
            .optional(cost.and_then(|cost| cost.cpu_us_per_delivery))
            .optional(cost.and_then(|cost| cost.pss_bytes))
            .optional(cost.and_then(|cost| cost.bytes_per_client));
    }
    row.optional(total.kernel_bytes)
        .value(report.assertions.iter().filter(|checked| !checked.holds).count())
        .value(report.warnings.len())
        .value(total.missed);
    let machine = total.machine.as_ref();
    row.optional(machine.map(|machine| machine.cpu_s))
        .optional(machine.and_then(|machine| machine.cpu_us_per_delivery))
        .optional(machine.map(|machine| machine.busy_s))
        .optional(machine.map(|machine| machine.others_s));
    row.end()
}

/// Appends one value of a distribution for each of `values`; empty cells if it was not measured.
fn append<const N: usize>(
    row: &mut Row,
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
        for text in [samples(&report), runs([&report, &Report::default()])] {
            let columns = text.lines().next().map_or(0, |line| cells(line).len());
            assert!(text.lines().count() > 2);
            assert!(text.lines().all(|line| cells(line).len() == columns), "{text}");
        }
    }

    #[test]
    fn cells_match_their_headings() {
        let report = fixture::sample();
        let text = runs([&report]);
        let lines: Vec<_> = text.lines().map(cells).collect();
        let cell = |name: &str| {
            let at = lines[0].iter().position(|column| column == name).expect("a column");
            lines[1][at].as_str()
        };
        assert_eq!(cell("run"), "throng, 100,000 WebSockets");
        assert_eq!(cell("failures"), "419");
        assert_eq!(cell("publish_failures"), "2");
        assert_eq!(cell("kernel_bytes"), "890000000");
        assert_eq!(cell("assertions_failed"), "1");
        assert_eq!(cell("warnings"), "1");
        let line = samples(&report).lines().nth(1).map(cells).expect("a sample");
        assert_eq!(line[2], "ramp to 100000");
    }
}
